//! The project's own commands: `cargo xtask help`.

mod bench;
mod bench_backends;
mod bench_sources;
mod cache;
mod ebpf;
mod lint;
mod process;
mod run;
mod say;
mod setup;
mod test;
mod vm;
mod vm_tests;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  cargo xtask run -- 'kvm*' -d 3        count calls for three seconds, here or in a VM
  cargo xtask test --kernel 7 -- exact  the VM tests with “exact” in their names, on one kernel

Toolchain, kernels and VM are set up on first use, in $FASTPROBE_CACHE or ~/.cache/fastprobe.";

/// The project's own commands.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask", after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run fastprobe: here as root where the kernel allows it, else in a VM with kvm at work
    Run(run::Arguments),
    /// Everything that CI checks: lint, unit and doc tests, the eBPF object, quick benchmarks, the VM tests on every
    /// kernel
    Test(test::Arguments),
    /// Check format and run clippy, for the host and for BPF
    Lint,
    /// Build probe-ebpf/objects from their sources
    Ebpf(ebpf::Arguments),
    /// Measure how names are found and tables read, on a real kernel's tables, beside the kernel's own ways
    Bench(bench::Arguments),
    /// Boot a kernel and run a shell command there as root, with fastprobe on PATH
    Vm(vm::Arguments),
    /// Compare the ways to attach where there are no kprobe-multi links, and bpftrace: half an hour
    BenchBackends(bench_backends::Arguments),
    /// Measure how long the kernel's tables take from text files, the kernel's memory and the cache, on every kernel
    BenchSources(bench_sources::Arguments),
    /// What `test` starts for each kernel
    #[command(hide = true)]
    VmTests(vm_tests::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Test(arguments) => test::run(&arguments),
        Command::Lint => lint::run().map(|()| 0),
        Command::Ebpf(arguments) => ebpf::run(&arguments).map(|()| 0),
        Command::Bench(arguments) => bench::run(&arguments).map(|()| 0),
        Command::Vm(arguments) => vm::run(&arguments),
        Command::BenchBackends(arguments) => bench_backends::run(&arguments),
        Command::BenchSources(arguments) => bench_sources::run(&arguments),
        Command::VmTests(arguments) => vm_tests::run(&arguments).map(|()| 0),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("xtask: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_called_by_cargo() {
        let mut clap = Arguments::command();
        clap.clone().debug_assert();
        let help = clap.render_help().to_string();
        assert!(help.contains("Usage: cargo xtask <COMMAND>"), "{help}");
        assert!(!help.contains("vm-tests"), "{help}");
    }
}
