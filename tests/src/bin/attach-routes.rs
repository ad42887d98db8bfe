//! Compares the ways to attach one program to many functions on a kernel without kprobe-multi links.
//!
//! `attach-routes GLOB COUNT ROUTE…` attaches to the first COUNT functions that GLOB matches, on each route in
//! turn, and prints how long attach and detach took. A route is `perf:THREADS` (a perf kprobe for each function) or
//! `tracefs` (one event of tracefs with all probes); `+5` behind it puts the probes behind the call of ftrace.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    process::ExitCode,
    thread,
    time::Instant,
};

use anyhow::{Context, Result};
use aya_obj::generated::perf_event_attr;
use fastprobe::{
    counting::COUNTING_OBJECT,
    pattern::{PatternSet, PatternText, Syntax},
    plan::{Policy, plan},
    program::{Program, Settings},
    sys::Live,
    tables::{Root, Tables, Wish},
};

const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
const PERF_TYPE_TRACEPOINT: u32 = 2;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attach-routes: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let (glob, count) = (words.next().context("GLOB")?, words.next().context("COUNT")?.parse()?);
    let patterns = PatternSet::new(Syntax::Glob, &[PatternText::argument(&glob)], &[], &[])?;
    let tables = Tables::read(&Root::machine(), None, Wish::Auto, Some(&patterns))?;
    let matches = tables.matching(&mut patterns.matcher())?;
    let sites: Vec<u64> =
        plan(&matches, Policy::default()).targets.iter().map(|t| t.site).take(count).collect();
    let limit = libc::rlimit { rlim_cur: 1 << 19, rlim_max: 1 << 19 };
    // SAFETY: reads the structure.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let program = Program::load(&Live, COUNTING_OBJECT, "count", &Settings::default())?;
    for route in words {
        let (name, offset) = route.split_once('+').unwrap_or((&route, "0"));
        let offset: u64 = offset.parse()?;
        let sites: Vec<u64> = sites.iter().map(|site| site + offset).collect();
        let started = Instant::now();
        let (attached, attach, detach) = match name.split_once(':') {
            Some((_, threads)) => {
                let events = perf(&sites, program.as_fd(), threads.parse()?)?;
                (events.len(), started.elapsed(), close(events, threads.parse()?))
            }
            None => {
                let event = tracefs(&sites, program.as_fd())?;
                let attach = started.elapsed();
                let started = Instant::now();
                drop(event.1);
                let closed = started.elapsed();
                fs::OpenOptions::new()
                    .append(true)
                    .open("/sys/kernel/tracing/kprobe_events")?
                    .write_all(b"-:fp_routes/ev\n")?;
                println!("  closed {:.0} ms", closed.as_secs_f64() * 1e3);
                (event.0, attach, started.elapsed())
            }
        };
        println!(
            "{route}: {attached} of {}: attach {:.0} ms, detach {:.0} ms",
            sites.len(),
            attach.as_secs_f64() * 1e3,
            detach.as_secs_f64() * 1e3
        );
    }
    Ok(())
}

fn perf(sites: &[u64], program: BorrowedFd<'_>, threads: usize) -> Result<Vec<OwnedFd>> {
    let kind: u32 = fs::read_to_string("/sys/bus/event_source/devices/kprobe/type")?.trim().parse()?;
    thread::scope(|scope| {
        let chunks: Vec<_> = sites
            .chunks(sites.len().div_ceil(threads))
            .map(|sites| {
                scope.spawn(move || {
                    let open = |&site: &u64| {
                        let fd = open_event(kind, 0, site)?;
                        set_bpf(&fd, program)?;
                        Ok::<_, io::Error>(fd)
                    };
                    let (good, bad): (Vec<_>, Vec<_>) = sites.iter().map(open).partition(Result::is_ok);
                    if let Some(Err(error)) = bad.first() {
                        println!("  {} refused: {error}", bad.len());
                    }
                    good.into_iter().flatten().collect::<Vec<_>>()
                })
            })
            .collect();
        Ok(chunks.into_iter().flat_map(|chunk| chunk.join().expect("joined")).collect())
    })
}

fn close(mut events: Vec<OwnedFd>, threads: usize) -> std::time::Duration {
    let started = Instant::now();
    let size = events.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        while !events.is_empty() {
            let chunk = events.split_off(events.len().saturating_sub(size));
            scope.spawn(|| drop(chunk));
        }
    });
    started.elapsed()
}

fn tracefs(sites: &[u64], program: BorrowedFd<'_>) -> Result<(usize, OwnedFd)> {
    let mut file = OpenOptions::new().append(true).open("/sys/kernel/tracing/kprobe_events")?;
    let mut attached = 0;
    let started = Instant::now();
    let mut refused = None;
    let stext = stext()?;
    for site in sites {
        match file.write_all(format!("p:fp_routes/ev _stext+{}\n", site - stext).as_bytes()) {
            Ok(()) => attached += 1,
            Err(error) => refused = Some(error),
        }
    }
    println!("  {attached} made in {:.0} ms; {refused:?}", started.elapsed().as_secs_f64() * 1e3);
    let id = fs::read_to_string("/sys/kernel/tracing/events/fp_routes/ev/id")?.trim().parse()?;
    let fd = open_event(PERF_TYPE_TRACEPOINT, id, 0)?;
    set_bpf(&fd, program)?;
    Ok((attached, fd))
}

fn stext() -> Result<u64> {
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let line = symbols.lines().find(|line| line.ends_with(" T _stext")).context("no _stext")?;
    Ok(u64::from_str_radix(line.split(' ').next().unwrap_or_default(), 16)?)
}

fn open_event(kind: u32, config: u64, address: u64) -> io::Result<OwnedFd> {
    // SAFETY: integers, for which zeros are valid.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.type_ = kind;
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.config = config;
    attr.__bindgen_anon_4.kprobe_addr = address;
    attr.set_disabled(1);
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    // SAFETY: the structure lives over the call.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

fn set_bpf(event: &OwnedFd, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes a descriptor.
    match unsafe { libc::ioctl(event.as_raw_fd(), PERF_EVENT_IOC_SET_BPF, program.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
