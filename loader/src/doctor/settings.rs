//! The kernel's small files: numbers, a mode, the state and the limits of this process.

use std::{
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use super::facts::{Capabilities, Limit, Lockdown};
use crate::tables::open_regular;

/// More than any of these files has.
const MAX_BYTES: u64 = 64 << 10;

/// Symbols without an address, such as those of per-CPU data, come first: 200 to 300 of them.
const MAX_SYMBOLS: usize = 20_000;

/// The text of a file; none where it can't be read as one.
pub fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_regular(path).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The number in a file.
pub fn number(path: &Path) -> Option<i64> {
    text(path)?.trim().parse().ok()
}

/// The mode in brackets: `none [integrity] confidentiality`.
pub fn lockdown(path: &Path) -> Lockdown {
    let Some(text) = text(path) else { return Lockdown::Absent };
    let mode = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(mode, _)| mode);
    match mode {
        Some("none") => Lockdown::Off,
        Some("integrity") => Lockdown::Integrity,
        Some("confidentiality") => Lockdown::Confidentiality,
        _ => Lockdown::Unknown,
    }
}

/// What the process may do whose folder in procfs this is.
pub fn capabilities(process: &Path) -> Option<Capabilities> {
    let status = text(&process.join("status"))?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    // The first user namespace maps every user to itself; a kernel without namespaces has no such file.
    let users = text(&process.join("uid_map"));
    let in_user_namespace = users.is_some_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"]));
    Some(Capabilities { effective, in_user_namespace })
}

/// A row of `/proc/self/limits`: its name, the soft limit, the hard one and the unit.
pub fn limit(process: &Path, name: &str) -> Option<Limit> {
    let limits = text(&process.join("limits"))?;
    let row = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut numbers = row.split_whitespace().map(|number| match number {
        "unlimited" => Some(u64::MAX),
        _ => number.parse().ok(),
    });
    Some(Limit { soft: numbers.next()??, hard: numbers.next()?? })
}

/// Whether the kernel has file systems of this kind, and none is mounted.
pub fn can_mount(procfs: &Path, kind: &str) -> bool {
    let has = |file: &str, column: usize| {
        let text = text(&procfs.join(file)).unwrap_or_default();
        text.lines().any(|line| line.split_whitespace().nth(column) == Some(kind))
    };
    has("filesystems", 1) && !has("self/mounts", 2)
}

/// Whether a list of symbols has the address of a function that isn't zero; none where it has no function.
pub fn shows_addresses(kallsyms: impl Read) -> Option<bool> {
    for line in BufReader::new(kallsyms).split(b'\n').take(MAX_SYMBOLS) {
        let line: Result<Vec<u8>, io::Error> = line;
        let line = line.ok()?;
        let mut fields = line.split(|&byte| byte == b' ');
        if let (Some(address), Some(b"t" | b"T")) = (fields.next(), fields.next()) {
            return Some(address.iter().any(|&digit| digit != b'0'));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(contents: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), contents).unwrap();
        file
    }

    #[test]
    fn numbers_and_modes_are_read_and_all_else_is_none() {
        assert_eq!(number(file(b"-1\n").path()), Some(-1));
        assert_eq!(number(file(b"x\n").path()), None);
        assert_eq!(number(file(b"\xff\n").path()), None);
        assert_eq!(number(Path::new("/dev/zero")), None);
        for (text, mode) in [
            ("[none] integrity confidentiality\n", Lockdown::Off),
            ("none [integrity] confidentiality\n", Lockdown::Integrity),
            ("none integrity [confidentiality]\n", Lockdown::Confidentiality),
            ("none integrity confidentiality [paranoia]\n", Lockdown::Unknown),
            ("", Lockdown::Unknown),
        ] {
            assert_eq!(lockdown(file(text.as_bytes()).path()), mode, "{text}");
        }
        assert_eq!(lockdown(Path::new("/nowhere")), Lockdown::Absent);
    }

    #[test]
    fn capabilities_and_limits_are_those_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!((capabilities(dir.path()), limit(dir.path(), "Max open files")), (None, None));
        write("status", "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t000000c000000000\n");
        write("uid_map", "         0          0 4294967295\n");
        let held = capabilities(dir.path()).unwrap();
        assert!(held.has(Capabilities::BPF) && held.has(Capabilities::PERFMON) && held.can_trace());
        assert!(!held.has(Capabilities::SYSLOG) && !held.in_user_namespace);
        write("uid_map", "         0       1000          1\n");
        assert!(!capabilities(dir.path()).unwrap().can_trace());
        write("status", "CapEff:\tlots\n");
        assert_eq!(capabilities(dir.path()), None);
        write(
            "limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max open files            1024                 4096                 files     \n\
             Max locked memory         8388608              unlimited            bytes     \n\
             Max nice priority         0\n",
        );
        assert_eq!(limit(dir.path(), "Max open files"), Some(Limit { soft: 1024, hard: 4096 }));
        let memory = Limit { soft: 8 << 20, hard: u64::MAX };
        assert_eq!(limit(dir.path(), "Max locked memory"), Some(memory));
        assert_eq!((limit(dir.path(), "Max nice priority"), limit(dir.path(), "Max rest")), (None, None));
    }

    #[test]
    fn the_first_function_tells_whether_addresses_are_shown() {
        let zeros = "0000000000000000 A fixed_percpu_data\n";
        let shows = |text: &str| shows_addresses(text.as_bytes());
        assert_eq!(shows(&format!("{zeros}ffffffff81000000 T _stext\n")), Some(true));
        assert_eq!(shows(&format!("{zeros}0000000000000000 T _stext\n")), Some(false));
        assert_eq!((shows(zeros), shows(""), shows("T\n\n  \n")), (None, None, None));
    }
}
