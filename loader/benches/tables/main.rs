//! `cargo bench -p fastprobe [-- --quick] [PART…]`: how fast names are found, against the kernel's own ways and
//! published ones; how fast tables are read and patterns matched; what memory that takes. On the tables of a real
//! kernel, which `cargo xtask bench` has made. It fails on a wrong answer, with `--quick` also where a target is missed
//! by far, but for those that are known to be (the table says which).

mod compressed;
mod input;
mod lookups;
mod reads;
mod relocation;
mod report;
mod scans;
mod sources;
mod strategies;
mod timer;

use anyhow::{Result, ensure};

/// With `--quick` a target may be missed by this factor: other work on the machine is no fault.
const MARGIN: f64 = 3.0;

/// How much is done for a number.
#[derive(Debug, Clone, Copy)]
struct Effort {
    rounds: usize,
    /// Names that are looked up.
    names: usize,
}

const QUICK: Effort = Effort { rounds: 5, names: 2_000 };
const FULL: Effort = Effort { rounds: 41, names: 10_000 };

type Part = fn(&input::Input, Effort, &mut report::Report) -> Result<()>;

const PARTS: [(&str, Part); 5] = [
    ("lookups", lookups::run),
    ("relocation", relocation::run),
    ("scans", scans::run),
    ("sources", sources::run),
    ("reads", reads::run),
];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = arguments.iter().position(|word| word == sources::CHILD) {
        return sources::child(&arguments[at + 1..]);
    }
    let quick = arguments.iter().any(|word| word == "--quick");
    let effort = if quick { QUICK } else { FULL };
    let input = input::Input::open()?;
    println!(
        "Kernel {}: {} symbols, {} of the core kernel; {} modules; median and 95th percentile of {} rounds.\n",
        input.release,
        input.symbols.len(),
        input.compressed.count(),
        input.tables.rest.modules.len(),
        effort.rounds
    );
    let mut report = report::Report::default();
    let wanted: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    for (name, part) in PARTS {
        if wanted.is_empty() || wanted.contains(&name) {
            part(&input, effort, &mut report)?;
        }
    }
    report.print();
    let missed = report.missed_by(MARGIN);
    ensure!(!quick || missed.is_empty(), "missed by more than {MARGIN} times: {}", missed.join("; "));
    Ok(())
}
