//! From facts to checks: pure, so that every state is a unit test.

use std::io;

use super::{
    Check, Report, State,
    facts::{Capabilities, Facts, Limit, Lockdown},
    trial::Refusal,
};
use crate::error::{Error, ErrorKind};

const NOTHING: &str = "nothing can be attached";
const TEXT: &str = "tables are read from text: ten times slower";
const NO_TEXT: &str = "text files can't stand in where the kernel's memory can't be read";
const ONE_BY_ONE: &str = "each function is attached on its own, so attach and detach take longer";
const UNKEPT: &str = "tables are not kept for the next run";
const NO_SINGLE: &str = "functions can't be attached to one by one; one link over all needs no such probes";

const SUDO: &str = "sudo fastprobe doctor";
const SETCAP: &str = "sudo setcap cap_bpf,cap_perfmon,cap_syslog,cap_dac_read_search,cap_sys_rawio=ep \
     \"$(command -v fastprobe)\"";
const UNLOCK: &str = "boot with lockdown=integrity, or without secure boot";
const MORE_FILES: &str = "sudo prlimit --nofile=1048576 --pid $$";
const MORE_MEMORY: &str = "sudo prlimit --memlock=unlimited --pid $$";
const MOUNT_PROC: &str = "mount -t proc proc /proc";

/// The largest value of `kernel.perf_event_paranoid` that leaves kprobes to CAP_PERFMON: Debian's kernels know a 3.
const MAX_PARANOID: i64 = 2;

/// As many functions as fastprobe attaches to unless it is told otherwise.
const ENOUGH_FILES: u64 = 100_000;

/// What the facts come to: for each precondition whether it is met, what its lack costs and what mends it.
pub fn judge(facts: &Facts) -> Report {
    let checks = vec![
        fprobe(facts),
        kprobes(facts),
        btf(facts),
        tracefs(facts),
        debugfs(facts),
        kcore(facts),
        kptr_restrict(facts),
        lockdown(facts),
        perf_event_paranoid(facts),
        ftrace_enabled(facts),
        capabilities(facts),
        memlock(facts),
        nofile(facts),
        cache(facts),
    ];
    Report { kernel: facts.kernel.clone(), checks }
}

fn ok(name: &'static str, detail: impl Into<String>) -> Check {
    Check { name, state: State::Ok, detail: detail.into(), cost: None, fix: None }
}

/// Something that isn't as it should be.
struct Lack<'a> {
    detail: String,
    /// Whether nothing can be attached for want of it.
    fatal: bool,
    /// What it costs where it isn't.
    cost: &'a str,
    fix: &'a str,
}

fn lack(name: &'static str, lack: Lack<'_>) -> Check {
    let (state, cost) = if lack.fatal { (State::Missing, NOTHING) } else { (State::Degraded, lack.cost) };
    Check { name, state, detail: lack.detail, cost: Some(cost.into()), fix: Some(lack.fix.into()) }
}

impl Facts {
    fn has_single(&self) -> bool {
        self.single.is_ok() && self.kprobes_armed != Some(false)
    }

    fn has_tables(&self) -> bool {
        self.tables.is_ok()
    }

    /// What it all comes to.
    fn can_attach(&self) -> bool {
        self.has_tables() && self.ftrace_enabled != Some(0) && (self.multi.is_ok() || self.has_single())
    }

    fn can_trace(&self) -> bool {
        self.capabilities.is_some_and(Capabilities::can_trace)
    }

    /// What opens a file that this process may not open.
    fn opener(&self) -> &'static str {
        if self.lockdown == Lockdown::Confidentiality { UNLOCK } else { SUDO }
    }

    /// What mends a file: the opener, or what makes it be there.
    fn mender(&self, error: &Error, maker: &'static str) -> &'static str {
        if error.kind() == ErrorKind::Permission { self.opener() } else { maker }
    }
}

fn is_permission(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

/// Says of a program that can't be loaded why, and what mends it.
fn program_refused(facts: &Facts, error: &io::Error) -> (String, &'static str) {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if !facts.can_trace() => {
            ("can't be seen without root, or CAP_BPF and CAP_PERFMON".into(), SUDO)
        }
        Some(libc::EPERM | libc::EACCES) => {
            (format!("the kernel loads no program, all capabilities aside: {error}"), "dmesg | grep -i audit")
        }
        Some(libc::ENOSYS) => ("there is no bpf(2) here".into(), "boot a kernel with CONFIG_BPF_SYSCALL=y"),
        Some(libc::EINVAL) => ("this kernel knows no kprobe-multi links".into(), "boot Linux 5.18 or later"),
        _ => (format!("the kernel does not load a program: {error}"), "dmesg | tail"),
    }
}

