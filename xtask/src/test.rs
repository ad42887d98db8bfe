//! `cargo xtask test`: everything that CI checks.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{bench, ebpf, lint, process, say, setup::kernels, vm_tests, workspace};

/// `cargo xtask test`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only this kernel of tests/kernels.toml, and nothing but its VM tests; may be repeated
    #[arg(long = "kernel")]
    kernels: Vec<String>,
    /// Leave the VM tests out
    #[arg(long, conflicts_with = "kernels")]
    no_vm: bool,
    /// Words for the test program in the VM: parts of the names of tests, or its options
    #[arg(last = true)]
    filter: Vec<String>,
}

/// Runs the command: all steps, also after one has failed, but for those that need what it should have made.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let mut steps = Steps::default();
    if arguments.kernels.is_empty() {
        steps.run("lint", lint::run);
        steps.run("unit and doc tests", || {
            process::run(workspace::cargo()?.args(["test", "--locked", "--workspace"]))
        });
        steps.run("documentation", || {
            process::run(
                workspace::cargo()?
                    .args(["doc", "--locked", "--no-deps", "-p", "fastprobe", "-p", "probe-ebpf", "--lib"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
            )
        });
        steps.run("eBPF object", ebpf::check);
    }
    if arguments.kernels.is_empty() && !arguments.no_vm {
        // Before the VMs, which would be measured with it.
        steps.run("benchmarks, quick", bench::smoke);
    }
    let kernels = if arguments.no_vm { Vec::new() } else { kernels::chosen(&arguments.kernels)? };
    match &kernels[..] {
        [] => {}
        [kernel] => steps.run(&vm_tests::name(kernel), || {
            let built = vm_tests::prepare(&kernels)?;
            vm_tests::on_kernel(kernel, &built, &arguments.filter)
        }),
        several => {
            let mut built = None;
            steps.run("VM, kernels and test programs", || {
                built = Some(vm_tests::prepare(several)?);
                Ok(())
            });
            if let Some(built) = built {
                steps.done.extend(vm_tests::side_by_side(several, &built, &arguments.filter));
            }
        }
    }
    Ok(steps.report())
}

/// One step: its name, how long it took, and how it ended.
pub type Step = (String, Duration, Result<()>);

/// What was done.
#[derive(Debug, Default)]
struct Steps {
    done: Vec<Step>,
}

/// Does a step.
pub fn timed(name: &str, work: impl FnOnce() -> Result<()>) -> Step {
    say::line(&format!("── {name}"));
    let started = Instant::now();
    let result = work();
    if let Err(error) = &result {
        say::line(&format!("{name} failed: {error:#}"));
    }
    (name.into(), started.elapsed(), result)
}

impl Steps {
    fn run(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        self.done.push(timed(name, work));
    }

    /// Prints the table; gives the exit code. The last line is for CI to read.
    fn report(&self) -> u8 {
        say::line("──");
        for (name, took, result) in &self.done {
            let verdict = if result.is_ok() { "passed" } else { "FAILED" };
            say::line(&format!("{verdict}  {:>6.1} s  {name}", took.as_secs_f64()));
        }
        let failed = self.done.iter().filter(|(_, _, result)| result.is_err()).count();
        println!("steps: {} passed, {failed} failed", self.done.len() - failed);
        u8::from(failed > 0)
    }
}
