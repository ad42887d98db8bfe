//! The running kernel behind the door: `bpf(2)`.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use aya_obj::generated::{
    bpf_attr, bpf_cmd, bpf_link_info, bpf_prog_info, bpf_prog_type, bpf_stats_type, perf_event_attr,
    perf_type_id,
};

use super::{Kernel, MapShape, Mapping, Moment, ProgramImage, ProgramInfo};

/// The kernel that this process runs on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Live;

/// `PERF_FLAG_FD_CLOEXEC` (`include/uapi/linux/perf_event.h`).
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// Bytes of a name in the kernel, the NUL included (`BPF_OBJ_NAME_LEN`).
const NAME_BYTES: usize = 16;

impl Kernel for Live {
    fn create_map(&self, shape: MapShape<'_>) -> io::Result<OwnedFd> {
        let mut attr = zeroed();
        // SAFETY: all fields of the union are plain integers, for which zeros are valid.
        let create = unsafe { &mut attr.__bindgen_anon_1 };
        create.map_type = shape.map_type;
        create.key_size = shape.key_bytes;
        create.value_size = shape.value_bytes;
        create.max_entries = shape.max_entries;
        create.map_flags = shape.flags;
        create.map_name = kernel_name(shape.name);
        bpf_fd(bpf_cmd::BPF_MAP_CREATE, &mut attr)
    }

    fn update_map(&self, map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()> {
        let mut attr = zeroed();
        // SAFETY: plain integers, as above.
        let element = unsafe { &mut attr.__bindgen_anon_2 };
        element.map_fd = map.as_raw_fd() as u32;
        element.key = &raw const key as u64;
        element.__bindgen_anon_1.value = value.as_ptr() as u64;
        bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr).map(drop)
    }

    fn freeze_map(&self, map: BorrowedFd<'_>) -> io::Result<()> {
        let mut attr = zeroed();
        // SAFETY: plain integers, as above.
        unsafe { &mut attr.__bindgen_anon_2 }.map_fd = map.as_raw_fd() as u32;
        bpf(bpf_cmd::BPF_MAP_FREEZE, &mut attr).map(drop)
    }

    fn map_memory(&self, map: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::new(map, bytes)
    }

    fn load_program(&self, image: &ProgramImage<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
        let mut attr = zeroed();
        // SAFETY: plain integers, as above.
        let load = unsafe { &mut attr.__bindgen_anon_3 };
        load.prog_type = bpf_prog_type::BPF_PROG_TYPE_KPROBE as u32;
        load.expected_attach_type = image.expected_attach_type;
        load.insns = image.instructions.as_ptr() as u64;
        load.insn_cnt = image.instructions.len() as u32;
        load.license = image.license.as_ptr() as u64;
        load.prog_name = kernel_name(image.name);
        if !log.is_empty() {
            load.log_level = 1;
            load.log_buf = log.as_mut_ptr() as u64;
            load.log_size = log.len() as u32;
        }
        bpf_fd(bpf_cmd::BPF_PROG_LOAD, &mut attr)
    }