fn fprobe(facts: &Facts) -> Check {
    const NAME: &str = "fprobe";
    let (detail, fix) = match &facts.multi {
        Ok(()) => return ok(NAME, "a link over many functions can be made (tried)"),
        Err(Refusal::Program(error)) => program_refused(facts, error),
        Err(Refusal::Probe(error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => (
            "this kernel was built without CONFIG_FPROBE (tried)".into(),
            "boot a kernel with CONFIG_FPROBE=y; Debian 12: apt install -t bookworm-backports linux-image-amd64",
        ),
        Err(Refusal::Probe(error)) => {
            (format!("the kernel refuses a link (tried): {error}"), "dmesg | grep -i ftrace")
        }
        Err(Refusal::Unit) if facts.ftrace_enabled == Some(0) => {
            ("a link was not tried while ftrace is switched off".into(), SWITCH_FTRACE_ON)
        }
        Err(Refusal::Unit) => ("a link was not tried".into(), SUDO),
    };
    lack(NAME, Lack { detail, fatal: !facts.has_single(), cost: ONE_BY_ONE, fix })
}

fn kprobes(facts: &Facts) -> Check {
    const NAME: &str = "kprobes";
    let (detail, fix) = match &facts.single {
        Ok(()) if facts.kprobes_armed == Some(false) => {
            ("kprobes are disarmed: they never fire".into(), "echo 1 >/sys/kernel/debug/kprobes/enabled")
        }
        Ok(()) => return ok(NAME, "a probe on one function can be set (tried)"),
        Err(Refusal::Program(error)) => program_refused(facts, error),
        Err(Refusal::Unit) => {
            ("perf has no unit for kprobes".into(), "boot a kernel with CONFIG_KPROBE_EVENTS=y")
        }
        Err(Refusal::Probe(error)) => {
            let detail = format!("the kernel refuses a probe on one function (tried): {error}");
            (detail, if is_paranoid(facts) { CALM } else { facts.opener() })
        }
    };
    lack(NAME, Lack { detail, fatal: facts.multi.is_err(), cost: NO_SINGLE, fix })
}

fn btf(facts: &Facts) -> Check {
    match &facts.btf {
        Ok(()) => ok("btf", "it says where things are in the kernel's memory"),
        Err(error) => {
            let fix = facts.mender(error, btf_maker(error));
            lack("btf", Lack { detail: format!("{error:#}"), fatal: !facts.has_tables(), cost: TEXT, fix })
        }
    }
}

fn btf_maker(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Malformed => "boot a kernel with CONFIG_KPROBES=y; if it has that, report this",
        _ => "boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
    }
}

fn tracefs(facts: &Facts) -> Check {
    match &facts.tracefs {
        Ok(path) => ok("tracefs", format!("{} can be opened", path.display())),
        Err(error) => {
            let maker = match facts.can_mount_tracefs {
                true => "mount -t tracefs tracefs /sys/kernel/tracing",
                false => "boot a kernel with CONFIG_DYNAMIC_FTRACE=y",
            };
            let fix = facts.mender(error, maker);
            let fatal = !facts.has_tables();
            lack("tracefs", Lack { detail: unseen(facts, error), fatal, cost: NO_TEXT, fix })
        }
    }
}

/// The fault; what root alone can see may well be there.
fn unseen(facts: &Facts, error: &Error) -> String {
    if error.kind() == ErrorKind::Permission && facts.lockdown != Lockdown::Confidentiality {
        return format!("can't be seen without root: {error:#}");
    }
    format!("{error:#}")
}

fn debugfs(facts: &Facts) -> Check {
    match &facts.debugfs {
        Ok(path) => ok("debugfs", format!("{} can be opened", path.display())),
        Err(error) => {
            let cost = match facts.kcore {
                Ok(()) => "text files can't stand in for the kprobe blacklist in the kernel's memory",
                Err(_) => "the kprobe blacklist can't be checked, only the built-in denylist",
            };
            let maker = match facts.can_mount_debugfs {
                true => "mount -t debugfs debugfs /sys/kernel/debug",
                false => "boot a kernel with CONFIG_DEBUG_FS=y and CONFIG_KPROBES=y",
            };
            let fix = facts.mender(error, maker);
            lack("debugfs", Lack { detail: unseen(facts, error), fatal: false, cost, fix })
        }
    }
}

fn kcore(facts: &Facts) -> Check {
    match &facts.kcore {
        Ok(()) => ok("kcore", "the tables can be read from the kernel's memory (tried)"),
        Err(error) => {
            let maker = match &facts.btf {
                _ if !facts.has_kcore => "boot a kernel with CONFIG_PROC_KCORE=y",
                // Containers hide it behind /dev/null.
                _ if error.kind() == ErrorKind::Io => "umount /proc/kcore",
                Err(btf) => btf_maker(btf),
                Ok(()) => "report it, with what this prints: fastprobe list -vv --source kcore vfs_read",
            };
            let fix = facts.mender(error, maker);
            let fatal = !facts.has_tables();
            lack("kcore", Lack { detail: unseen(facts, error), fatal, cost: TEXT, fix })
        }
    }
}

fn kptr_restrict(facts: &Facts) -> Check {
    const NAME: &str = "kptr_restrict";
    let value = facts.kptr_restrict.map_or("unreadable".into(), |value| value.to_string());
    let (detail, fix) = match (facts.shows_addresses, facts.kptr_restrict) {
        (Some(true), _) => return ok(NAME, format!("{value}: addresses are shown to this process")),
        (Some(false), Some(2..)) => {
            (format!("{value}: addresses are hidden from everybody"), "sysctl kernel.kptr_restrict=1")
        }
        (Some(false), _) => (format!("{value}: addresses are hidden from whoever lacks CAP_SYSLOG"), SUDO),
        (None, _) => (format!("{value}: /proc/kallsyms shows no functions"), MOUNT_PROC),
    };
    lack(NAME, Lack { detail, fatal: !facts.has_tables(), cost: UNKEPT, fix })
}

fn lockdown(facts: &Facts) -> Check {
    const NAME: &str = "lockdown";
    match facts.lockdown {
        Lockdown::Absent => ok(NAME, "there is none, or securityfs is not mounted"),
        Lockdown::Off => ok(NAME, "none"),
        Lockdown::Integrity => ok(NAME, "integrity: forbids nothing that fastprobe does"),
        Lockdown::Confidentiality => {
            let detail = "confidentiality: forbids to read the kernel's memory, tracefs, and kprobes".into();
            let cost = "no tables but those in the cache";
            lack(NAME, Lack { detail, fatal: !facts.can_attach(), cost, fix: UNLOCK })
        }
        Lockdown::Unknown => {
            let detail = "/sys/kernel/security/lockdown names no mode that is known".into();
            let cost = "what it forbids shows at the attach";
            lack(NAME, Lack { detail, fatal: false, cost, fix: "cat /sys/kernel/security/lockdown" })
        }
    }
}

const CALM: &str = "sysctl kernel.perf_event_paranoid=2";

/// Whether perf's own setting keeps this process from setting kprobes.
fn is_paranoid(facts: &Facts) -> bool {
    let refused = matches!(&facts.single, Err(Refusal::Probe(error)) if is_permission(error));
    refused
        && facts.perf_event_paranoid.is_some_and(|value| value > MAX_PARANOID)
        && !facts.capabilities.is_some_and(|held| held.has(Capabilities::SYS_ADMIN))
}

fn perf_event_paranoid(facts: &Facts) -> Check {
    const NAME: &str = "perf_event_paranoid";
    let value = facts.perf_event_paranoid.map_or("unreadable".into(), |value| value.to_string());
    if is_paranoid(facts) {
        let detail = format!("{value}: kprobes through perf are for CAP_SYS_ADMIN alone");
        return lack(NAME, Lack { detail, fatal: facts.multi.is_err(), cost: NO_SINGLE, fix: CALM });
    }
    ok(NAME, format!("{value}: not in the way"))
}

const SWITCH_FTRACE_ON: &str = "sysctl kernel.ftrace_enabled=1";

fn ftrace_enabled(facts: &Facts) -> Check {
    const NAME: &str = "ftrace_enabled";
    let (detail, cost, fix) = match facts.ftrace_enabled {
        Some(0) => {
            let detail = "0: no probe would fire, and to detach one could break ftrace".into();
            return lack(NAME, Lack { detail, fatal: true, cost: NOTHING, fix: SWITCH_FTRACE_ON });
        }
        Some(_) => return ok(NAME, "1"),
        None => (
            "/proc/sys/kernel/ftrace_enabled can't be read",
            "whether probes fire shows only when they do",
            MOUNT_PROC,
        ),
    };
    lack(NAME, Lack { detail: detail.into(), fatal: false, cost, fix })
}

fn capabilities(facts: &Facts) -> Check {
    const NAME: &str = "capabilities";
    let Some(held) = facts.capabilities else {
        let (detail, cost) =
            ("/proc/self/status can't be read".into(), "what is allowed shows at the attach");
        return lack(NAME, Lack { detail, fatal: false, cost, fix: MOUNT_PROC });
    };
    if held.in_user_namespace {
        let detail = "those of a user namespace, which don't count here".into();
        let fix = "run it outside of the container, or in one with the host's user namespace";
        return lack(NAME, Lack { detail, fatal: !facts.can_attach(), cost: TEXT, fix });
    }
    let lacking = lacking(facts, held);
    if lacking.is_empty() {
        return ok(NAME, "all that fastprobe needs here");
    }
    let detail = format!("this process lacks {}", lacking.join(", "));
    let cost = if facts.kcore.is_ok() { UNKEPT } else { TEXT };
    lack(NAME, Lack { detail, fatal: !facts.can_attach(), cost, fix: SETCAP })
}

/// Of the capabilities that are not held those that something failed for.
fn lacking(facts: &Facts, held: Capabilities) -> Vec<&'static str> {
    let traces = facts.multi.is_ok() || held.has(Capabilities::SYS_ADMIN);
    let (reads, shows) = (facts.kcore.is_ok(), facts.shows_addresses == Some(true));
    let needed = [
        (Capabilities::BPF, traces, "CAP_BPF"),
        (Capabilities::PERFMON, traces, "CAP_PERFMON"),
        (Capabilities::SYSLOG, shows, "CAP_SYSLOG"),
        (Capabilities::DAC_READ_SEARCH, reads, "CAP_DAC_READ_SEARCH"),
        (Capabilities::SYS_RAWIO, reads, "CAP_SYS_RAWIO"),
    ];
    let lacking = needed.into_iter().filter(|&(capability, met, _)| !met && !held.has(capability));
    lacking.map(|(_, _, name)| name).collect()
}

