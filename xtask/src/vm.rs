//! `cargo xtask vm`: boots a kernel in QEMU through virtme-ng and runs a command there.
//!
//! The guest sees the host's files: all of them read-only, the checkout, the build folder and the cache as they
//! are. What the command prints comes through a channel of its own, byte for byte.

use std::{
    fs,
    io::{self, IsTerminal, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    cache, say,
    setup::{kernels, kernels::Kernel, vm_tools},
    workspace,
};

/// How long a command has to end after it was interrupted.
const GRACE: Duration = Duration::from_secs(20);

/// `cargo xtask vm`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// A kernel of tests/kernels.toml [default: the newest]
    #[arg(long)]
    kernel: Option<String>,
    /// Seconds after which the VM is killed
    #[arg(long, default_value_t = 900)]
    timeout: u64,
    /// What to run there: a shell line as one word, or a program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs the command; gives the exit code of what ran in the VM.
pub fn run(arguments: &Arguments) -> Result<u8> {
    let kernel = kernels::find(arguments.kernel.as_deref())?;
    let line = match &arguments.command[..] {
        [line] => line.clone(),
        words => join(words)?,
    };
    let programs = workspace::build_programs()?;
    boot(
        &kernel,
        &Job { prelude: "", command: &line, programs: &programs },
        Duration::from_secs(arguments.timeout),
    )
}

/// Words as a shell line.
///
/// # Errors
///
/// For a word with a NUL byte.
pub fn join(words: &[String]) -> Result<String> {
    shlex::try_join(words.iter().map(String::as_str)).context("a word that no shell can take")
}

/// What a VM is to do.
#[derive(Debug)]
pub struct Job<'a> {
    /// Shell lines that come first, and that an interrupt does not reach.
    pub prelude: &'a str,
    /// The shell line whose output and exit code count.
    pub command: &'a str,
    /// The folder with our programs, for PATH.
    pub programs: &'a Path,
}

/// Boots `kernel`, does the job, and gives its exit code.
///
/// # Errors
///
/// When the VM can't be started, dies, or does not end in time.
pub fn boot(kernel: &Kernel, job: &Job<'_>, timeout: Duration) -> Result<u8> {
    let vng = vm_tools::ensure()?;
    let image = kernels::fetch(kernel)?;
    let runs = cache::folder()?.join("runs");
    fs::create_dir_all(&runs)?;
    let control = tempfile::Builder::new().prefix("vm-").tempdir_in(&runs)?;
    fs::write(control.path().join("guest.sh"), guest_script(job, control.path())?)?;
    fs::write(control.path().join("command.sh"), format!("{}\n", job.command))?;

    say::line(&format!(
        "booting kernel {}, {}: {}",
        kernel.name,
        if kvm_works() { "by KVM" } else { "emulated (seconds are longer here)" },
        kernels::version(&image)?
    ));
    let started = Instant::now();
    let mut vm = start(&vng, &image, control.path(), job.programs)?;
    let interrupts = relay_interrupts(control.path())?;
    let status = wait(&mut vm, timeout, interrupts)?;
    say::line(&format!("the VM ran for {:.1} s", started.elapsed().as_secs_f64()));
    exit_code(control.path(), status)
}

/// The shell script that the guest starts: `guest.sh`.
///
/// The command gets a process group of its own, so that an interrupt reaches it and whatever it started, as it
/// would on a terminal. It runs in the foreground, since a shell has its background jobs ignore SIGINT.
fn guest_script(job: &Job<'_>, control: &Path) -> Result<String> {
    let quote = |path: &Path| {
        shlex::try_quote(&path.to_string_lossy()).map(|q| q.into_owned()).context("an odd path")
    };
    let (control, programs) = (quote(control)?, quote(job.programs)?);
    let here = quote(&std::env::current_dir().context("this folder is gone")?)?;
    let prelude = job.prelude;
    Ok(format!(
        "export PATH={programs}:\"$PATH\"\n\
         cd {here} || exit 125\n\
         {prelude}\n\
         (while [ ! -e {control}/interrupt ]; do sleep 0.2; done\n\
         kill -s INT -- -$(cat {control}/group)) </dev/null >/dev/null 2>&1 &\n\
         setsid --wait sh -c 'echo $$ >{control}/group; exec sh {control}/command.sh'\n\
         echo $? >{control}/exit\n"
    ))
}

