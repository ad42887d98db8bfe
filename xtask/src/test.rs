//! `cargo xtask test`: everything that CI checks.

use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::{
    ebpf, lint, process, say,
    setup::kernels::{self, Kernel},
    vm::{self, Job},
    workspace,
};

/// The tests of one kernel take two to four minutes when emulated on two cores.
const VM_TIMEOUT: Duration = Duration::from_secs(1500);

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

/// Runs the command: all steps, also after one has failed.
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
    if !arguments.no_vm {
        for kernel in chosen(&arguments.kernels)? {
            steps.run(&format!("VM tests on {}", kernel.name), || on_kernel(&kernel, &arguments.filter));
        }
    }
    Ok(steps.report())
}

fn chosen(names: &[String]) -> Result<Vec<Kernel>> {
    if names.is_empty() {
        kernels::all()
    } else {
        names.iter().map(|name| kernels::find(Some(name))).collect()
    }
}

/// Boots the kernel and runs the test program there, all but what is for other kernels.
fn on_kernel(kernel: &Kernel, filter: &[String]) -> Result<()> {
    let programs = workspace::build_programs()?;
    let test = build_vm_tests()?;
    let other_kernels = if kernel.kprobe_multi { "without_fprobe::" } else { "multi::" };
    let mut words = vec![test.to_string_lossy().into_owned()];
    words.extend(["--ignored", "--test-threads=1", "--skip", other_kernels].map(String::from));
    words.extend_from_slice(filter);
    let command = format!(
        "{}; code=$?\nif {}; then echo 'the kernel complained: see above' >&2; exit 1; fi\nexit $code",
        vm::join(&words)?,
        vm::CHECK_KERNEL_LOG
    );
    let job = Job { prelude: &vm::load_modules(kernel), command: &command, programs: &programs };
    vm::expect_success(kernel, &job, VM_TIMEOUT)
}

/// Builds the VM tests; gives the program.
fn build_vm_tests() -> Result<PathBuf> {
    let output = workspace::cargo()?
        .args(["test", "--locked", "--release", "-p", "fastprobe-tests", "--test", "vm", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .context("can't start cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let programs = messages.filter(|message| message["target"]["name"] == "vm");
    programs
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
        .context("cargo built no VM tests")
}

/// What was done, how long it took, and how it ended.
#[derive(Debug, Default)]
struct Steps {
    done: Vec<(String, Duration, Result<()>)>,
}

impl Steps {
    fn run(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        say::line(&format!("── {name}"));
        let started = Instant::now();
        let result = work();
        if let Err(error) = &result {
            say::line(&format!("{name} failed: {error:#}"));
        }
        self.done.push((name.into(), started.elapsed(), result));
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
