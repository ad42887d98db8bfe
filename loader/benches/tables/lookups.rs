//! One name looked up: each strategy on the same names.

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::{
    Effort,
    input::{Input, Names},
    report::{Bound, Report, Row, Target},
    strategies::{
        Strategy,
        batch_index::BatchIndex,
        full_expansion::FullExpansion,
        name_ordered::NameOrdered,
        ours::{Cached, Cold},
        token_compare::TokenCompare,
        unindexed::Unindexed,
    },
    timer::{Job, Random, Times, measure},
};

/// Linear expansion takes a thousand times as long as the others.
const SLOW_NAMES: usize = 10;

/// Look-ups after which an index that has not paid for itself never will, for us.
const MAX_PAYBACK: usize = 10_000;

type Make<'i> = Box<dyn Fn() -> Result<Box<dyn Strategy + 'i>> + 'i>;

/// A strategy and how it is made ready.
struct Candidate<'i> {
    name: &'static str,
    make: Make<'i>,
    /// Its tables are made when the kernel is built, so that being ready costs nothing.
    at_build: bool,
    slow: bool,
}

/// What was measured of one.
struct Measured {
    hit: Times,
    miss: Times,
    worst: f64,
    held: usize,
    set_up: Option<Times>,
    /// How long the first look-ups took together, the set-up included.
    first: Vec<f64>,
}

fn candidates(input: &Input) -> Vec<Candidate<'_>> {
    let table = &input.compressed;
    fn candidate<'i>(name: &'static str, at_build: bool, make: Make<'i>) -> Candidate<'i> {
        Candidate { name, make, at_build, slow: false }
    }
    let mut all = vec![
        candidate("linear, full expansion (kernel ≤ 6.1)", true, Box::new(|| Ok(Box::new(Unindexed(table))))),
        candidate(
            "binary, full expansion, markers 1:256 (6.2+)",
            true,
            Box::new(|| Ok(Box::new(FullExpansion(table)))),
        ),
        candidate(
            "binary, compared by tokens, markers 1:256",
            true,
            Box::new(|| Ok(Box::new(TokenCompare(table)))),
        ),
        candidate(
            "names in order, duplicates marked, markers 1:64",
            true,
            Box::new(|| Ok(Box::new(NameOrdered::<64>::new(table)))),
        ),
        candidate(
            "names in order, duplicates marked, markers 1:8",
            true,
            Box::new(|| Ok(Box::new(NameOrdered::<8>::new(table)))),
        ),
        candidate("batch index 1:1 (dynamic)", false, Box::new(|| Ok(Box::new(BatchIndex::new(table))))),
        candidate(
            "fastprobe, cold: the kernel's order",
            false,
            Box::new(|| Ok(Box::new(Cold::new(&input.tables.core)?))),
        ),
        candidate(
            "fastprobe, from its cache (core alone)",
            false,
            Box::new(|| {
                let (root, folder) = input.core_alone();
                Ok(Box::new(Cached::load(&root, &folder)?))
            }),
        ),
        candidate(
            "fastprobe, from its cache (with modules)",
            false,
            Box::new(|| Ok(Box::new(Cached::load(&input.root, &input.cache())?))),
        ),
    ];
    all[0].slow = true;
    all
}

/// Measures all of them.
pub fn run(input: &Input, effort: Effort, report: &mut Report) -> Result<()> {
    let names = input.names(effort.names);
    let candidates = candidates(input);
    let ready = candidates.iter().map(|candidate| (candidate.make)()).collect::<Result<Vec<_>>>()?;
    for (candidate, strategy) in candidates.iter().zip(&ready) {
        check(candidate, &**strategy, &names)?;
    }
    let hits = timed(effort, &candidates, &ready, &names, hit_all);
    let misses = timed(effort, &candidates, &ready, &names, miss_all);
    let mut all = Vec::new();
    for (((candidate, strategy), hit), miss) in candidates.iter().zip(&ready).zip(hits).zip(misses) {
        let (worst, held) = (worst(candidate, &**strategy, &names), strategy.held_bytes());
        let (set_up, first) = if candidate.at_build {
            (None, Vec::new())
        } else {
            let (set_up, first) = set_up(candidate, &names, effort)?;
            (Some(set_up), first)
        };
        all.push(Measured { hit, miss, worst, held, set_up, first });
    }
    rows(&candidates, &all, report);
    report.row(Row {
        remark: "the least that a hash and a record that lie apart can take".into(),
        ..Row::timed(
            "two reads at random places of the cache's file, one after the other".into(),
            &reads(input, effort)?,
        )
    });
    published(report);
    targets(&all, report);
    Ok(())
}