/// Starts virtme-ng in a process group of its own: Ctrl-C is for the command in the guest, not for QEMU.
fn start(vng: &Path, image: &Path, control: &Path, programs: &Path) -> Result<Child> {
    let cpus = thread::available_parallelism().map_or(2, |cpus| cpus.get().min(4));
    let mut command = Command::new(vng);
    // It calls programs beside it by name.
    let path = std::env::var("PATH").unwrap_or_default();
    let beside = vng.parent().context("vng lies nowhere")?;
    command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", beside.display()));
    command.arg("-r").arg(image).args(["--memory", "4G", "--cpus", &cpus.to_string()]);
    let mut qemu = format!("-serial file:{}", control.join("console").display());
    if !kvm_works() {
        command.arg("--disable-kvm");
        // With a thread for each CPU, QEMU 7.2 now and then runs code that another CPU has just patched:
        // "Oops: int3" within a minute of attaching to everything. One thread runs the CPUs in turn.
        qemu.push_str(" -accel tcg,thread=single");
    }
    for folder in shared_folders(control, programs)? {
        command.arg("--rwdir").arg(folder);
    }
    // The kernel's last words, if it dies: virtme-ng sends its console nowhere, and Linux has but one console
    // of the kind "ttyS". A boot console that is kept goes beside it.
    command.arg("--append=earlycon=uart8250,io,0x2f8 keep_bootcon loglevel=5");
    command.arg(format!("--qemu-opts={qemu}"));
    command.arg("--").arg(format!("sh {}", control.join("guest.sh").display()));
    // QEMU must not read from or set up a terminal that is not its own.
    let stdin = if io::stdin().is_terminal() { Stdio::null() } else { Stdio::inherit() };
    let mut vm = command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("can't start {}", vng.display()))?;
    relay(vm.stdout.take().context("no pipe")?, io::stdout());
    relay(vm.stderr.take().context("no pipe")?, io::stderr());
    Ok(vm)
}

/// Folders that the guest may write to, none within another.
fn shared_folders(control: &Path, programs: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![workspace::root()?];
    for folder in [control, programs] {
        if !folders.iter().any(|shared| folder.starts_with(shared)) {
            folders.push(folder.into());
        }
    }
    Ok(folders)
}

/// Copies what the guest prints as it comes. QEMU would open a file on our standard output anew, and cut it.
fn relay(mut from: impl Read + Send + 'static, mut to: impl Write + Send + 'static) {
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            // A reader that went away must not stop the guest, which would wait for us for ever.
            let _gone = to.write_all(&buffer[..read]).and_then(|()| to.flush());
        }
        FINISHED_RELAYS.fetch_add(1, Ordering::SeqCst);
    });
}

/// How many of the two relays have seen the end.
static FINISHED_RELAYS: AtomicU32 = AtomicU32::new(0);

/// How often we were interrupted.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);

/// Tells the guest of SIGINT and SIGTERM through a file: it sees our folders, and we have no other way in.
fn relay_interrupts(control: &Path) -> Result<&'static AtomicU32> {
    static FLAG: std::sync::Mutex<Option<PathBuf>> = std::sync::Mutex::new(None);
    static ONCE: std::sync::Once = std::sync::Once::new();
    INTERRUPTS.store(0, Ordering::SeqCst);
    FINISHED_RELAYS.store(0, Ordering::SeqCst);
    *FLAG.lock().map_err(|_| anyhow::anyhow!("poisoned"))? = Some(control.join("interrupt"));
    let mut set = Ok(());
    ONCE.call_once(|| {
        set = ctrlc::set_handler(|| {
            INTERRUPTS.fetch_add(1, Ordering::SeqCst);
            if let Ok(Some(flag)) = FLAG.lock().as_deref() {
                let _written = fs::write(flag, "");
            }
        });
    });
    set.context("can't listen for signals")?;
    Ok(&INTERRUPTS)
}

