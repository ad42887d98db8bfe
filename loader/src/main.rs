//! The `fastprobe` command.

mod cli;

use std::{process::ExitCode, time::Instant};

fn main() -> ExitCode {
    // First of all, so that `total` in the report leaves nothing out.
    let started = Instant::now();
    cli::run(started)
}
