//! `cargo xtask bench-backends`: the ways to attach on a kernel without kprobe-multi links, and bpftrace.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::{
    setup::{kernels, peers},
    vm::{self, Job},
    workspace,
};

/// `cargo xtask bench-backends`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A kernel of tests/kernels.toml [default: the newest without CONFIG_FPROBE]
    #[arg(long)]
    kernel: Option<String>,
    /// What to compare, with commas: perf:THREADS, tracefs, tracefs+5, fastprobe, bpftrace
    #[arg(long, default_value = "perf:1,perf:4,tracefs,tracefs+5,fastprobe,bpftrace")]
    ways: String,
    /// Functions: GLOB, or GLOB:COUNT for the first ones
    #[arg(default_values = ["kvm*:100", "kvm*", "x*"])]
    sets: Vec<String>,
}

/// With all ways and sets it takes half an hour when emulated.
const TIMEOUT: Duration = Duration::from_secs(2 * 3600);

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let kernel = match &arguments.kernel {
        Some(name) => kernels::find(Some(name))?,
        None => {
            let without = kernels::all()?.into_iter().rfind(|kernel| !kernel.kprobe_multi);
            without.context("every kernel of tests/kernels.toml has CONFIG_FPROBE")?
        }
    };
    let root = peers::ensure()?;
    let prelude = format!("{}{}", vm::load_modules(&kernel), peers::mount(&root)?);
    let words = [vec![root.to_string_lossy().into_owned(), arguments.ways.clone()], arguments.sets.clone()];
    let command = format!("bench-backends {}", vm::join(&words.concat())?);
    let programs = workspace::build_programs()?;
    vm::boot(&kernel, &Job { prelude: &prelude, command: &command, programs: &programs }, TIMEOUT)
}
