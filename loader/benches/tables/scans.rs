//! Patterns: ours on compressed names, and a plain loop of globset or regex over names that were all expanded before.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use fastprobe::{
    pattern::{PatternSet, PatternText, Syntax},
    tables::{Matches, Source, Tables, Wish},
};
use globset::{Glob, GlobSet, GlobSetBuilder};
use regex::bytes::Regex;

use crate::{
    Effort,
    input::{Input, Symbol},
    report::{Report, Row},
    timer::{Job, Random, measure},
};

/// Patterns and what they are called.
struct Case {
    name: &'static str,
    syntax: Syntax,
    patterns: Vec<String>,
}

/// What anybody would write.
enum Plain {
    Globs(GlobSet),
    Regex(Regex),
}

impl Plain {
    fn of(case: &Case) -> Result<Self> {
        if let Syntax::Regex = case.syntax {
            return Ok(Self::Regex(Regex::new(&format!("^(?:{})$", case.patterns[0]))?));
        }
        let mut globs = GlobSetBuilder::new();
        for pattern in &case.patterns {
            globs.add(Glob::new(pattern)?);
        }
        Ok(Self::Globs(globs.build()?))
    }

    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Globs(globs) => std::str::from_utf8(name).is_ok_and(|name| globs.is_match(name)),
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}

fn cases(input: &Input) -> Vec<Case> {
    let mut functions: Vec<&Symbol> = input.functions().filter(|f| is_plain(&f.name)).collect();
    Random::new().shuffle(&mut functions);
    let text = |f: &&Symbol| String::from_utf8_lossy(&f.name).into_owned();
    let names = functions.iter().take(10_000).map(text).collect();
    let prefix = |f: &&Symbol| format!("{}*", &text(f)[..f.name.len() * 2 / 3]);
    let prefixes = functions.iter().rev().filter(|f| f.name.len() > 8).take(1000).map(prefix).collect();
    let glob = |name, patterns| Case { name, syntax: Syntax::Glob, patterns };
    vec![
        glob("kvm*", vec!["kvm*".into()]),
        glob("*x*", vec!["*x*".into()]),
        Case {
            name: r"-r .*_(read\|write)",
            syntax: Syntax::Regex,
            patterns: vec![".*_(read|write)".into()],
        },
        glob("10,000 names", names),
        glob("1,000 prefixes", prefixes),
    ]
}

/// Names that are neither variants nor padding: what we and a plain loop take for the same.
fn is_plain(name: &[u8]) -> bool {
    !name.contains(&b'.') && !name.starts_with(b"__pfx_") && !name.starts_with(b"__cfi_")
}

/// Measures all of them.
pub fn run(input: &Input, effort: Effort, report: &mut Report) -> Result<()> {
    for case in cases(input) {
        let texts: Vec<_> = case.patterns.iter().map(PatternText::argument).collect();
        let set = PatternSet::new(case.syntax, &texts, &[], &[])?;
        let read = |source| Tables::read(&input.root, Some(&input.cache()), Wish::Only(source), Some(&set));
        let (cached, memory) = (read(Source::Cache)?, read(Source::Kcore)?);
        let plain = Plain::of(&case)?;
        for tables in [&cached, &memory] {
            check(input, &case, &plain, &tables.matching(&mut set.matcher())?)?;
        }
        let count = |tables: &Tables| tables.matching(&mut set.matcher()).map_or(0, |m| m.iter().count());
        let mut jobs = [
            Job::new(1, || input.functions().filter(|f| plain.matches(&f.name)).count()),
            Job::new(1, || count(&memory)),
            Job::new(1, || count(&cached)),
        ];
        let found = count(&cached);
        let times = measure(effort.rounds, &mut jobs);
        let plain_ns = times[0].median();
        for (how, times) in
            ["plain loop, all expanded", "kcore, tables read", "cache, loaded"].into_iter().zip(&times)
        {
            report.row(Row {
                remark: format!("{found} functions; {:.1} × plain", plain_ns / times.median()),
                ..Row::timed(format!("{}: {how}", case.name), times)
            });
        }
    }
    Ok(())
}

/// Ours has all that the plain loop has, and besides nothing but variants.
fn check(input: &Input, case: &Case, plain: &Plain, matches: &Matches) -> Result<()> {
    let ours: BTreeSet<u64> = matches.iter().map(|found| found.function.address).collect();
    let wanted = input.functions().filter(|f| is_plain(&f.name) && plain.matches(&f.name));
    let wanted: BTreeSet<u64> = wanted.map(|f| f.address).collect();
    ensure!(!wanted.is_empty() && wanted.is_subset(&ours), "{}: not all was found", case.name);
    let more = matches.iter().filter(|found| is_plain(found.function.name));
    for found in more {
        ensure!(plain.matches(found.function.name), "{}: {}", case.name, found.function.name.escape_ascii());
    }
    Ok(())
}