/// Every sampled name leads to its address, and the others to none.
fn check(candidate: &Candidate<'_>, strategy: &dyn Strategy, names: &Names) -> Result<()> {
    let count = if candidate.slow { SLOW_NAMES } else { names.hits.len() };
    for (name, address) in &names.hits[..count] {
        let found = strategy.find(name);
        ensure!(found == Some(*address), "{}: {} gives {found:x?}", candidate.name, name.escape_ascii());
    }
    for name in &names.misses[..count] {
        let found = strategy.find(name);
        ensure!(found.is_none(), "{}: {} gives {found:x?}", candidate.name, name.escape_ascii());
    }
    Ok(())
}

fn hit_all(strategy: &dyn Strategy, names: &Names, count: usize) -> usize {
    names.hits[..count].iter().map(|(name, _)| strategy.find(name).unwrap_or(0) as usize & 1).sum()
}

fn miss_all(strategy: &dyn Strategy, names: &Names, count: usize) -> usize {
    names.misses[..count].iter().filter(|name| strategy.find(name).is_some()).count()
}

fn timed(
    effort: Effort,
    candidates: &[Candidate<'_>],
    ready: &[Box<dyn Strategy + '_>],
    names: &Names,
    work: fn(&dyn Strategy, &Names, usize) -> usize,
) -> Vec<Times> {
    let mut jobs: Vec<Job<'_>> = candidates
        .iter()
        .zip(ready)
        .map(|(candidate, strategy)| {
            let count = if candidate.slow { SLOW_NAMES } else { names.hits.len() };
            Job::new(count, move || work(&**strategy, names, count))
        })
        .collect();
    measure(effort.rounds, &mut jobs)
}

/// Of all names that which takes longest: the median of several look-ups, between which all others come, so that the
/// CPU's caches hold no more of it than in a round of all. Asking the clock is in it, some 20 ns.
fn worst(candidate: &Candidate<'_>, strategy: &dyn Strategy, names: &Names) -> f64 {
    let (count, repeats) = if candidate.slow { (SLOW_NAMES, 3) } else { (names.hits.len(), 9) };
    let sample: Vec<&[u8]> = names.hits[..count].iter().map(|(name, _)| &name[..]).collect();
    let sample = [sample, names.misses[..count].iter().map(|name| &name[..]).collect()].concat();
    let mut times = vec![Times::default(); sample.len()];
    for _ in 0..repeats {
        for (name, times) in sample.iter().zip(&mut times) {
            let started = Instant::now();
            std::hint::black_box(strategy.find(name));
            times.push(started.elapsed().as_nanos() as f64);
        }
    }
    times.iter().map(Times::median).fold(0.0, f64::max)
}

/// How long it takes to be ready, and how long set-up and the first look-ups took together after each of them: medians
/// of several times.
fn set_up(candidate: &Candidate<'_>, names: &Names, effort: Effort) -> Result<(Times, Vec<f64>)> {
    let mut set_up = Times::default();
    let mut first = vec![Times::default(); names.hits.len().min(MAX_PAYBACK)];
    for _ in 0..effort.rounds {
        let started = Instant::now();
        let strategy = (candidate.make)()?;
        set_up.push(started.elapsed().as_nanos() as f64);
        for ((name, _), first) in names.hits.iter().zip(&mut first) {
            std::hint::black_box(strategy.find(name));
            first.push(started.elapsed().as_nanos() as f64);
        }
    }
    Ok((set_up, first.iter().map(Times::median).collect()))
}

/// How long memory takes that is mapped as the cache is: to a place in the part where slots are, and from there to one
/// among the symbols, as far apart as they are for a name. Between them comes all that comes between two look-ups.
fn reads(input: &Input, effort: Effort) -> Result<Times> {
    let file = input.core_alone().1.open()?.context("the cache was written")?;
    let pages = file.len() / 4096;
    let mut random = Random::new();
    let places: Vec<[usize; 2]> = (0..effort.names)
        .map(|_| [(); 2].map(|()| random.below(pages) * 4096 + random.below(4096)))
        .collect();
    let read = || {
        // The second place depends on what the first one has.
        places.iter().map(|[first, second]| file[second ^ usize::from(file[*first] & 1)] as usize).sum()
    };
    let mut other = vec![0_u8; 32 << 20];
    let mut jobs = [
        Job::new(effort.names, read),
        Job::new(1, move || {
            other.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            usize::from(other[0])
        }),
    ];
    let [times, _] = measure(effort.rounds, &mut jobs).try_into().ok().context("two jobs")?;
    Ok(times)
}

/// After how many look-ups it was worth it.
fn pays_back(first: &[f64], without: f64) -> Option<usize> {
    (1..).zip(first).find(|(count, total)| **total <= *count as f64 * without).map(|(count, _)| count)
}

fn rows(candidates: &[Candidate<'_>], all: &[Measured], report: &mut Report) {
    let without = [all[0].hit.median(), all[1].hit.median()];
    for (candidate, measured) in candidates.iter().zip(all) {
        let pays_back =
            measured.set_up.is_some().then(|| without.map(|without| pays_back(&measured.first, without)));
        report.row(Row {
            worst: Some(measured.worst),
            held: Some(measured.held),
            set_up: measured.set_up.as_ref().map(Times::median),
            pays_back,
            remark: if candidate.at_build { "set up by the kernel's build".into() } else { String::new() },
            ..Row::timed(format!("hit: {}", candidate.name), &measured.hit)
        });
        report.row(Row::timed(format!("miss: {}", candidate.name), &measured.miss));
    }
}

/// What others have told of their machines.
fn published(report: &mut Report) {
    const BINARY: &str = "; of the order of binary search here, not of linear";
    for (what, ns, set_up, remark) in [
        ("hit: unindexed", 3811.0, None, BINARY),
        ("miss: unindexed", 3625.0, None, BINARY),
        ("hit: batch index", 246.0, Some(1_037_000.0), ", 184,000 symbols"),
        ("miss: batch index", 196.0, None, ", 184,000 symbols"),
        (
            "names in order, on average",
            204.0,
            None,
            ", 123,312 symbols; names in 50.05 % of their plain size",
        ),
    ] {
        report.row(Row {
            what: what.into(),
            median: Some(ns),
            set_up,
            remark: format!("published, not measured here{remark}"),
            ..Row::default()
        });
    }
}

fn targets(all: &[Measured], report: &mut Report) {
    let [linear, binary, .., batch, cold, core, _with_modules] = all else { return };
    let mut faster = |what, batch: &Times, ours: &Times| {
        report.target(Target {
            what,
            wanted: 5.0,
            measured: batch.median() / ours.median(),
            bound: Bound::AtLeast,
            remark: "times faster, both among the core's symbols",
        });
    };
    faster("one name, cache against batch index: hit", &batch.hit, &core.hit);
    faster("one name, cache against batch index: miss", &batch.miss, &core.miss);
    let mut paid = |what, wanted, measured: &Measured, without: &Measured, remark| {
        let count = pays_back(&measured.first, without.hit.median()).unwrap_or(MAX_PAYBACK);
        report.target(Target { what, wanted, measured: count as f64, bound: Bound::AtMost, remark });
    };
    let (by_line, halved) = (
        "look-ups, against linear expansion; both of the core's symbols",
        "look-ups, against binary search, full expansion; both of the core's symbols",
    );
    paid("set-up paid back, cold", 300.0, cold, linear, by_line);
    paid("set-up paid back, from the cache", 20.0, core, linear, by_line);
    paid("set-up paid back, cold", 300.0, cold, binary, halved);
    paid("set-up paid back, from the cache", 20.0, core, binary, halved);
}
