//! One event of tracefs with many kprobes: `kprobe_events`.
//!
//! Unlike all else that fastprobe makes, it does not end with its process. After SIGKILL the probes are disarmed, since
//! the perf event goes, but stay defined; so its name says whose it is, and the next run removes those of the dead.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read, Seek, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::{Kernel, Moment},
};

/// How many calls of a function may be under way at once for their returns to be seen, unless the kernel has no need of
/// such a number (`kretprobe.maxactive` in `Documentation/trace/kprobes.rst`). Beyond it returns are missed.
const CALLS_UNDER_WAY: u32 = 128;

/// The group of all our events, a folder in `events`.
const GROUP: &str = "fastprobe";

/// The file that takes and lists kprobes.
const KPROBE_EVENTS: &str = "kprobe_events";

/// The file that tells for each kprobe how often it was hit and missed.
const KPROBE_PROFILE: &str = "kprobe_profile";

/// How many events this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

/// An event and its kprobes. Dropped, they are disarmed and removed.
#[derive(Debug)]
pub struct Event {
    tracefs: PathBuf,
    /// `kprobe_events`, opened to append: opened otherwise, the kernel removes everybody's.
    commands: File,
    /// `kprobe_profile`, opened while this process still may: the misses are read at the end.
    profile: File,
    name: String,
    moment: Moment,
    probes: usize,
    /// Arms the probes and runs the program.
    perf: Option<OwnedFd>,
}

impl Event {
    /// Starts an event without probes, at entries or returns, after removing those whose process is gone.
    ///
    /// # Errors
    ///
    /// `Unsupported` where there is no tracefs or a kernel without `CONFIG_KPROBE_EVENTS`, `Permission` where it
    /// takes no commands of ours.
    pub fn new(tracefs: &Path, moment: Moment) -> Result<Self> {
        let path = tracefs.join(KPROBE_EVENTS);
        let mut commands = File::options().append(true).open(&path).map_err(|e| cant_open(&path, e))?;
        let profile = tracefs.join(KPROBE_PROFILE);
        let profile = File::open(&profile).map_err(|e| cant_open(&profile, e))?;
        let me = Owner::this_process().map_err(|e| {
            Error::new(ErrorKind::Io, "can't read this process's entry in /proc").with_source(e)
        })?;
        remove_abandoned(&mut commands, &path, &me);
        let name = format!("{}_{}", me.name(), MADE.fetch_add(1, Ordering::Relaxed));
        Ok(Self { tracefs: tracefs.into(), commands, profile, name, moment, probes: 0, perf: None })
    }

    /// What its probes are at.
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Adds a kprobe at `address`, disarmed; for returns that is where the function starts.
    ///
    /// By its address alone: a name costs the kernel a search through all symbols. Probes of one event have to differ
    /// in more than their address (`trace_kprobe_has_same_kprobe` in `kernel/trace/trace_kprobe.c`, 6.1 to 7.3, which
    /// compares names, offsets and arguments); so each has a constant, which nobody reads, for an argument.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    pub fn add(&mut self, kernel: &dyn Kernel, address: u64) -> io::Result<()> {
        let kind = match self.moment {
            Moment::Return => format!("r{CALLS_UNDER_WAY}"),
            Moment::Entry | Moment::Session => "p".to_owned(),
        };
        let line = format!("{kind}:{GROUP}/{} {address:#x} n=\\{}\n", self.name, self.probes);
        kernel.trace_command(self.commands.as_fd(), &line)?;
        self.probes += 1;
        Ok(())
    }

    /// Arms the probes: from here on each hit runs `program`.
    ///
    /// # Errors
    ///
    /// The kernel's errno; the probes are gone then.
    pub fn enable(mut self, kernel: &dyn Kernel, program: BorrowedFd<'_>) -> io::Result<Self> {
        let path = self.tracefs.join("events").join(GROUP).join(&self.name).join("id");
        let id = fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)?;
        self.perf = Some(kernel.open_event(id, program)?);
        Ok(self)
    }

    /// Hits that the kernel dropped since a kprobe was under way on that CPU: the last column of `kprobe_profile`.
    ///
    /// # Errors
    ///
    /// `Io` where it can't be read.
    pub fn missed(&self) -> Result<u64> {
        let (mut file, mut text) = (&self.profile, String::new());
        file.rewind().and_then(|()| file.read_to_string(&mut text)).map_err(|e| {
            let path = self.tracefs.join(KPROBE_PROFILE);
            Error::new(ErrorKind::Io, format!("can't read the misses in {}", path.display())).with_source(e)
        })?;
        Ok(sum_of_missed(&text, &self.name))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // While it is open, the kernel calls the event busy.
        drop(self.perf.take());
        if self.probes > 0 {
            // The probes are disarmed. Where their definitions can't be removed, since somebody has enabled the
            // event, the next run does it.
            let _removed = remove(&mut self.commands, &self.name);
        }
    }
}

