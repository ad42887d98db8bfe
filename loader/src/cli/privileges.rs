//! What this process may do: with files that its arguments name no more than whoever runs it, and after the attach no
//! more than it still has to.
//!
//! To Linux, capabilities belong to a thread. This gives up those of the thread that counts, which is the only one
//! once the cache has been written: [`keep`](super::run) needs CAP_SYSLOG to see where modules lie, and its
//! thread ends with what it was started with.

use std::io;

use fastprobe::{instrument::Instrument, session::Session};
use rustix::{
    process::getuid,
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs},
};

use super::warn;

/// Opens files that the arguments name, with the rights of whoever runs this. With file capabilities the process may
/// read what its user may not, and would show it in an error about the text. Root may read everything anyway.
///
/// # Errors
///
/// Where the capabilities can't be set; `work` is not done then.
pub fn with_own_rights<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    if getuid().is_root() { Ok(work()) } else { without_others_files(work) }
}

fn without_others_files<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let held = capabilities(None)?;
    let others_files = CapabilitySet::DAC_READ_SEARCH | CapabilitySet::DAC_OVERRIDE;
    set_capabilities(None, CapabilitySets { effective: held.effective - others_files, ..held })?;
    let result = work();
    set_capabilities(None, held)?;
    Ok(result)
}

/// Gives up the capabilities of this thread, for good: counters are memory, and closing the link detaches.
///
/// That it can't be done is no fault of this run.
pub fn give_up<I: Instrument>(session: &Session<'_, I>) {
    if let Err(error) = give_up_all_but_needed(|| session.misses().is_ok()) {
        warn(format_args!("can't give up capabilities: {error}"), None);
    }
}

/// Gives up everything, but CAP_BPF where `works` fails without it.
///
/// `works` is `BPF_OBJ_GET_INFO_BY_FD`. With `kernel.unprivileged_bpf_disabled` 1 or 2, as distributions have it, old
/// kernels want CAP_BPF for every `bpf(2)`, later ones only to create something (`__sys_bpf` in
/// `kernel/bpf/syscall.c`; the VM tests show that 6.12 and 7.3 do). A trial tells, whatever was backported.
fn give_up_all_but_needed(works: impl Fn() -> bool) -> io::Result<()> {
    let held = capabilities(None)?.permitted;
    let none = CapabilitySet::empty();
    // What is permitted still can be had back.
    set(none, held)?;
    let needed = if works() { none } else { held & CapabilitySet::BPF };
    set(needed, needed)?;
    // Nor will a program with the set-user-ID bit or capabilities of its own bring any back.
    Ok(set_no_new_privs(true)?)
}

fn set(effective: CapabilitySet, permitted: CapabilitySet) -> io::Result<()> {
    let inheritable = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, os::unix::fs::PermissionsExt, thread};

    use super::*;

    /// In a thread of its own, which alone loses them.
    fn left(works: bool) -> (CapabilitySets, CapabilitySet, bool) {
        let work = move || {
            let held = capabilities(None).unwrap().permitted;
            let seen = Cell::new(true);
            give_up_all_but_needed(|| {
                seen.set(capabilities(None).unwrap().effective.is_empty());
                works
            })
            .unwrap();
            assert!(seen.get(), "it was asked while it still had capabilities");
            (capabilities(None).unwrap(), held, rustix::thread::no_new_privs().unwrap())
        };
        thread::spawn(work).join().unwrap()
    }

    #[test]
    fn nothing_is_left_but_what_is_needed() {
        let before = capabilities(None).unwrap();
        let none = CapabilitySet::empty();
        let (left_over, _, locked) = left(true);
        assert_eq!((left_over.effective, left_over.permitted, left_over.inheritable), (none, none, none));
        assert!(locked);
        let (left_over, held, _) = left(false);
        let bpf = held & CapabilitySet::BPF;
        assert_eq!((left_over.effective, left_over.permitted), (bpf, bpf));
        assert_eq!(capabilities(None).unwrap(), before);
    }

    #[test]
    fn others_files_are_closed_to_the_work_and_to_it_alone() {
        let work = || {
            let before = capabilities(None).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("secret");
            fs::write(&path, "of somebody else").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
            let during = without_others_files(|| fs::read(&path)).unwrap();
            assert_eq!(during.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            assert_eq!(capabilities(None).unwrap(), before);
            let reads_all = before.effective.contains(CapabilitySet::DAC_OVERRIDE);
            assert_eq!(fs::read(&path).is_ok(), reads_all);
        };
        thread::spawn(work).join().unwrap();
    }
}