    fn link_kprobe_multi(
        &self,
        program: BorrowedFd<'_>,
        moment: Moment,
        addresses: &[u64],
    ) -> io::Result<OwnedFd> {
        let mut attr = zeroed();
        // SAFETY: plain integers, as above.
        let link = unsafe { &mut attr.link_create };
        link.__bindgen_anon_1.prog_fd = program.as_raw_fd() as u32;
        link.attach_type = moment.attach_type();
        // SAFETY: plain integers, as above.
        let multi = unsafe { &mut link.__bindgen_anon_3.kprobe_multi };
        multi.flags = moment.flags();
        multi.cnt = u32::try_from(addresses.len()).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))?;
        multi.addrs = addresses.as_ptr() as u64;
        bpf_fd(bpf_cmd::BPF_LINK_CREATE, &mut attr)
    }

    fn open_kprobe(&self, unit: u32, address: u64) -> io::Result<OwnedFd> {
        // SAFETY: plain integers, as above.
        let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
        attr.size = size_of::<perf_event_attr>() as u32;
        attr.type_ = unit;
        attr.__bindgen_anon_4.kprobe_addr = address;
        // Any process, on CPU 0, in no group: a kprobe is hit on every CPU all the same.
        // SAFETY: `attr` is a whole, initialised block that lives over the call.
        let result = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC)
        };
        new_fd(result)
    }

    fn trace_command(&self, file: BorrowedFd<'_>, line: &str) -> io::Result<()> {
        // SAFETY: the pointer and the length are those of a slice that lives over the call.
        let written = unsafe { libc::write(file.as_raw_fd(), line.as_ptr().cast(), line.len()) };
        match usize::try_from(written) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(written) if written < line.len() => Err(io::Error::from(io::ErrorKind::WriteZero)),
            Ok(_) => Ok(()),
        }
    }

    fn open_event(&self, id: u64, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        // SAFETY: plain integers, as above.
        let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
        attr.type_ = perf_type_id::PERF_TYPE_TRACEPOINT as u32;
        attr.size = size_of::<perf_event_attr>() as u32;
        attr.config = id;
        attr.set_disabled(1);
        // A program runs on whatever CPU the hit is; but the event has to be of a CPU, where it is of no process.
        let (process, cpu, group) = (-1, 0, -1);
        // SAFETY: `attr` is whole and lives over the call.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                process,
                cpu,
                group,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        let event = new_fd(fd)?;
        // SAFETY: takes two descriptors and no pointer.
        match unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) } {
            0 => Ok(event),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn link_missed(&self, link: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        // SAFETY: plain integers, as above.
        let mut info: bpf_link_info = unsafe { std::mem::zeroed() };
        let filled = object_info(link, &mut info)?;
        let end = std::mem::offset_of!(bpf_link_info, __bindgen_anon_1) + LINK_MISSED_END;
        // SAFETY: whatever the union holds, it was zeroed first: a number can be read out of it.
        let missed = unsafe { info.__bindgen_anon_1.kprobe_multi.missed };
        Ok((filled >= end).then_some(missed))
    }

    fn program_info(&self, program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
        // SAFETY: plain integers, as above.
        let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
        object_info(program, &mut info)?;
        Ok(ProgramInfo {
            id: info.id,
            recursion_misses: info.recursion_misses,
            runs: info.run_cnt,
            run_ns: info.run_time_ns,
        })
    }

    fn enable_run_stats(&self) -> io::Result<OwnedFd> {
        let mut attr = zeroed();
        // SAFETY: plain integers, as above.
        unsafe { &mut attr.enable_stats }.type_ = bpf_stats_type::BPF_STATS_RUN_TIME as u32;
        bpf_fd(bpf_cmd::BPF_ENABLE_STATS, &mut attr)
    }
}

/// `_IOW('$', 8, __u32)`, the same file.
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;

/// Where `kprobe_multi.missed` ends within the union: `addrs` 8, `count` and `flags` 4 each, `missed` 8
/// (`struct bpf_link_info`, `include/uapi/linux/bpf.h`, 6.7).
const LINK_MISSED_END: usize = 24;

/// An argument block of zeros: the kernel asks that what a call doesn't use be zero.
fn zeroed() -> bpf_attr {
    // SAFETY: the union's members are integers and arrays of integers.
    unsafe { std::mem::zeroed() }
}

/// The first 15 bytes of `name`, with what the kernel refuses in a name (`bpf_obj_name_cpy`) left out.
fn kernel_name(name: &str) -> [libc::c_char; NAME_BYTES] {
    let mut out = [0; NAME_BYTES];
    let allowed = name.bytes().filter(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'));
    for (to, from) in out[..NAME_BYTES - 1].iter_mut().zip(allowed) {
        *to = from as libc::c_char;
    }
    out
}

/// `BPF_OBJ_GET_INFO_BY_FD` into `info`; gives how many bytes of it this kernel knows.
fn object_info<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<usize> {
    let mut attr = zeroed();
    // SAFETY: plain integers, as above.
    let query = unsafe { &mut attr.info };
    query.bpf_fd = object.as_raw_fd() as u32;
    query.info_len = size_of::<T>() as u32;
    query.info = std::ptr::from_mut(info) as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    // SAFETY: plain integers, as above.
    Ok(unsafe { attr.info }.info_len as usize)
}

/// A call whose result is a new file descriptor.
fn bpf_fd(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    new_fd(bpf(command, attr)?)
}

/// The descriptor that a system call gave, or its errno.
fn new_fd(result: i64) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the calls that are passed on to here give a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i64> {
    // SAFETY: `attr` is a whole, initialised `bpf_attr`; the pointers in it were taken from references that
    // the callers hold over this call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw mut *attr, size_of::<bpf_attr>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_cleaned() {
        let text = |name| kernel_name(name).map(|c| c as u8);
        assert_eq!(&text(".rodata")[..8], b".rodata\0");
        assert_eq!(&text("a-very long+name_of_a_map")[..], b"averylongname_o\0");
    }

    #[test]
    fn missed_ends_where_the_bindings_have_it() {
        use aya_obj::generated::bpf_link_info__bindgen_ty_1__bindgen_ty_9 as KprobeMulti;
        assert_eq!(std::mem::offset_of!(KprobeMulti, missed) + 8, LINK_MISSED_END);
    }
}
