//! What the VM tests have in common: running `fastprobe`, asking the kernel what is attached, and an oracle.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The command under test, from `PATH`.
pub fn fastprobe(arguments: &[&str]) -> Command {
    let mut command = Command::new("fastprobe");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs fastprobe to its end.
///
/// # Errors
///
/// When it can't be started.
pub fn run(arguments: &[&str]) -> Result<Output> {
    fastprobe(arguments).output().context("can't start fastprobe: is it on PATH?")
}

/// The lines of a successful `--json` run, parsed.
///
/// # Errors
///
/// When the run fails, with its standard error.
pub fn json(arguments: &[&str]) -> Result<Vec<Value>> {
    let output = run(arguments)?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    output
        .stdout
        .split(|&b| b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| Ok(serde_json::from_slice(l)?))
        .collect()
}

/// A counting `fastprobe --json` that has attached.
pub struct Running {
    child: Kept,
    output: BufReader<ChildStdout>,
    /// Its `attach` object.
    pub attach: Value,
}

/// A process that ends with the test, however that ends.
struct Kept(Option<Child>);

impl Kept {
    fn get(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is given away last")
    }

    fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended already.
            let _ended = child.kill();
            let _status = child.wait();
        }
    }
}

impl Running {
    /// Starts it and waits until it has attached.
    ///
    /// # Errors
    ///
    /// When it ends before that.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        Self::spawn(&mut fastprobe(&[&["--json"], arguments].concat()))
    }

    /// The same of a command that has `--json` among its arguments.
    ///
    /// # Errors
    ///
    /// When it ends before that.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut output = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        if line.is_empty() {
            let mut words = String::new();
            child.stderr.take().context("no pipe")?.read_to_string(&mut words)?;
            bail!("fastprobe ended before it attached: {}: {words}", child.wait()?);
        }
        let attach = serde_json::from_str(&line)?;
        Ok(Self { child: Kept(Some(child)), output, attach })
    }

    /// Its folder in procfs.
    pub fn process(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}", self.child.id()))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the child was not waited for yet, so the number is still its own.
        let sent = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
        assert_eq!(sent, 0, "can't signal fastprobe");
    }

    /// Closes the reading end of its standard output and of its standard error.
    pub fn hang_up(self) -> Child {
        let Self { mut child, output, .. } = self;
        drop((output, child.get().stderr.take()));
        child.0.take().expect("it is given away last")
    }

    /// Interrupts it as Ctrl-C does, and gives what it prints until it ends: its counts and its summary.
    ///
    /// # Errors
    ///
    /// When it ends with anything but 0 or says something else.
    pub fn finish(mut self) -> Result<(Value, Value)> {
        self.signal(libc::SIGINT);
        self.end()
    }

    /// Waits for its end: its last counts and its summary.
    ///
    /// # Errors
    ///
    /// When it ends with anything but 0 or says something else.
    pub fn end(&mut self) -> Result<(Value, Value)> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        let status = self.child.get().wait()?;
        ensure!(status.success(), "fastprobe: {status}: {text}");
        let mut lines = text.lines().rev();
        let mut next = |kind: &str| -> Result<Value> {
            let value: Value = serde_json::from_str(lines.next().context("a line is missing")?)?;
            ensure!(value["type"] == kind, "expected {kind}: {value}");
            Ok(value)
        };
        let summary = next("summary")?;
        Ok((next("counts")?, summary))
    }
}

/// The hits of every function called `name`, from a `counts` object.
pub fn hits(counts: &Value, name: &str) -> u64 {
    let rows = counts["functions"].as_array().into_iter().flatten();
    rows.filter(|row| row["function"] == name).filter_map(|row| row["hits"].as_u64()).sum()
}

/// What ftrace says is hooked at this moment, by anybody.
///
/// # Errors
///
/// When the kernel's file can't be read.
pub fn enabled_functions() -> Result<Vec<String>> {
    let text = fs::read_to_string("/sys/kernel/tracing/enabled_functions")?;
    Ok(text.lines().map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect())
}

/// The addresses in a list of function objects.
///
/// # Errors
///
/// When one has none.
pub fn addresses(functions: &Value) -> Result<BTreeSet<u64>> {
    let list = functions.as_array().context("not a list")?;
    let parse = |f: &Value| {
        Ok(u64::from_str_radix(f["address"].as_str().context("no address")?.trim_start_matches("0x"), 16)?)
    };
    list.iter().map(parse).collect()
}

/// Calls a system call that nothing else in the VM uses: `sched_get_priority_max`.
pub fn call_rare_system_call(times: u64) {
    for _ in 0..times {
        // SAFETY: takes a number and gives a number.
        let highest = unsafe { libc::syscall(libc::SYS_sched_get_priority_max, libc::SCHED_FIFO) };
        assert_eq!(highest, 99);
    }
}

/// The function behind [`call_rare_system_call`] on x86-64.
pub const RARE_FUNCTION: &str = "__x64_sys_sched_get_priority_max";
