//! Whole commands, each less what it takes for nothing: from the start until it says that it has attached, and from
//! there to its end.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{Function, Took};

/// Until all is attached, and from there to the end.
type Phases = (Duration, Duration);

/// fastprobe, which an empty run attaches to one function.
pub fn fastprobe(functions: &[Function]) -> Result<Took> {
    const FILE: &str = "/tmp/bench-backends.names";
    let run = |names: &[Function]| {
        fs::write(FILE, names.iter().map(|f| format!("{}\n", f.name)).collect::<String>())?;
        let mut command = Command::new("fastprobe");
        command.args(["--backend", "single", "--json", "-d", "0", &format!("@{FILE}")]);
        timed(&mut command, "{\"schema\":1,\"type\":\"attach\"")
    };
    beyond_empty(&run, functions, &functions[..1])
}

/// bpftrace, which an empty run attaches to nothing but the timer that ends it.
pub fn bpftrace(functions: &[Function], root: &Path) -> Result<Took> {
    const END: &str = "interval:ms:100 { printf(\"attached\\n\"); exit(); }";
    let run = |functions: &[Function]| {
        let probes: Vec<_> = functions.iter().map(|f| format!("kprobe:{}", f.name)).collect();
        let script = match &probes[..] {
            [] => END.to_owned(),
            probes => format!("{} {{ @[func] = count(); }} {END}", probes.join(",")),
        };
        // The kernel takes no longer word than this on a command line.
        let file = root.join("tmp/script.bt");
        fs::write(&file, script)?;
        let mut command = Command::new("chroot");
        command.arg(root).args(["bpftrace", "/tmp/script.bt"]);
        command.env("BPFTRACE_MAX_PROBES", "100000").env("HOME", "/tmp");
        timed(&mut command, "attached")
    };
    // The first start reads its libraries from the disk.
    run(&[])?;
    beyond_empty(&run, functions, &[])
}

fn beyond_empty(
    run: &dyn Fn(&[Function]) -> Result<Phases>,
    functions: &[Function],
    empty: &[Function],
) -> Result<Took> {
    let (attach_empty, detach_empty) = run(empty).context("an empty run")?;
    let (attach, detach) = run(functions)?;
    Ok(Took {
        attached: functions.len(),
        attach: attach.saturating_sub(attach_empty),
        detach: detach.saturating_sub(detach_empty),
    })
}

/// How long it takes until a line that starts like that, and from there to the end.
fn timed(command: &mut Command, attached: &str) -> Result<Phases> {
    let started = Instant::now();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut errors = child.stderr.take().context("no pipe")?;
    let words = std::thread::spawn(move || {
        let mut words = String::new();
        errors.read_to_string(&mut words).map(|_| words)
    });
    let mut at = None;
    for line in BufReader::new(child.stdout.take().context("no pipe")?).lines() {
        if line?.starts_with(attached) {
            at = at.or(Some(started.elapsed()));
        }
    }
    let status = child.wait()?;
    let took = started.elapsed();
    let words = words.join().ok().context("a thread died")??;
    match at {
        Some(at) if status.success() => Ok((at, took - at)),
        _ => {
            let last: Vec<&str> = words.lines().rev().take(2).collect();
            bail!("{status} after {:.0} s: {}", took.as_secs_f64(), last.join(" / "))
        }
    }
}
