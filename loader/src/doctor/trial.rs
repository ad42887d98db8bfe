//! Attaching, tried: a program that does nothing, to a function that is hardly ever called.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use aya_obj::generated::{BPF_ALU64, BPF_EXIT, BPF_JMP, BPF_MOV, bpf_insn};

use super::settings;
use crate::sys::{Kernel, Moment, ProgramImage};

/// The step at which a trial ended, and what the kernel said.
#[derive(Debug)]
pub enum Refusal {
    /// The program was not loaded.
    Program(io::Error),
    /// There is no perf unit that makes kprobes.
    Unit,
    /// It was not attached.
    Probe(io::Error),
}

/// A link for many functions, with the one whose ftrace record is at `site`. Where no site is known, because the
/// tables can't be read, what tells is how an address is refused that is none.
pub fn multi(kernel: &dyn Kernel, site: Option<u64>) -> Result<(), Refusal> {
    let program = load(kernel, Moment::Entry.attach_type()).map_err(Refusal::Program)?;
    match kernel.link_kprobe_multi(program.as_fd(), Moment::Entry, &[site.unwrap_or(0)]) {
        Ok(_link) => Ok(()),
        Err(e) if site.is_none() && matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => Ok(()),
        Err(e) => Err(Refusal::Probe(e)),
    }
}

/// A kprobe at `site`, on its own. `units` is `/sys/bus/event_source/devices`.
pub fn single(kernel: &dyn Kernel, units: &Path, site: Option<u64>) -> Result<(), Refusal> {
    let _program = load(kernel, 0).map_err(Refusal::Program)?;
    let unit = settings::number(&units.join("kprobe/type")).and_then(|unit| u32::try_from(unit).ok());
    match kernel.open_kprobe(unit.ok_or(Refusal::Unit)?, site.unwrap_or(0)) {
        Ok(_probe) => Ok(()),
        Err(e) if site.is_none() && e.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        Err(e) => Err(Refusal::Probe(e)),
    }
}

/// `r0 = 0; exit`
fn load(kernel: &dyn Kernel, expected_attach_type: u32) -> io::Result<OwnedFd> {
    let instruction = |code: u32| bpf_insn {
        code: code as u8,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm: 0,
    };
    let image = ProgramImage {
        name: "doctor",
        license: c"Dual MIT/GPL",
        instructions: &[instruction(BPF_ALU64 | BPF_MOV), instruction(BPF_JMP | BPF_EXIT)],
        expected_attach_type,
    };
    kernel.load_program(&image, &mut [])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sys::Fake;

    #[test]
    fn a_link_is_tried_with_the_function_or_with_an_address_that_is_none() {
        let fake = Fake::default();
        multi(&fake, Some(0x9004)).unwrap();
        assert_eq!(*fake.links.borrow(), [[0x9004]]);
        let refusing = |errno| Fake { link_errno: Some(errno), ..Fake::default() };
        for errno in [libc::EINVAL, libc::ENOENT] {
            multi(&refusing(errno), None).unwrap();
            assert!(matches!(multi(&refusing(errno), Some(4)), Err(Refusal::Probe(_))));
        }
        assert!(matches!(multi(&refusing(libc::EOPNOTSUPP), None), Err(Refusal::Probe(_))));
        let fake = Fake { load_errno: Some((libc::EPERM, "")), ..Fake::default() };
        assert!(
            matches!(multi(&fake, Some(4)), Err(Refusal::Program(e)) if e.raw_os_error() == Some(libc::EPERM))
        );
    }

    #[test]
    fn a_probe_is_tried_where_there_is_a_unit_for_it() {
        let units = tempfile::tempdir().unwrap();
        let single = |fake: &Fake, site| single(fake, units.path(), site);
        assert!(matches!(single(&Fake::default(), Some(4)), Err(Refusal::Unit)));
        fs::create_dir(units.path().join("kprobe")).unwrap();
        fs::write(units.path().join("kprobe/type"), "-6\n").unwrap();
        assert!(matches!(single(&Fake::default(), Some(4)), Err(Refusal::Unit)));
        fs::write(units.path().join("kprobe/type"), "6\n").unwrap();
        single(&Fake::default(), Some(4)).unwrap();
        let refusing = |errno| Fake { kprobe_errno: Some(errno), ..Fake::default() };
        single(&refusing(libc::EINVAL), None).unwrap();
        assert!(matches!(single(&refusing(libc::EINVAL), Some(4)), Err(Refusal::Probe(_))));
        assert!(matches!(single(&refusing(libc::EACCES), None), Err(Refusal::Probe(_))));
        let fake = Fake { load_errno: Some((libc::EPERM, "")), ..Fake::default() };
        assert!(matches!(single(&fake, Some(4)), Err(Refusal::Program(_))));
    }
}
