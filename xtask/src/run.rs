//! `cargo xtask run`: fastprobe, here or in a VM.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{
    say,
    setup::kernels,
    vm::{self, Job},
    workspace,
};

/// A VM that counts until Ctrl-C may well run for a day.
const TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// `cargo xtask run`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// fastprobe's own arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs the command; gives fastprobe's exit code.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let programs = workspace::build_programs()?;
    match why_not_here() {
        None => {
            say::line("running here");
            here(&programs, &arguments.arguments)
        }
        Some(why) => {
            let kernel = kernels::find(None)?;
            say::line(&format!("{why}: running in a VM with kernel {}, kvm loaded and at work", kernel.name));
            in_vm(&kernel, &programs, &arguments.arguments)
        }
    }
}

fn here(programs: &Path, arguments: &[String]) -> Result<u8> {
    // Ctrl-C reaches both of us; fastprobe ends in order, and we have nothing to do but wait.
    ctrlc::set_handler(|| {}).context("can't listen for signals")?;
    let status =
        Command::new(programs.join("fastprobe")).args(arguments).status().context("can't start fastprobe")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn in_vm(kernel: &kernels::Kernel, programs: &Path, arguments: &[String]) -> Result<u8> {
    let prelude = format!("{}kvm-load </dev/null >/dev/null 2>&1 &\n", vm::load_modules(kernel));
    // `exec`: the exit code after Ctrl-C is to be fastprobe's, not that of a shell around it.
    let command = format!("exec fastprobe {}", vm::join(arguments)?);
    vm::boot(kernel, &Job { prelude: &prelude, command: &command, programs }, TIMEOUT)
}

/// Why this machine's own kernel can't be used, if it can't.
fn why_not_here() -> Option<&'static str> {
    // SAFETY: geteuid only reads.
    if unsafe { libc::geteuid() } != 0 {
        return Some("not root");
    }
    let traceable = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"]
        .iter()
        .any(|folder| Path::new(folder).join("available_filter_functions").exists());
    if !traceable {
        return Some("this machine's kernel has no list of traceable functions");
    }
    // The function that makes kprobe-multi links is there in all kernels; what it calls is not.
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let fprobe = symbols.lines().any(|line| line.ends_with(" register_fprobe_ips"));
    (!fprobe).then_some("this machine's kernel was built without CONFIG_FPROBE")
}