/// Removes an event with all its probes.
fn remove(commands: &mut File, name: &str) -> io::Result<()> {
    commands.write_all(format!("-:{GROUP}/{name}\n").as_bytes())
}

/// Removes the events of processes that are gone. That one can't be is no fault of this run.
fn remove_abandoned(commands: &mut File, path: &Path, me: &Owner) {
    // By lines of bytes: events of others may have any name.
    let text = fs::read(path).unwrap_or_default();
    for name in abandoned(&String::from_utf8_lossy(&text), me, &Owner::is_alive) {
        let _removed = remove(commands, &name);
    }
}

/// The names of our events in `kprobe_events` whose owners are gone, as far as this process can tell.
fn abandoned(kprobe_events: &str, me: &Owner, is_alive: &dyn Fn(&Owner) -> bool) -> BTreeSet<String> {
    let definitions = kprobe_events.lines().filter_map(|line| line.split(' ').next()?.split_once(':'));
    let names = definitions.filter_map(|(_, event)| event.strip_prefix(GROUP)?.strip_prefix('/'));
    let names: BTreeSet<&str> = names.collect();
    let gone = |name: &&str| {
        Owner::in_name(name).is_some_and(|owner| owner.namespace == me.namespace && !is_alive(&owner))
    };
    names.into_iter().filter(gone).map(str::to_owned).collect()
}

/// The sum of the last column over the lines `  NAME  HITS  MISSED`.
fn sum_of_missed(kprobe_profile: &str, name: &str) -> u64 {
    let missed = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next()? == name).then(|| words.nth(1)?.parse::<u64>().ok())?
    };
    kprobe_profile.lines().filter_map(missed).fold(0, u64::saturating_add)
}

/// The process that an event belongs to. Numbers of processes come again; with the start they don't.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    /// The number of the namespace that `process` is a number of.
    namespace: u64,
    process: u32,
    /// When it was started, in clock ticks since the boot.
    start: u64,
}

impl Owner {
    fn this_process() -> io::Result<Self> {
        let link = fs::read_link("/proc/self/ns/pid")?;
        let digits: String = link.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let process = std::process::id();
        let start = start_of(&fs::read_to_string("/proc/self/stat")?).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { namespace: digits.parse().map_err(io::Error::other)?, process, start })
    }

    fn name(&self) -> String {
        format!("p_{}_{}_{}", self.namespace, self.process, self.start)
    }

    /// Reads `p_NAMESPACE_PROCESS_START_COUNT`.
    fn in_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("p_")?.split('_');
        let owner = Self {
            namespace: parts.next()?.parse().ok()?,
            process: parts.next()?.parse().ok()?,
            start: parts.next()?.parse().ok()?,
        };
        let count: Option<u32> = parts.next()?.parse().ok();
        (count.is_some() && parts.next().is_none()).then_some(owner)
    }

    /// Whether it still runs. One that can't be looked at may.
    fn is_alive(&self) -> bool {
        match fs::read_to_string(format!("/proc/{}/stat", self.process)) {
            Ok(stat) => start_of(&stat) == Some(self.start),
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }
}