fn memlock(facts: &Facts) -> Check {
    const NAME: &str = "memlock";
    let Some(limit) = facts.memlock else { return no_limits(NAME) };
    let refused = matches!(&facts.multi, Err(Refusal::Program(error)) if is_permission(error));
    if refused && facts.can_trace() && limit.soft != u64::MAX {
        let detail = format!("{}, and the kernel loads no program", bytes(limit.soft));
        let fatal = !facts.can_attach();
        return lack(NAME, Lack { detail, fatal, cost: ONE_BY_ONE, fix: MORE_MEMORY });
    }
    // What eBPF takes counts towards the memory cgroup since 5.11 (`bpf_map_charge_init` is gone).
    ok(NAME, format!("{}: not in the way", bytes(limit.soft)))
}

fn bytes(limit: u64) -> String {
    if limit == u64::MAX { "unlimited".into() } else { format!("{} KiB", limit >> 10) }
}

fn nofile(facts: &Facts) -> Check {
    const NAME: &str = "nofile";
    let Some(Limit { soft, hard }) = facts.nofile else { return no_limits(NAME) };
    let boundless = facts.capabilities.is_some_and(|held| held.has(Capabilities::SYS_RESOURCE));
    if facts.multi.is_ok() || facts.single.is_err() {
        return ok(NAME, format!("{soft}: not in the way"));
    }
    if boundless || hard >= ENOUGH_FILES {
        return ok(NAME, format!("{soft}, which fastprobe may raise"));
    }
    let detail = format!("{soft}, at most {hard}: a file for each function");
    let cost = format!("no more than {hard} functions at a time");
    lack(NAME, Lack { detail, fatal: false, cost: &cost, fix: MORE_FILES })
}

