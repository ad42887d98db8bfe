//! The tests that run inside VMs: built once, then run on every kernel.

use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    setup::{
        kernels::{self, Kernel},
        vm_tools,
    },
    test::{Step, timed},
    vm::{self, Job},
    workspace,
};

/// The tests of one kernel take ten to fifteen minutes when emulated, two kernels at a time.
const TIMEOUT: Duration = Duration::from_secs(2000);

/// Set, tests that take long run whole.
const WHOLE: &str = "FASTPROBE_WHOLE";

/// `cargo xtask vm-tests`: the tests on one kernel, all else made before.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A kernel of tests/kernels.toml
    kernel: String,
    #[command(flatten)]
    built: Built,
    /// Words for the test program
    #[arg(last = true)]
    filter: Vec<String>,
}

/// What was built for the tests.
#[derive(Debug, clap::Args)]
pub struct Built {
    /// The folder with fastprobe and the load for kvm
    programs: PathBuf,
    /// The test program
    test: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    on_kernel(&kernels::find(Some(&arguments.kernel))?, &arguments.built, &arguments.filter)
}

/// What the step is called.
pub fn name(kernel: &Kernel) -> String {
    format!("VM tests on {}", kernel.name)
}

/// Gets and builds whatever the tests on `kernels` need: side by side they would wait for each other.
pub fn prepare(kernels: &[Kernel]) -> Result<Built> {
    vm_tools::ensure()?;
    for kernel in kernels {
        kernels::fetch(kernel)?;
    }
    Ok(Built { programs: workspace::build_programs()?, test: build()? })
}

/// Runs the tests of several kernels, as many at a time as this machine has CPUs: an emulated VM keeps one busy.
/// Each is an xtask of its own, whose lines come out with the kernel's name before them.
pub fn side_by_side(kernels: &[Kernel], built: &Built, filter: &[String]) -> Vec<Step> {
    let at_a_time = thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let next = AtomicUsize::new(0);
    let steps = Mutex::new(Vec::new());
    // The newest has the most functions, and goes first.
    let kernels: Vec<&Kernel> = kernels.iter().rev().collect();
    thread::scope(|scope| {
        for _ in 0..at_a_time.min(kernels.len()) {
            scope.spawn(|| {
                while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let step = timed(&name(kernel), || in_own_process(kernel, built, filter));
                    steps.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(step);
                }
            });
        }
    });
    steps.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn in_own_process(kernel: &Kernel, built: &Built, filter: &[String]) -> Result<()> {
    let mut command = Command::new(std::env::current_exe().context("this program is gone")?);
    command.args(["vm-tests", &kernel.name]).args([&built.programs, &built.test]).arg("--").args(filter);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("can't start xtask")?;
    let (out, err) = (child.stdout.take().context("no pipe")?, child.stderr.take().context("no pipe")?);
    thread::scope(|scope| {
        scope.spawn(|| prefix_lines(&kernel.name, out));
        scope.spawn(|| prefix_lines(&kernel.name, err));
    });
    let status = child.wait()?;
    ensure!(status.success(), "{status}");
    Ok(())
}

fn prefix_lines(prefix: &str, from: impl Read) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            eprintln!("[{prefix}] {text}");
        }
        line.clear();
    }
}

/// Boots the kernel and runs the test program there, all but what is for other kernels.
pub fn on_kernel(kernel: &Kernel, built: &Built, filter: &[String]) -> Result<()> {
    let other_kernels = if kernel.kprobe_multi { "without_fprobe::" } else { "multi::" };
    let mut words = vec![built.test.to_string_lossy().into_owned()];
    words.extend(["--ignored", "--test-threads=1", "--skip", other_kernels].map(String::from));
    words.extend_from_slice(filter);
    let whole = if std::env::var_os(WHOLE).is_some() { format!("{WHOLE}=1 ") } else { String::new() };
    let command = format!(
        "{whole}{}; code=$?\nif {}; then echo 'the kernel complained: see above' >&2; exit 1; fi\nexit $code",
        vm::join(&words)?,
        vm::CHECK_KERNEL_LOG
    );
    let job = Job { prelude: &vm::load_modules(kernel), command: &command, programs: &built.programs };
    vm::expect_success(kernel, &job, TIMEOUT)
}

/// Builds the VM tests; gives the program.
fn build() -> Result<PathBuf> {
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