/// Field 22 of `/proc/PID/stat`. The second is the program's name in brackets, which may hold anything.
fn start_of(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

fn cant_open(path: &Path, cause: io::Error) -> Error {
    let (kind, hint) = match cause.kind() {
        io::ErrorKind::NotFound => (
            ErrorKind::Unsupported,
            "mount -t tracefs tracefs /sys/kernel/tracing, or a kernel with CONFIG_KPROBE_EVENTS",
        ),
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Permission,
            "run it as root: sudo fastprobe …; under lockdown nobody may: cat /sys/kernel/security/lockdown",
        ),
        _ => (ErrorKind::Io, "see the cause"),
    };
    Error::new(kind, format!("can't open {}", path.display())).with_hint(hint).with_source(cause)
}

/// A folder with the files of tracefs that an event of this process needs.
#[cfg(test)]
pub fn fake_tracefs(kprobe_events: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(KPROBE_EVENTS), kprobe_events).unwrap();
    fs::write(folder.path().join(KPROBE_PROFILE), "").unwrap();
    let me = Owner::this_process().unwrap().name();
    // Tests run side by side, so the next number is not known.
    for count in 0..200 {
        let event = folder.path().join("events").join(GROUP).join(format!("{me}_{count}"));
        fs::create_dir_all(&event).unwrap();
        fs::write(event.join("id"), "1234\n").unwrap();
    }
    folder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_events_of_dead_processes_of_this_namespace_are_abandoned() {
        let me = Owner { namespace: 7, process: 1, start: 5 };
        let events = "p:kprobes/others vfs_read\n\
                      p:fastprobe/p_7_10_5_0 0x1000 n=\\0\n\
                      p:fastprobe/p_7_10_5_0 0x2000 n=\\1\n\
                      p:fastprobe/p_7_11_5_0 0x1000\n\
                      p:fastprobe/p_8_10_5_0 0x1000\n\
                      p:fastprobe/mine vfs_read\n\
                      p:fastprobe/p_7_10_5 vfs_read\n\
                      r64:fastprobe/p_7_10_5_3 vfs_read\n\
                      p:fastprobes/p_7_10_5_0 vfs_read\n\nodd\n";
        let found = abandoned(events, &me, &|owner| owner.process == 11);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["p_7_10_5_0", "p_7_10_5_3"]);
    }

    #[test]
    fn an_event_removes_what_the_dead_left_and_nothing_else() {
        let me = Owner::this_process().unwrap();
        assert!(me.is_alive());
        let dead = Owner { start: me.start + 1, ..me };
        assert!(!dead.is_alive());
        let [mine, gone] = [me, dead].map(|owner| format!("p:{GROUP}/{}_77 0x1000\n", owner.name()));
        let folder = fake_tracefs(&format!("{mine}{gone}p:kprobes/other vfs_read\n"));
        drop(Event::new(folder.path(), Moment::Entry).unwrap());
        let text = fs::read_to_string(folder.path().join(KPROBE_EVENTS)).unwrap();
        let removed: Vec<_> = text.lines().skip(3).collect();
        assert_eq!(removed, [format!("-:{GROUP}/{}_77", dead.name())]);
    }

    #[test]
    fn misses_of_all_probes_of_the_event_are_summed() {
        let text = "  p_7_1_5_0          0         3\n  other  9  9\n  p_7_1_5_0  0  4\n  p_7_1_5_0  0\nx\n";
        assert_eq!(sum_of_missed(text, "p_7_1_5_0"), 7);
    }

    #[test]
    fn the_start_is_found_behind_any_name() {
        let rest = (4..=21).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_of(&format!("77 (a) b) (c) S {rest} 4711 23")), Some(4711));
        assert_eq!(start_of("77 (a) S 1 2"), None);
        assert_eq!(start_of(""), None);
    }

    #[test]
    fn without_tracefs_the_error_says_mount() {
        let folder = tempfile::tempdir().unwrap();
        let error = Event::new(folder.path(), Moment::Entry).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.hint().unwrap().starts_with("mount -t tracefs"), "{error:#}");
    }
}
