//! Tries what a run does, and reads what decides whether it works.

use super::{
    facts::Facts,
    settings,
    trial::{self, Refusal},
};
use crate::{
    plan::known_good,
    sys::Kernel,
    tables::{Root, Source, Tables, Wish, cache::Folder, kcore},
};

/// What there is to know of the machine below `root`, whose kernel is `kernel`, and of this process. Nothing of it
/// is an error: what can't be read is a fact as well. Nothing stays behind; for a moment a program is attached to
/// a function that runs when the machine is shut down.
pub fn gather(root: &Root, kernel: &dyn Kernel, cache: &Folder) -> Facts {
    let path = |name: &str| root.path().join(name);
    let tables = Tables::read(root, Some(cache), Wish::Auto, None);
    let site = tables.as_ref().ok().and_then(|tables| known_good(tables).ok().flatten());
    let tables = tables.map(|tables| tables.source());
    let kcore = match tables {
        Ok(Source::Kcore) => Ok(()),
        _ => kcore::read(root, false).map(drop).map_err(|e| kcore::unusable(root, e)),
    };
    let armed = settings::number(&path("sys/kernel/debug/kprobes/enabled"));
    let kallsyms = root.kallsyms().ok();
    let ftrace_enabled = settings::number(&path("proc/sys/kernel/ftrace_enabled"));
    Facts {
        kernel: root.release().unwrap_or_default(),
        kcore,
        has_kcore: root.kcore().exists(),
        can_mount_tracefs: settings::can_mount(&path("proc"), "tracefs"),
        can_mount_debugfs: settings::can_mount(&path("proc"), "debugfs"),
        btf: kcore::check_btf(root),
        tracefs: root.filter_functions().map(|((path, _), _)| path),
        debugfs: root.blacklist().map(|(path, _)| path),
        cache: cache.try_out(),
        cache_file: cache.file(),
        is_cached: Tables::read(root, Some(cache), Wish::Only(Source::Cache), None).is_ok(),
        // To detach while ftrace is off could break it: see `conditions`.
        multi: if ftrace_enabled == Some(0) { Err(Refusal::Unit) } else { trial::multi(kernel, site) },
        single: trial::single(kernel, &path("sys/bus/event_source/devices"), site),
        kprobes_armed: armed.map(|armed| armed != 0),
        shows_addresses: kallsyms.and_then(|(_, file)| settings::shows_addresses(file)),
        kptr_restrict: settings::number(&path("proc/sys/kernel/kptr_restrict")),
        perf_event_paranoid: settings::number(&path("proc/sys/kernel/perf_event_paranoid")),
        ftrace_enabled,
        lockdown: settings::lockdown(&path("sys/kernel/security/lockdown")),
        capabilities: settings::capabilities(&path("proc/self")),
        memlock: settings::limit(&path("proc/self"), "Max locked memory"),
        nofile: settings::limit(&path("proc/self"), "Max open files"),
        tables,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::*;
    use crate::{
        doctor::{Lockdown, State, judge},
        error::ErrorKind,
        sys::Fake,
    };

    fn write(dir: &Path, name: &str, contents: impl AsRef<[u8]>) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    fn gather(dir: &Path, fake: &Fake) -> Facts {
        super::gather(&Root::at(dir), fake, &Folder::at(dir))
    }

    /// A machine whose text files can be read, and whose memory can't.
    fn machine() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("proc/kallsyms", "ffffffff81000000 T kernel_halt\n"),
            ("proc/filesystems", "nodev\ttracefs\nnodev\tdebugfs\n"),
            ("proc/self/mounts", "debugfs /d debugfs rw 0 0\n"),
            ("proc/sys/kernel/osrelease", "6.12.0-test\n"),
            ("proc/sys/kernel/kptr_restrict", "1\n"),
            ("proc/sys/kernel/perf_event_paranoid", "3\n"),
            ("proc/sys/kernel/ftrace_enabled", "1\n"),
            ("proc/self/status", "CapEff:\t000001ffffffffff\n"),
            ("proc/self/uid_map", "0 0 4294967295\n"),
            ("proc/self/limits", "Max open files 1024 4096 files\nMax locked memory 8192 8192 bytes\n"),
            ("sys/kernel/tracing/available_filter_functions_addrs", "ffffffff81000004 kernel_halt\n"),
            ("sys/kernel/debug/kprobes/blacklist", ""),
            ("sys/kernel/debug/kprobes/enabled", "1\n"),
            ("sys/kernel/security/lockdown", "[none] integrity confidentiality\n"),
            ("sys/bus/event_source/devices/kprobe/type", "6\n"),
        ] {
            write(dir.path(), name, text);
        }
        dir
    }

    #[test]
    fn a_machine_is_found_as_it_is() {
        let (dir, fake) = (machine(), Fake::default());
        let facts = gather(dir.path(), &fake);
        assert_eq!(facts.kernel, "6.12.0-test");
        assert_eq!(facts.tables.as_ref().unwrap(), &Source::Text);
        assert_eq!(*fake.links.borrow(), [[0xffff_ffff_8100_0004]]);
        assert_eq!(facts.kcore.as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(facts.btf.as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
        assert!(facts.tracefs.as_ref().unwrap().ends_with("available_filter_functions_addrs"));
        assert!(facts.can_mount_tracefs && !facts.can_mount_debugfs && !facts.has_kcore);
        assert!(facts.debugfs.is_ok() && facts.cache.is_ok() && !facts.is_cached);
        assert!(facts.multi.is_ok() && facts.single.is_ok());
        assert_eq!((facts.kprobes_armed, facts.shows_addresses), (Some(true), Some(true)));
        let numbers = (facts.kptr_restrict, facts.perf_event_paranoid, facts.ftrace_enabled);
        assert_eq!(numbers, (Some(1), Some(3), Some(1)));
        assert_eq!(facts.lockdown, Lockdown::Off);
        assert!(facts.capabilities.unwrap().can_trace());
        assert_eq!((facts.memlock.unwrap().soft, facts.nofile.unwrap().hard), (8192, 4096));
        let report = judge(&facts);
        assert!(report.can_attach());
        assert_eq!(report.checks.iter().find(|check| check.name == "kcore").unwrap().state, State::Degraded);
    }

    #[test]
    fn broken_files_are_facts_and_never_a_panic() {
        let whole = machine();
        let names = [
            "proc/kallsyms",
            "proc/kcore",
            "proc/filesystems",
            "proc/modules",
            "proc/self/mounts",
            "proc/sys/kernel/osrelease",
            "proc/sys/kernel/kptr_restrict",
            "proc/sys/kernel/random/boot_id",
            "proc/self/status",
            "proc/self/uid_map",
            "proc/self/limits",
            "sys/kernel/btf/vmlinux",
            "sys/kernel/notes",
            "sys/kernel/tracing/available_filter_functions_addrs",
            "sys/kernel/debug/kprobes/blacklist",
            "sys/kernel/debug/kprobes/enabled",
            "sys/kernel/security/lockdown",
            "sys/bus/event_source/devices/kprobe/type",
        ];
        for name in names {
            for contents in [&b""[..], b"\xff\xfe\x00\n", b"99999999999999999999\n", &[b'f'; 100_000]] {
                write(whole.path(), name, contents);
                let report = judge(&gather(whole.path(), &Fake::default()));
                assert_eq!(report.checks.len(), 14, "{name}");
            }
            let path = whole.path().join(name);
            for place in ["/dev/zero", "/nowhere", "."] {
                fs::remove_file(&path).unwrap();
                symlink(place, &path).unwrap();
                let _whatever = judge(&gather(whole.path(), &Fake::default()));
            }
            fs::remove_file(&path).unwrap();
        }
        let report = judge(&gather(Path::new("/nowhere"), &Fake::default()));
        assert!(!report.can_attach());
        assert_eq!(report.kernel, "");
    }
}
