//! `cargo xtask bench-sources`: how long it takes to know the functions that match, from text files, the kernel's memory
//! and the cache, on real kernels.

use std::time::Duration;

use anyhow::Result;

use crate::{
    setup::kernels,
    vm::{self, Job},
    workspace,
};

/// `cargo xtask bench-sources`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A kernel of tests/kernels.toml; may be repeated [default: all]
    #[arg(long = "kernel")]
    kernels: Vec<String>,
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// GLOB=RATIO: how many times faster than text memory is wanted to be
    #[arg(default_values = ["kvm*=20", "*x*=10"])]
    patterns: Vec<String>,
}

/// Reading the text files takes ten seconds when emulated.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Runs the command; gives the exit code of the first that failed.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let kernels = kernels::chosen(&arguments.kernels)?;
    let programs = workspace::build_programs()?;
    let words = [vec![arguments.rounds.to_string()], arguments.patterns.clone()].concat();
    let command = format!("bench-sources {}", vm::join(&words)?);
    let mut failed = 0;
    for kernel in &kernels {
        let prelude = vm::load_modules(kernel);
        let job = Job { prelude: &prelude, command: &command, programs: &programs };
        let code = vm::boot(kernel, &job, TIMEOUT)?;
        failed = if failed == 0 { code } else { failed };
    }
    Ok(failed)
}
