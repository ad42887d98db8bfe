//! Whole runs up to the plan: tables from text, memory and cache, read and matched; what memory they take at most, each
//! in a process of its own.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use fastprobe::{
    pattern::{PatternSet, PatternText, Syntax},
    tables::{
        Root, Source, Tables, Wish,
        cache::{Folder, Key, load},
    },
};

use crate::{
    Effort,
    input::Input,
    report::{Bound, Report, Row, Target, bytes},
    timer::{Job, Times, measure},
};

/// What this program is called with to be the process whose memory is measured.
pub const CHILD: &str = "--one-run-of";

/// How the process is called that does nothing.
const NOTHING: &str = "nothing";

/// The targets for memory are of a kernel with so many symbols.
const TARGET_SYMBOLS: usize = 270_000;

const PATTERNS: [&str; 2] = ["kvm*", "*x*"];

const SOURCES: [(&str, Source); 3] =
    [("text", Source::Text), ("kcore", Source::Kcore), ("cache", Source::Cache)];

/// Reads and matches; gives how many functions.
fn plan(root: &Root, cache: &Folder, source: Source, pattern: &str) -> Result<usize> {
    let set = PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[])?;
    let tables = Tables::read(root, Some(cache), Wish::Only(source), Some(&set))?;
    Ok(tables.matching(&mut set.matcher())?.iter().count())
}

/// Measures all of them.
pub fn run(input: &Input, effort: Effort, report: &mut Report) -> Result<()> {
    let cache = input.cache();
    for pattern in PATTERNS {
        let counts = SOURCES.map(|(_, source)| plan(&input.root, &cache, source, pattern).ok());
        ensure!(counts[0].is_some() && counts == [counts[0]; 3], "{pattern}: {counts:?} functions");
        let mut jobs = SOURCES.map(|(_, source)| {
            Job::new(1, move || plan(&input.root, &input.cache(), source, pattern).unwrap_or(0))
        });
        let times = measure(effort.rounds, &mut jobs);
        for ((name, _), times) in SOURCES.iter().zip(&times) {
            report.row(Row {
                remark: format!("{} functions", counts[0].unwrap_or(0)),
                ..Row::timed(format!("tables from {name}, {pattern}"), times)
            });
        }
        if pattern == "kvm*" {
            target(&times, report);
        }
    }
    memory(input, report)?;
    names(input, report)
}

/// Those on text are for a kernel that has to make its text: see bench-sources, in a VM.
fn target(times: &[Times], report: &mut Report) {
    let [_, kcore, cache] = times else { return };
    report.target(Target {
        what: "tables from the cache against kcore, kvm*",
        wanted: 20.0,
        measured: kcore.median() / cache.median(),
        bound: Bound::AtLeast,
        remark: "times faster, kcore from a file: what the kernel takes for each read is not in it",
    });
}

/// Peak memory of whole processes, this program's own code included.
fn memory(input: &Input, report: &mut Report) -> Result<()> {
    let mut peaks = Vec::new();
    let mut row = |what: String, peak: usize| {
        report.row(Row { what, held: Some(peak), ..Row::default() });
        peaks.push(peak);
    };
    for (name, _) in SOURCES {
        for pattern in PATTERNS {
            row(format!("peak memory, {name}, {pattern}"), peak(input, name, pattern)?);
        }
    }
    row("peak memory, kcore, kvm*, and the cache written".into(), peak(input, "store", "kvm*")?);
    let empty = peak(input, NOTHING, "")?;
    row("peak memory, nothing done".into(), empty);
    let mut target = |what, wanted, peak: usize| {
        let tables = peak.saturating_sub(empty) * TARGET_SYMBOLS / input.symbols.len();
        let measured = (empty + tables) as f64 / 1e6;
        let remark = "MB, of this program; what is beyond one that does nothing as of 270,000 symbols";
        report.target(Target { what, wanted, measured, bound: Bound::AtMost, remark });
    };
    target("peak memory, cold, kvm*", 40.0, peaks[2]);
    target("peak memory, cold, *x*", 40.0, peaks[3]);
    target("peak memory, cold, and the cache written", 40.0, peaks[6]);
    target("peak memory, from the cache, kvm*", 10.0, peaks[4]);
    target("peak memory, from the cache, *x*", 10.0, peaks[5]);
    Ok(())
}

/// Runs this program as the process to be measured.
fn peak(input: &Input, how: &str, pattern: &str) -> Result<usize> {
    let empty = input.empty_folder()?;
    let cache = if how == "store" { empty.path() } else { input.folder() };
    let output = Command::new(std::env::current_exe()?)
        .args([CHILD, how, pattern])
        .args([input.root.path(), cache])
        .output()
        .context("can't start this program again")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let kilobytes: usize = text.trim().parse().with_context(|| format!("an odd peak: {text:?}"))?;
    Ok(kilobytes * 1024)
}

/// What the process does: one run, and its peak in kilobytes, as the kernel counts them.
pub fn child(arguments: &[String]) -> Result<()> {
    let [how, pattern, root, cache] = arguments else { bail!("{CHILD} HOW PATTERN ROOT CACHE") };
    let (root, cache) = (Root::at(root), Folder::at(cache.as_ref()));
    match SOURCES.iter().find(|(name, _)| name == how) {
        Some((_, source)) => ensure!(plan(&root, &cache, *source, pattern)? > 0, "nothing matches"),
        None if how == NOTHING => {}
        None => {
            let set = PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[])?;
            let tables = Tables::read(&root, Some(&cache), Wish::Auto, Some(&set))?;
            ensure!(tables.matching(&mut set.matcher())?.iter().next().is_some(), "nothing matches");
            ensure!(tables.store(&root, &cache)?, "the cache was not written");
        }
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
    println!("{}", peak.context("no VmHWM")?.trim());
    Ok(())
}

/// How much the names take, in the kernel's form and in ours.
fn names(input: &Input, report: &mut Report) -> Result<()> {
    let kept = load(&input.cache(), &Key::of(&input.root)?)?.context("the cache was written")?;
    let plain: usize = input.symbols.iter().map(|symbol| symbol.name.len()).sum();
    let (ours, count) = (kept.tables.index().name_bytes(), input.symbols.len());
    let core = &input.symbols[..input.compressed.count()];
    let (kernel, core): (usize, usize) =
        (input.compressed.name_bytes(), core.iter().map(|symbol| symbol.name.len()).sum());
    let mut row = |what: &str, held: usize, plain: usize, count: usize| {
        let share = 100.0 * held as f64 / plain as f64;
        let remark = format!("{share:.1} % of their plain size, {}; {count} names", bytes(plain));
        report.row(Row { what: what.into(), held: Some(held), remark, ..Row::default() });
    };
    row("names: the kernel's own table, core, with type letters", kernel, core, input.compressed.count());
    row("names: fastprobe's index, core and modules", ours, plain, count);
    report.target(Target {
        what: "stored names, % of their plain size",
        wanted: 40.0,
        measured: 100.0 * ours as f64 / plain as f64,
        bound: Bound::AtMost,
        remark: "best published: 50.05 %",
    });
    Ok(())
}
