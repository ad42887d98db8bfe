//! What a read costs: the snapshot's core file read in pieces of several sizes. It is a file in the page cache here; the
//! kernel's own `/proc/kcore` takes more for each read and each page, so that few and large reads gain more there.

use anyhow::{Context, Result};
use fastprobe::tables::kcore::{self, Kcore, Memory};

use crate::{
    Effort,
    input::Input,
    report::{Report, Row, bytes},
    timer::{Job, measure},
};

/// From a few names to more than all of them.
const PIECES: [usize; 4] = [64, 4096, 256 << 10, 4 << 20];

/// Measures it.
pub fn run(input: &Input, effort: Effort, report: &mut Report) -> Result<()> {
    let kcore = Kcore::open(&input.root.kcore())?;
    let start = kcore.info().require("kallsyms_names")?;
    let whole = PIECES[PIECES.len() - 1];
    let read_all = |piece: usize| {
        let mut buffer = vec![0; piece];
        let places = (start..start + whole as u64).step_by(piece);
        places.filter(|&at| kcore.read(at, &mut buffer).is_ok()).count()
    };
    let mut jobs: Vec<Job<'_>> =
        PIECES.iter().map(|&piece| Job::new(whole / piece, move || read_all(piece))).collect();
    for (piece, times) in PIECES.iter().zip(measure(effort.rounds, &mut jobs)) {
        let rate = *piece as f64 / times.median();
        report.row(Row {
            remark: format!("{rate:.1} GB/s"),
            ..Row::timed(format!("one read of {} of core file", bytes(*piece)), &times)
        });
    }
    let tables = kcore::read(&input.root, true)?;
    for step in &tables.rest.steps {
        report.row(Row {
            what: format!("reads for the tables: {}", step.name),
            median: Some(step.took.as_nanos() as f64),
            remark: format!("once; {} reads{}", step.reads, counted(step.name, &tables)),
            ..Row::default()
        });
    }
    let archive = input.root.kcore().metadata().context("the core file is gone")?.len();
    report.row(Row {
        what: "reads for the tables: all".into(),
        held: Some(archive as usize),
        remark: format!("{} reads", tables.rest.steps.iter().map(|step| step.reads).sum::<usize>()),
        ..Row::default()
    });
    Ok(())
}

/// How much a step read.
fn counted(step: &str, tables: &kcore::KcoreTables) -> String {
    match step {
        "symbols" => format!("; {} symbols", tables.core.count()),
        "modules" => format!("; {} modules", tables.rest.modules.len()),
        "ftrace records" => format!("; {} functions", tables.rest.sites.len()),
        "kprobe blacklist" => format!("; {} ranges", tables.rest.blacklist.ranges().len()),
        _ => String::new(),
    }
}
