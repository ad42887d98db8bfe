//! What a loader of modules does: every symbol that one large module leaves undefined is looked up.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use fastprobe::{
    module_file,
    pattern::{PatternSet, PatternText, Syntax},
    tables::{Source, Tables, Wish},
};

use crate::{
    Effort,
    compressed::buffer,
    input::Input,
    report::{Report, Row},
    timer::{Job, measure},
};

/// The module whose file xtask puts beside the snapshot.
const MODULE: &str = "amdgpu";

/// A naive scan takes milliseconds a name.
const SCANNED: usize = 10;

/// Measures it.
pub fn run(input: &Input, effort: Effort, report: &mut Report) -> Result<()> {
    let imports = module_file::imports(&input.place, &input.release, MODULE)?;
    let step = imports.len() / SCANNED;
    let sample: Vec<&[u8]> = imports.iter().step_by(step).take(SCANNED).map(|name| &**name).collect();
    for name in &sample {
        ensure!(scan(input, name) == resolve(input, &[name])?, "{}", name.escape_ascii());
    }
    let all: Vec<&[u8]> = imports.iter().map(|name| &**name).collect();
    let mut jobs = [
        Job::new(SCANNED, || sample.iter().map(|name| scan(input, name).len()).sum()),
        Job::new(all.len(), || resolve(input, &all).map_or(0, |found| found.len())),
    ];
    let times = measure(effort.rounds, &mut jobs);
    let found = resolve(input, &all)?.len();
    for (what, times) in ["naive scan", "fastprobe, cache loaded for it"].into_iter().zip(&times) {
        let total = times.median() * all.len() as f64 / 1e6;
        report.row(Row {
            remark: format!("{total:.1} ms for all {}; {found} are functions", all.len()),
            ..Row::timed(format!("one import of {MODULE}: {what}"), times)
        });
    }
    Ok(())
}

/// Every name expanded and compared, in the core and then in each module.
fn scan(input: &Input, name: &[u8]) -> BTreeSet<u64> {
    let table = &input.compressed;
    let (mut at, mut buffer, mut found) = (0, buffer(), BTreeSet::new());
    for number in 0..table.count() {
        let (codes, next) = table.codes(at);
        if table.expand(codes, &mut buffer) == name && input.symbols[number].is_function {
            found.insert(table.address(number));
        }
        at = next;
    }
    let modules = input.symbols[table.count()..].iter();
    found.extend(
        modules.filter(|symbol| symbol.is_function && symbol.name == name).map(|symbol| symbol.address),
    );
    found
}

/// What `--imports-of` does with a cache.
fn resolve(input: &Input, names: &[&[u8]]) -> Result<BTreeSet<u64>> {
    let text = |name: &&[u8]| PatternText::symbol(None, &String::from_utf8_lossy(name));
    let names: Vec<_> = names.iter().map(text).collect();
    let set = PatternSet::new(Syntax::Glob, &names, &[], &[])?;
    let tables = Tables::read(&input.root, Some(&input.cache()), Wish::Only(Source::Cache), Some(&set))?;
    let matches = tables.matching(&mut set.matcher())?;
    Ok(matches.iter().map(|found| found.function.address).collect())
}
