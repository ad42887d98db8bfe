//! Prototypes of the ways that a kernel without kprobe-multi links offers, as bare as they can be.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use aya_obj::generated::perf_event_attr;
use fastprobe::{
    instrument::count::OBJECT,
    program::{Programs, Settings, Wanted},
    sys::Live,
};

use super::Took;

const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;

fn program() -> Result<Programs> {
    let limit = libc::rlimit { rlim_cur: 1 << 19, rlim_max: 1 << 19 };
    // SAFETY: reads the structure, which lives over the call.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    ensure!(set == 0, "can't raise the number of open files: {}", io::Error::last_os_error());
    let wanted = Wanted { name: probe_ebpf::COUNT_SINGLE_PROGRAM, attach_type: 0 };
    Ok(Programs::load(&Live, OBJECT, &[wanted], &Settings::default())?)
}

/// A kprobe of perf for each address, made and closed by so many threads.
pub fn perf(sites: &[u64], threads: usize) -> Result<Took> {
    let programs = program()?;
    let program = programs.fds().next().context("a program")?;
    let kind: u32 = fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")?.trim().parse()?;
    let started = Instant::now();
    let share = sites.len().div_ceil(threads).max(1);
    let mut events: Vec<OwnedFd> = thread::scope(|scope| {
        let open = |sites: &[u64]| -> Vec<OwnedFd> {
            sites.iter().filter_map(|site| event(kind, 0, *site, program).ok()).collect()
        };
        let workers: Vec<_> = sites.chunks(share).map(|sites| scope.spawn(move || open(sites))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect()
    });
    let (attached, attach) = (events.len(), started.elapsed());
    let started = Instant::now();
    thread::scope(|scope| {
        while !events.is_empty() {
            let chunk = events.split_off(events.len().saturating_sub(share));
            scope.spawn(|| drop(chunk));
        }
    });
    Ok(Took { attached, attach, detach: started.elapsed() })
}

/// One event of tracefs with a kprobe for each address.
pub fn tracefs(sites: &[u64]) -> Result<Took> {
    let programs = program()?;
    let program = programs.fds().next().context("a program")?;
    let started = Instant::now();
    let mut commands = OpenOptions::new().append(true).open("/sys/kernel/tracing/kprobe_events")?;
    let mut attached = 0;
    for (n, site) in sites.iter().enumerate() {
        let line = format!("p:routes/event {site:#x} n=\\{n}\n");
        attached += usize::from(commands.write_all(line.as_bytes()).is_ok());
    }
    let id = fs::read_to_string("/sys/kernel/tracing/events/routes/event/id")?.trim().parse()?;
    let event = event(PERF_TYPE_TRACEPOINT, id, 0, program);
    let (attach, started) = (started.elapsed(), Instant::now());
    drop(event?);
    commands.write_all(b"-:routes/event\n")?;
    Ok(Took { attached, attach, detach: started.elapsed() })
}

/// An event of perf that runs `program`.
fn event(kind: u32, config: u64, address: u64, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the structure holds integers, for which zeros are valid.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.type_ = kind;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.config = config;
    attr.__bindgen_anon_4.kprobe_addr = address;
    attr.set_disabled(1);
    // SAFETY: the structure lives over the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // SAFETY: takes two descriptors and no pointer.
    match unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) } {
        0 => Ok(event),
        _ => Err(io::Error::last_os_error()),
    }
}