/// Waits for the VM; kills it after `timeout`, at a second interrupt, or some time after the first.
fn wait(vm: &mut Child, timeout: Duration, interrupts: &AtomicU32) -> Result<ExitStatus> {
    let started = Instant::now();
    let mut interrupted = None;
    loop {
        if let Some(status) = vm.try_wait()? {
            while FINISHED_RELAYS.load(Ordering::SeqCst) < 2 && started.elapsed() < timeout {
                thread::sleep(Duration::from_millis(2));
            }
            return Ok(status);
        }
        if interrupts.load(Ordering::SeqCst) > 0 {
            interrupted.get_or_insert_with(Instant::now);
        }
        let late = interrupted.is_some_and(|at: Instant| at.elapsed() > GRACE);
        if late || interrupts.load(Ordering::SeqCst) > 1 {
            kill(vm);
            bail!("interrupted: the VM was killed");
        }
        if started.elapsed() > timeout {
            kill(vm);
            bail!("the VM was killed after {} s (--timeout)", timeout.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Kills virtme-ng and QEMU.
fn kill(vm: &mut Child) {
    // SAFETY: kill touches no memory; the group is the child's own, which was not waited for yet.
    unsafe { libc::kill(-(vm.id() as libc::pid_t), libc::SIGKILL) };
    let _ended = vm.wait();
}

/// The command's exit code, which the guest wrote down: virtme-ng's own can't be told from it.
fn exit_code(control: &Path, status: ExitStatus) -> Result<u8> {
    let Ok(code) = fs::read_to_string(control.join("exit")) else {
        let console = fs::read(control.join("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<&str> = console.lines().collect();
        let last = lines[lines.len().saturating_sub(40)..].join("\n  ");
        let how = status.signal().map_or(status.to_string(), |signal| format!("signal {signal}"));
        bail!("the VM ended before the command did ({how}); the last words of its kernel:\n  {last}");
    };
    code.trim().parse().with_context(|| format!("an odd exit code: {code:?}"))
}

/// Whether hardware virtualisation is there: some machines have a `/dev/kvm` without it, on which no stock
/// kernel boots.
fn kvm_works() -> bool {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpus.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let virtualises = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    virtualises && fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Checks that the guest's kernel has nothing to complain about: run there after the tests.
pub const CHECK_KERNEL_LOG: &str = "dmesg | grep -v 'Speculative Return Stack Overflow' | grep -E 'WARNING:|BUG:|Oops|detected stall|soft lockup|blocked for more than|Call Trace:'";

/// Fails unless a job on `kernel` ends with 0.
pub fn expect_success(kernel: &Kernel, job: &Job<'_>, timeout: Duration) -> Result<()> {
    let code = boot(kernel, job, timeout)?;
    ensure!(code == 0, "exit code {code} on kernel {}", kernel.name);
    Ok(())
}

/// Loads what a kernel's tests want; what it doesn't have is let be.
pub fn load_modules(kernel: &Kernel) -> String {
    kernel.modules.iter().map(|module| format!("modprobe {module} 2>/dev/null\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[test]
    fn an_interrupt_reaches_the_command_and_its_exit_code_comes_back() {
        let control = tempfile::tempdir().unwrap();
        let command =
            "trap 'exit 42' INT; touch \"$(dirname \"$0\")/ready\"; for i in $(seq 200); do sleep 0.1; done";
        let job = Job { prelude: "", command, programs: Path::new("/nowhere") };
        let path = |name: &str| control.path().join(name);
        fs::write(path("guest.sh"), guest_script(&job, control.path()).unwrap()).unwrap();
        fs::write(path("command.sh"), command).unwrap();
        // Whoever runs this in the background has SIGINT ignored, which a shell can't undo.
        let mut guest =
            Command::new("env").args(["--default-signal=INT", "sh"]).arg(path("guest.sh")).spawn().unwrap();
        let started = Instant::now();
        while !path("ready").exists() {
            assert!(started.elapsed() < GRACE, "the command does not start");
            thread::sleep(Duration::from_millis(10));
        }
        fs::write(path("interrupt"), "").unwrap();
        while guest.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < GRACE, "the interrupt does not arrive");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(exit_code(control.path(), ExitStatus::default()).unwrap(), 42);
    }

    #[test]
    fn words_become_a_shell_line_that_means_them() {
        let words = ["fastprobe", "kvm*", "it's", ""].map(String::from);
        let line = join(&words).unwrap();
        let printed =
            process::output(Command::new("sh").args(["-c", &format!("printf '%s|' {line}")])).unwrap();
        assert_eq!(printed, "fastprobe|kvm*|it's||");
        assert!(join(&["a\0b".into()]).is_err());
    }
}
