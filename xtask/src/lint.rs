//! `cargo xtask lint`: format and clippy, warnings as errors.

use anyhow::Result;

use crate::{ebpf, process, say, setup::toolchain, workspace};

/// Runs the command.
pub fn run() -> Result<()> {
    say::line("format");
    process::run(workspace::cargo()?.args(["fmt", "--all", "--check"]))?;
    say::line("clippy, host");
    process::run(workspace::cargo()?.args([
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    say::line("clippy, BPF");
    let toolchain = toolchain::ensure()?;
    process::run(ebpf::cargo(&toolchain, "clippy")?.args(["--", "-D", "warnings"]))
}
