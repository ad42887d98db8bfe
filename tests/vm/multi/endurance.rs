//! What must hold after a thousand attaches, and after runs that were killed at any moment.
//!
//! `FASTPROBE_WHOLE=1 cargo xtask test --kernel 7 -- endurance` runs all of it; elsewhere a part does, since a detach
//! takes an emulated machine long.

use std::{
    fs,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use aya::{
    maps::loaded_maps,
    programs::{loaded_links, loaded_programs},
};
use fastprobe_tests::{
    RARE_FUNCTION, Running, call_rare_system_call, enabled_functions, fastprobe, hits, json, run,
};

use super::{matches, plan_for, start};

/// Whether all of it is to run.
fn whole() -> bool {
    std::env::var_os("FASTPROBE_WHOLE").is_some()
}

/// What a leak would let grow.
#[derive(Debug, Clone, Copy)]
struct Held {
    files: usize,
    programs: usize,
    links: usize,
    maps: usize,
    /// KiB of the machine's memory that are in use.
    used: u64,
    /// Bytes that this process has allocated and not freed. How much of it is resident says less: that depends on what
    /// the allocator keeps of what was freed.
    allocated: usize,
    /// Pieces of memory that it has mapped.
    mappings: usize,
}

impl Held {
    fn now() -> Self {
        let [total, free] = ["MemTotal:", "MemAvailable:"].map(|head| kib("/proc/meminfo", head));
        Self {
            files: fs::read_dir("/proc/self/fd").expect("readable").count(),
            programs: loaded_programs().count(),
            links: loaded_links().count(),
            maps: loaded_maps().count(),
            used: total - free,
            allocated: allocated(),
            mappings: fs::read_to_string("/proc/self/maps").expect("readable").lines().count(),
        }
    }
}

/// What the C library, which Rust's allocator asks, has given out.
fn allocated() -> usize {
    // SAFETY: it takes nothing, and locks what it looks at.
    let all = unsafe { libc::mallinfo2() };
    all.uordblks + all.hblkhd
}

/// The number in the line of `file` that begins with `head`.
fn kib(file: &str, head: &str) -> u64 {
    let text = fs::read_to_string(file).expect("readable");
    let line = text.lines().find_map(|line| line.strip_prefix(head)).expect("it is there");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Waits until the kernel has freed what it frees behind our backs, for some seconds at most.
fn settle(until: impl Fn(Held) -> bool) -> Held {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let held = Held::now();
        if until(held) || Instant::now() > deadline {
            return held;
        }
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_thousand_attaches_leave_nothing() {
    let cycles = if whole() { 1000 } else { 100 };
    let matches = matches(RARE_FUNCTION);
    let targets = plan_for(&matches).targets;
    let cycle = || {
        let counting = start(&targets, false);
        call_rare_system_call(1);
        assert_eq!(counting.counts(), [1]);
        counting.detach();
    };
    // What is allocated once is there after some.
    (0..20).for_each(|_| cycle());
    let before = settle(|held| held.links + held.programs + held.maps == 0);
    let started = Instant::now();
    (0..cycles).for_each(|_| cycle());
    let took = started.elapsed();
    let after = settle(|held| held.programs <= before.programs && held.maps <= before.maps);
    println!("{cycles} cycles in {took:.1?}\nbefore: {before:?}\nafter:  {after:?}");
    assert_eq!(
        (after.files, after.programs, after.links, after.maps),
        (before.files, before.programs, before.links, before.maps)
    );
    // Less than half a KiB for each cycle, of which there are a hundred at least; and no mapping for each.
    assert!(after.allocated < before.allocated + 48 * 1024, "this process grew");
    assert!(after.mappings < before.mappings + 20, "this process has more mapped");
    // All maps of a cycle take 40 KB; other work of the machine makes this uncertain.
    assert!(after.used < before.used + 24 * 1024, "the kernel's memory grew");
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
}

/// How long a run takes from its start until all is attached.
fn time_to_attach(patterns: &[&str]) -> Duration {
    let started = Instant::now();
    let running = Running::start(patterns).expect("it attaches");
    let took = started.elapsed();
    running.finish().expect("it ends well");
    took
}

/// `count` moments in the time from the start of a run until shortly after all is attached, in no order.
fn moments(count: u32, patterns: &[&str]) -> impl Iterator<Item = Duration> {
    let longest = time_to_attach(patterns) * 5 / 4;
    // 61 has no divisor in common with any of the counts.
    (0..count).map(move |number| longest * (number * 61 % count) / count)
}

const PATTERNS: [&str; 2] = ["kvm*", "vfs_*"];

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn nothing_survives_a_hundred_kills() {
    let kills = if whole() { 100 } else { 20 };
    let mut attached = 0;
    for moment in moments(kills, &PATTERNS) {
        let mut command = fastprobe(&PATTERNS);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("fastprobe starts");
        thread::sleep(moment);
        attached += u32::from(!enabled_functions().expect("readable").is_empty());
        child.kill().expect("a child");
        child.wait().expect("it ended");
        assert_eq!(enabled_functions().expect("readable"), [""; 0], "killed after {moment:?}");
    }
    println!("killed {kills} times, {attached} times while something was attached");
    assert!((1..kills).contains(&attached), "the moments were not spread");
    let held = settle(|held| held.links == 0 && held.programs == 0);
    assert_eq!((held.links, held.programs), (0, 0));
    let status = run(&["cache", "status"]).expect("it runs");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let running = Running::start(&[RARE_FUNCTION]).expect("the next one attaches");
    call_rare_system_call(9);
    let (counts, _) = running.finish().expect("it ends well");
    assert_eq!(hits(&counts, RARE_FUNCTION), 9);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn an_interrupt_at_any_moment_ends_it_soon_and_detaches() {
    let timings = json(&[&["--json", "-d", "0"], &PATTERNS[..]].concat()).expect("it runs");
    let ns = |line: usize, of: &str| {
        Duration::from_nanos(timings[line]["timings_ns"][of].as_u64().expect("a number"))
    };
    // The longest system calls are the link and the detach; emulated, the rest takes longer than it would.
    let allowed = (ns(0, "link") + ns(2, "detach")) * 3 + Duration::from_secs(1);
    let mut longest = Duration::ZERO;
    for moment in moments(10, &PATTERNS) {
        let mut command = fastprobe(&PATTERNS);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("fastprobe starts");
        thread::sleep(moment);
        // SAFETY: kill touches no memory; the child was not waited for yet, so the number is still its own.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) }, 0);
        let sent = Instant::now();
        child.wait().expect("it ended");
        longest = longest.max(sent.elapsed());
        assert_eq!(enabled_functions().expect("readable"), [""; 0], "interrupted after {moment:?}");
    }
    println!("interrupted 10 times, gone after {longest:?} at most, {allowed:?} allowed");
    assert!(longest < allowed);
}
