//! Compares the ways to attach one program to many functions on a kernel without kprobe-multi links: prototypes of the
//! routes that there are, fastprobe, and bpftrace. Started by `cargo xtask bench-backends` in a VM.
//!
//! `bench-backends PEERS WAYS SET…`: PEERS is the root folder of a Debian with bpftrace; WAYS some of
//! `perf:THREADS,tracefs,tracefs+5,fastprobe,bpftrace`; a SET is `GLOB` or `GLOB:COUNT`, the first functions that match.

mod commands;
mod routes;

use std::{collections::HashMap, path::Path, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use fastprobe::{
    pattern::{PatternSet, PatternText, Syntax},
    plan::{Policy, plan},
    tables::{Root, Tables, Wish},
};

/// What a way to attach took.
#[derive(Debug, Clone, Copy)]
pub struct Took {
    attached: usize,
    attach: Duration,
    detach: Duration,
}

/// A function: its name, and the address of its ftrace record.
#[derive(Debug)]
pub struct Function {
    name: String,
    site: u64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-backends: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let peers = words.next().context("PEERS is missing")?;
    let ways = words.next().context("WAYS are missing")?;
    println!("| functions | way | attached | attach s | detach s |");
    println!("|---|---|---:|---:|---:|");
    for set in words {
        let functions = functions(&set)?;
        for way in ways.split(',') {
            match take(way, &functions, Path::new(&peers)) {
                Ok(Took { attached, attach, detach }) => {
                    let (attach, detach) = (attach.as_secs_f64(), detach.as_secs_f64());
                    println!(
                        "| `{set}` {} | {way} | {attached} | {attach:.2} | {detach:.2} |",
                        functions.len()
                    );
                }
                Err(error) => println!("| `{set}` {} | {way} | fails: {error:#} | | |", functions.len()),
            }
        }
    }
    Ok(())
}

fn take(way: &str, functions: &[Function], peers: &Path) -> Result<Took> {
    let (name, offset) = way.split_once('+').unwrap_or((way, "0"));
    let offset: u64 = offset.parse()?;
    let sites: Vec<u64> = functions.iter().map(|function| function.site + offset).collect();
    match name.split_once(':') {
        Some(("perf", threads)) => routes::perf(&sites, threads.parse()?),
        _ => match name {
            "tracefs" => routes::tracefs(&sites),
            "fastprobe" => commands::fastprobe(functions),
            "bpftrace" => commands::bpftrace(functions, peers),
            _ => anyhow::bail!("no way is called {way}"),
        },
    }
}

/// What a set names, but functions whose name another symbol has, too: bpftrace can't attach to those.
fn functions(set: &str) -> Result<Vec<Function>> {
    let (glob, count) = match set.split_once(':') {
        Some((glob, count)) => (glob, count.parse()?),
        None => (set, usize::MAX),
    };
    let patterns = PatternSet::new(Syntax::Glob, &[PatternText::argument(glob)], &[], &[])?;
    let tables = Tables::read(&Root::machine(), None, Wish::Auto, Some(&patterns))?;
    let matches = tables.matching(&mut patterns.matcher())?;
    let symbols = std::fs::read_to_string("/proc/kallsyms").context("can't read /proc/kallsyms")?;
    let mut named = HashMap::new();
    for name in symbols.lines().filter_map(|line| line.split_whitespace().nth(2)) {
        *named.entry(name).or_insert(0) += 1;
    }
    let functions = plan(&matches, Policy::default()).targets.into_iter().map(|target| Function {
        name: String::from_utf8_lossy(target.function.name).into_owned(),
        site: target.site,
    });
    Ok(functions.filter(|function| named.get(&*function.name) == Some(&1)).take(count).collect())
}