fn no_limits(name: &'static str) -> Check {
    let detail = "/proc/self/limits can't be read".into();
    lack(
        name,
        Lack { detail, fatal: false, cost: "whether it is in the way shows at the attach", fix: MOUNT_PROC },
    )
}

fn cache(facts: &Facts) -> Check {
    const NAME: &str = "cache";
    let file = facts.cache_file.display();
    match &facts.cache {
        Ok(()) if facts.is_cached => ok(NAME, format!("{file} has the tables of this boot")),
        Ok(()) => ok(NAME, format!("{file} can be written")),
        Err(error) => {
            let fix = error.hint().unwrap_or("set XDG_RUNTIME_DIR to a folder of your own");
            let cost = "tables are read anew by each run";
            lack(NAME, Lack { detail: format!("{error:#}"), fatal: false, cost, fix })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tables::Source;

    fn errno<T>(errno: i32) -> Result<T, Refusal> {
        Err(Refusal::Probe(io::Error::from_raw_os_error(errno)))
    }

    fn unloadable<T>(errno: i32) -> Result<T, Refusal> {
        Err(Refusal::Program(io::Error::from_raw_os_error(errno)))
    }

    fn fault<T>(kind: ErrorKind) -> crate::Result<T> {
        Err(Error::new(kind, "the fault"))
    }

    fn held(capabilities: &[u32]) -> Option<Capabilities> {
        let effective = capabilities.iter().map(|capability| 1 << capability).sum();
        Some(Capabilities { effective, in_user_namespace: false })
    }

    /// A machine where nothing is amiss, seen by root.
    fn healthy() -> Facts {
        Facts {
            kernel: "7.3.4".into(),
            tables: Ok(Source::Kcore),
            kcore: Ok(()),
            has_kcore: true,
            can_mount_tracefs: false,
            can_mount_debugfs: false,
            btf: Ok(()),
            tracefs: Ok(PathBuf::from("/t/list")),
            debugfs: Ok(PathBuf::from("/d/list")),
            cache: Ok(()),
            cache_file: PathBuf::from("/run/fastprobe/tables"),
            is_cached: false,
            multi: Ok(()),
            single: Ok(()),
            kprobes_armed: Some(true),
            shows_addresses: Some(true),
            kptr_restrict: Some(0),
            perf_event_paranoid: Some(3),
            ftrace_enabled: Some(1),
            lockdown: Lockdown::Off,
            capabilities: Some(Capabilities { effective: u64::MAX, in_user_namespace: false }),
            memlock: Some(Limit { soft: 8 << 20, hard: 8 << 20 }),
            nofile: Some(Limit { soft: 1024, hard: 4096 }),
        }
    }

    fn check(facts: &Facts, name: &str) -> Check {
        judge(facts).checks.into_iter().find(|check| check.name == name).unwrap()
    }

    /// The check called `name`, in its state, with these words in what was found and in what mends it.
    #[track_caller]
    fn expect(facts: &Facts, name: &str, state: State, detail: &str, fix: &str) {
        let check = check(facts, name);
        assert_eq!(check.state, state, "{check:?}");
        assert!(check.detail.contains(detail), "{check:?}");
        assert!(check.fix.as_deref().unwrap_or_default().contains(fix), "{check:?}");
        assert_eq!((check.cost.is_some(), check.fix.is_some()), (state != State::Ok, state != State::Ok));
        assert_eq!(judge(facts).can_attach(), facts.can_attach());
    }

    use State::{Degraded, Missing, Ok as Fine};

    #[test]
    fn nothing_is_amiss_where_nothing_is() {
        let report = judge(&healthy());
        let names: Vec<_> = report.checks.iter().map(|check| check.name).collect();
        let contract = [
            "fprobe",
            "kprobes",
            "btf",
            "tracefs",
            "debugfs",
            "kcore",
            "kptr_restrict",
            "lockdown",
            "perf_event_paranoid",
            "ftrace_enabled",
            "capabilities",
            "memlock",
            "nofile",
            "cache",
        ];
        assert_eq!(names, contract);
        assert_eq!(
            (report.checks.iter().all(|check| check.state == Fine), report.can_attach()),
            (true, true)
        );
    }

    #[test]
    fn it_attaches_where_it_has_tables_and_a_way_to_attach_and_nowhere_else() {
        let ways = [|| Ok(()), || errno(libc::EOPNOTSUPP), || unloadable(libc::EPERM), || Err(Refusal::Unit)];
        let both = [false, true];
        for (multi, single) in ways.iter().flat_map(|multi| ways.iter().map(move |single| (multi, single))) {
            for (tables, armed) in
                both.iter().flat_map(|tables| both.iter().map(move |armed| (*tables, *armed)))
            {
                for capabilities in [None, held(&[]), held(&[21, 2, 17]), healthy().capabilities] {
                    let lockdown = if tables { Lockdown::Confidentiality } else { Lockdown::Off };
                    let mut facts = Facts {
                        multi: multi(),
                        single: single(),
                        kprobes_armed: Some(armed),
                        capabilities,
                        lockdown,
                        ..healthy()
                    };
                    if !tables {
                        facts.tables = fault(ErrorKind::Permission);
                        facts.kcore = fault(ErrorKind::Permission);
                        facts.tracefs = fault(ErrorKind::Permission);
                    }
                    assert_eq!(judge(&facts).can_attach(), facts.can_attach(), "{facts:?}");
                }
            }
        }
    }

    #[test]
    fn without_fprobe_kprobes_decide() {
        let old = || Facts { multi: errno(libc::EOPNOTSUPP), ..healthy() };
        expect(&old(), "fprobe", Degraded, "CONFIG_FPROBE", "CONFIG_FPROBE=y");
        assert_eq!(check(&old(), "fprobe").cost.as_deref(), Some(ONE_BY_ONE));
        let facts = Facts { single: Err(Refusal::Unit), ..old() };
        expect(&facts, "fprobe", Missing, "CONFIG_FPROBE", "CONFIG_FPROBE=y");
        expect(&facts, "kprobes", Missing, "no unit", "CONFIG_KPROBE_EVENTS=y");
        let facts = Facts { kprobes_armed: Some(false), ..old() };
        expect(&facts, "kprobes", Missing, "disarmed", "echo 1 >/sys/kernel/debug/kprobes/enabled");
        let facts = Facts { multi: unloadable(libc::EINVAL), ..healthy() };
        expect(&facts, "fprobe", Degraded, "knows no kprobe-multi", "5.18");
        let facts = Facts { multi: errno(libc::ENODEV), ..healthy() };
        expect(&facts, "fprobe", Degraded, "refuses a link", "dmesg");
    }

    #[test]
    fn with_fprobe_kprobes_are_not_needed() {
        for (single, armed, detail) in [
            (Err(Refusal::Unit), true, "no unit"),
            (Ok(()), false, "disarmed"),
            (errno(libc::EACCES), true, "refuses"),
        ] {
            let facts = Facts { single, kprobes_armed: Some(armed), ..healthy() };
            expect(&facts, "kprobes", Degraded, detail, "");
        }
    }

    #[test]
    fn without_the_right_to_load_it_cannot_be_seen() {
        let nobody = Facts {
            multi: unloadable(libc::EPERM),
            single: unloadable(libc::EPERM),
            capabilities: held(&[]),
            ..healthy()
        };
        for name in ["fprobe", "kprobes"] {
            expect(&nobody, name, Missing, "can't be seen without root", SUDO);
        }
        expect(&nobody, "capabilities", Missing, "lacks CAP_BPF, CAP_PERFMON", "setcap");
        let facts = Facts { capabilities: healthy().capabilities, ..nobody };
        expect(&facts, "fprobe", Missing, "all capabilities aside", "audit");
        expect(&facts, "memlock", Missing, "8192 KiB", "prlimit --memlock=unlimited");
        let facts = Facts { memlock: Some(Limit { soft: u64::MAX, hard: u64::MAX }), ..facts };
        expect(&facts, "memlock", Fine, "unlimited", "");
        let facts = Facts { multi: unloadable(libc::ENOSYS), single: unloadable(libc::ENOSYS), ..healthy() };
        expect(&facts, "fprobe", Missing, "no bpf(2)", "CONFIG_BPF_SYSCALL=y");
    }

    #[test]
    fn one_source_of_tables_is_enough() {
        let text = || Facts { tables: Ok(Source::Text), kcore: fault(ErrorKind::Unsupported), ..healthy() };
        let facts = Facts { has_kcore: false, ..text() };
        expect(&facts, "kcore", Degraded, "the fault", "CONFIG_PROC_KCORE=y");
        assert_eq!(check(&facts, "kcore").cost.as_deref(), Some(TEXT));
        let facts = Facts { tables: fault(ErrorKind::Unsupported), ..facts };
        expect(&facts, "kcore", Missing, "the fault", "CONFIG_PROC_KCORE=y");
        for (kind, fix) in
            [(ErrorKind::Unsupported, "CONFIG_DEBUG_INFO_BTF=y"), (ErrorKind::Malformed, "report")]
        {
            let facts = Facts { btf: fault(kind), ..text() };
            expect(&facts, "btf", Degraded, "the fault", fix);
            expect(&facts, "kcore", Degraded, "the fault", fix);
        }
        let facts = Facts { kcore: fault(ErrorKind::Malformed), ..text() };
        expect(&facts, "kcore", Degraded, "the fault", "report it");
        let facts = Facts { kcore: fault(ErrorKind::Io), ..text() };
        expect(&facts, "kcore", Degraded, "the fault", "umount /proc/kcore");
        let facts = Facts { kcore: fault(ErrorKind::Permission), ..text() };
        expect(&facts, "kcore", Degraded, "can't be seen without root", SUDO);
    }

    #[test]
    fn file_systems_are_mounted_where_the_kernel_has_them() {
        let facts = Facts { tracefs: fault(ErrorKind::Unsupported), ..healthy() };
        expect(&facts, "tracefs", Degraded, "the fault", "CONFIG_DYNAMIC_FTRACE=y");
        let facts = Facts { can_mount_tracefs: true, ..facts };
        expect(&facts, "tracefs", Degraded, "the fault", "mount -t tracefs tracefs /sys/kernel/tracing");
        let facts = Facts {
            tracefs: fault(ErrorKind::Permission),
            kcore: fault(ErrorKind::Permission),
            tables: fault(ErrorKind::Permission),
            ..healthy()
        };
        expect(&facts, "tracefs", Missing, "can't be seen without root", SUDO);
        // The blacklist is never needed.
        let facts = Facts { debugfs: fault(ErrorKind::Unsupported), ..healthy() };
        expect(&facts, "debugfs", Degraded, "the fault", "CONFIG_DEBUG_FS=y");
        let facts = Facts { can_mount_debugfs: true, ..facts };
        expect(&facts, "debugfs", Degraded, "the fault", "mount -t debugfs debugfs /sys/kernel/debug");
        let facts = Facts { kcore: fault(ErrorKind::Permission), tables: Ok(Source::Text), ..facts };
        assert!(check(&facts, "debugfs").cost.unwrap().contains("only the built-in denylist"));
    }

    #[test]
    fn hidden_addresses_are_told_with_who_hides_them() {
        let hidden = || Facts { shows_addresses: Some(false), ..healthy() };
        let facts = Facts { kptr_restrict: Some(2), ..hidden() };
        expect(
            &facts,
            "kptr_restrict",
            Degraded,
            "2: addresses are hidden from everybody",
            "kptr_restrict=1",
        );
        let facts = Facts { kptr_restrict: Some(1), capabilities: held(&[2, 17, 38, 39]), ..hidden() };
        expect(&facts, "kptr_restrict", Degraded, "lacks CAP_SYSLOG", SUDO);
        expect(&facts, "capabilities", Degraded, "lacks CAP_SYSLOG", "setcap");
        assert_eq!(check(&facts, "capabilities").cost.as_deref(), Some(UNKEPT));
        let facts = Facts { shows_addresses: None, kptr_restrict: None, ..healthy() };
        expect(&facts, "kptr_restrict", Degraded, "unreadable", MOUNT_PROC);
    }

    #[test]
    fn lockdown_forbids_to_read_and_only_at_its_strictest() {
        for (lockdown, state, detail) in [
            (Lockdown::Absent, Fine, "there is none"),
            (Lockdown::Off, Fine, "none"),
            (Lockdown::Integrity, Fine, "integrity"),
            (Lockdown::Confidentiality, Degraded, "confidentiality"),
            (Lockdown::Unknown, Degraded, "no mode"),
        ] {
            expect(&Facts { lockdown, ..healthy() }, "lockdown", state, detail, "");
        }
        let facts = Facts {
            lockdown: Lockdown::Confidentiality,
            tables: fault(ErrorKind::Permission),
            kcore: fault(ErrorKind::Permission),
            tracefs: fault(ErrorKind::Permission),
            ..healthy()
        };
        for name in ["lockdown", "kcore", "tracefs"] {
            expect(&facts, name, Missing, "", UNLOCK);
            assert!(!check(&facts, name).detail.contains("without root"));
        }
    }

    #[test]
    fn perf_is_in_the_way_where_it_refused_and_not_where_its_setting_says_so() {
        expect(&healthy(), "perf_event_paranoid", Fine, "3: not in the way", "");
        let refused = || Facts { single: errno(libc::EACCES), capabilities: held(&[38, 39]), ..healthy() };
        expect(&refused(), "perf_event_paranoid", Degraded, "3: kprobes", CALM);
        expect(&refused(), "kprobes", Degraded, "refuses", CALM);
        let facts = Facts { multi: errno(libc::EOPNOTSUPP), ..refused() };
        expect(&facts, "perf_event_paranoid", Missing, "3: kprobes", CALM);
        let facts = Facts { perf_event_paranoid: Some(2), ..refused() };
        expect(&facts, "perf_event_paranoid", Fine, "2", "");
        let facts = Facts { perf_event_paranoid: None, ..refused() };
        expect(&facts, "perf_event_paranoid", Fine, "unreadable", "");
    }

    #[test]
    fn switched_off_ftrace_is_not_tried_and_nothing_is_attached() {
        let facts = Facts { ftrace_enabled: Some(0), ..healthy() };
        expect(&facts, "ftrace_enabled", Missing, "0", SWITCH_FTRACE_ON);
        let facts = Facts { multi: Err(Refusal::Unit), ..facts };
        expect(&facts, "fprobe", Degraded, "not tried", SWITCH_FTRACE_ON);
        let facts = Facts { ftrace_enabled: None, ..healthy() };
        expect(&facts, "ftrace_enabled", Degraded, "can't be read", MOUNT_PROC);
    }

    #[test]
    fn capabilities_are_missed_where_something_failed_for_them() {
        // Root's own files need none to be read.
        let facts = Facts { capabilities: held(&[38, 39]), ..healthy() };
        expect(&facts, "capabilities", Fine, "", "");
        let facts = Facts { kcore: fault(ErrorKind::Permission), tables: Ok(Source::Text), ..facts };
        expect(&facts, "capabilities", Degraded, "lacks CAP_DAC_READ_SEARCH, CAP_SYS_RAWIO", "setcap");
        assert_eq!(check(&facts, "capabilities").cost.as_deref(), Some(TEXT));
        let in_container = Capabilities { effective: u64::MAX, in_user_namespace: true };
        let facts = Facts {
            capabilities: Some(in_container),
            multi: unloadable(libc::EPERM),
            single: unloadable(libc::EPERM),
            ..healthy()
        };
        expect(&facts, "capabilities", Missing, "user namespace", "outside");
        expect(
            &Facts { capabilities: None, ..healthy() },
            "capabilities",
            Degraded,
            "can't be read",
            MOUNT_PROC,
        );
    }

    #[test]
    fn files_are_counted_where_each_function_needs_one() {
        expect(&healthy(), "nofile", Fine, "1024", "");
        let old = || Facts { multi: errno(libc::EOPNOTSUPP), ..healthy() };
        expect(&old(), "nofile", Fine, "may raise", "");
        let bound = || Facts { capabilities: held(&[38, 39]), ..old() };
        expect(&bound(), "nofile", Degraded, "at most 4096", "prlimit --nofile=1048576");
        assert!(check(&bound(), "nofile").cost.unwrap().contains("4096 functions"));
        let facts = Facts { nofile: Some(Limit { soft: 1024, hard: u64::MAX }), ..bound() };
        expect(&facts, "nofile", Fine, "may raise", "");
        let facts = Facts { single: unloadable(libc::EPERM), ..bound() };
        expect(&facts, "nofile", Fine, "not in the way", "");
        for name in ["nofile", "memlock"] {
            let facts = Facts { nofile: None, memlock: None, ..healthy() };
            expect(&facts, name, Degraded, "can't be read", MOUNT_PROC);
        }
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_done_without() {
        expect(&Facts { is_cached: true, ..healthy() }, "cache", Fine, "has the tables of this boot", "");
        expect(&healthy(), "cache", Fine, "can be written", "");
        expect(
            &Facts { cache: fault(ErrorKind::Io), ..healthy() },
            "cache",
            Degraded,
            "the fault",
            "XDG_RUNTIME_DIR",
        );
        let odd = Err(Error::new(ErrorKind::Malformed, "the fault").with_hint("the hint"));
        expect(&Facts { cache: odd, ..healthy() }, "cache", Degraded, "the fault", "the hint");
    }
}
