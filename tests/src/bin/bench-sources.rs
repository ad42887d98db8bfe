//! How long it takes to know the functions that match, from each source of the tables of this kernel: text files, the
//! kernel's memory, the cache. Started by `cargo xtask bench-sources` in a VM.
//!
//! `bench-sources ROUNDS PATTERN=RATIO…`: the RATIO is how many times faster than text memory is wanted to be.

use std::{process::ExitCode, time::Instant};

use anyhow::{Context, Result, ensure};
use fastprobe::{
    pattern::{PatternSet, PatternText, Syntax},
    tables::{Root, Source, Tables, Wish, cache::Folder},
};

/// How many times faster than memory the cache is wanted to be.
const CACHE_RATIO: f64 = 20.0;

const SOURCES: [(&str, Source); 3] =
    [("text", Source::Text), ("kcore", Source::Kcore), ("cache", Source::Cache)];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-sources: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let rounds: usize = words.next().context("ROUNDS are missing")?.parse()?;
    ensure!(rounds > 0, "no rounds");
    let (root, cache) = (Root::machine(), Folder::of_this_user());
    println!("Kernel {}, medians of {rounds} rounds.\n", root.release()?);
    println!("| pattern | functions | text ms | kcore ms | cache ms | text : kcore | kcore : cache |");
    println!("|---|---:|---:|---:|---:|---|---|");
    cache.clear()?;
    ensure!(
        Tables::read(&root, Some(&cache), Wish::Auto, None)?.store(&root, &cache)?,
        "no cache was written"
    );
    for word in words {
        let (pattern, wanted) = word.rsplit_once('=').context("PATTERN=RATIO")?;
        println!("{}", row(&root, &cache, pattern, wanted.parse()?, rounds)?);
    }
    Ok(())
}

fn row(root: &Root, cache: &Folder, pattern: &str, wanted: f64, rounds: usize) -> Result<String> {
    let mut times = [const { Vec::new() }; SOURCES.len()];
    let mut counts = Vec::new();
    for _ in 0..rounds {
        for ((_, source), times) in SOURCES.iter().zip(&mut times) {
            let started = Instant::now();
            counts.push(functions(root, cache, *source, pattern)?);
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
    }
    let functions = counts[0];
    ensure!(functions > 0 && counts.iter().all(|count| *count == functions), "{pattern}: {counts:?}");
    let [text, kcore, kept] = times.map(median);
    let verdict = |ratio: f64, wanted: f64| {
        format!("{ratio:.1} of {wanted}, {}", if ratio >= wanted { "met" } else { "missed" })
    };
    let cached = match pattern.starts_with('*') {
        // All names have to be looked at, whatever they come from.
        true => format!("{:.1}", kcore / kept),
        false => verdict(kcore / kept, CACHE_RATIO),
    };
    let memory = verdict(text / kcore, wanted);
    Ok(format!("| `{pattern}` | {functions} | {text:.0} | {kcore:.1} | {kept:.2} | {memory} | {cached} |"))
}

/// Reads and matches, as a run does.
fn functions(root: &Root, cache: &Folder, source: Source, pattern: &str) -> Result<usize> {
    let patterns = PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[])?;
    let tables = Tables::read(root, Some(cache), Wish::Only(source), Some(&patterns))?;
    Ok(tables.matching(&mut patterns.matcher())?.iter().count())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
