//! True on kernels with kprobe-multi.

mod endurance;
mod truth;

use std::{
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use aya_log::EbpfLogger;
use fastprobe::{
    instrument::count::{Counter, Counting},
    pattern::{PatternSet, PatternText, Syntax},
    plan::{Plan, Policy, Target, plan},
    session::{Attempt, Loaded, Options},
    sys::Live,
    tables::{Matches, Root, Tables, Wish},
};
use fastprobe_tests::{
    RARE_FUNCTION, Running, call_rare_system_call, enabled_functions, fastprobe, hits, json, run,
};

/// What a pattern matches, in this process.
fn matches(pattern: &str) -> Matches {
    let tables = Tables::read(&Root::machine(), None, Wish::Auto, None).expect("tables");
    let patterns =
        PatternSet::new(Syntax::Glob, &[PatternText::argument(pattern)], &[], &[]).expect("a pattern");
    tables.matching(&mut patterns.matcher()).expect("well-formed tables")
}

fn plan_for(matches: &Matches) -> Plan<'_> {
    plan(matches, Policy::default())
}

fn options(log_errors: bool) -> Options {
    Options { log_errors, ..Options::new(aya::util::nr_cpus().expect("CPUs")) }
}

fn load(targets: &[Target<'_>]) -> Loaded<'static, Counter> {
    Loaded::new(&Live, &Counter, targets, &options(false)).expect("it loads")
}

fn start(targets: &[Target<'_>], log_errors: bool) -> Counting<'static> {
    Counting::start(&Live, &Counter, targets, &options(log_errors)).expect("it attaches")
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn counts_are_exact() {
    const CALLS: u64 = 20_000;
    let running = Running::start(&[RARE_FUNCTION]).expect("it attaches");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| call_rare_system_call(CALLS));
        }
    });
    let (counts, summary) = running.finish().expect("it ends well");
    assert_eq!(hits(&counts, RARE_FUNCTION), 4 * CALLS);
    assert_eq!((&summary["hits"], &summary["lost"]), (&(4 * CALLS).into(), &0.into()));
    assert_eq!(summary["missed"].as_u64().unwrap_or(0), 0);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn exactly_the_refused_are_left_out_and_the_rest_counts_in_one_link() {
    let matches = matches("{vfs_*,__x64_sys_sched_get_priority_max}");
    let good = plan_for(&matches).targets;
    let rare = good.iter().position(|t| t.function.name == RARE_FUNCTION.as_bytes()).expect("it is there");
    let others: Vec<usize> = (0..good.len()).filter(|place| *place != rare).collect();
    let last = others.len() - 1;
    for bad in [vec![0], vec![last], vec![0, 1, 2, 20, last / 2, last]] {
        let mut targets = good.clone();
        let bad: Vec<usize> = bad.into_iter().map(|number| others[number]).collect();
        for place in &bad {
            // No record is there, behind the instruction that ftrace rewrites.
            targets[*place].site += 8;
        }
        let Attempt::Refused(loaded, error) = load(&targets).attach().expect("an answer") else {
            panic!("a link with an address that is none")
        };
        assert!(matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)), "{error}");
        assert_eq!(enabled_functions().expect("readable"), [""; 0]);
        let counting = loaded.attach_but_refused(None, &|| false).expect("the rest attaches");
        let rejected: Vec<usize> = counting.rejected().iter().map(|(place, _)| *place).collect();
        println!("{} of {} refused, {} links asked for", bad.len(), targets.len(), counting.attempts());
        assert_eq!(rejected, bad);
        assert_eq!(enabled_functions().expect("readable").len(), targets.len() - bad.len());
        call_rare_system_call(321);
        let place = rare - bad.iter().filter(|place| **place < rare).count();
        assert_eq!(counting.counts()[place], 321);
    }
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn each_function_has_its_own_counter_among_thousands() {
    let running = Running::start(&["s*", RARE_FUNCTION]).expect("it attaches");
    assert!(running.attach["attached"].as_u64().expect("a number") > 3000, "{}", running.attach["attached"]);
    assert_eq!(
        enabled_functions().expect("readable").len() as u64,
        running.attach["attached"].as_u64().unwrap()
    );
    call_rare_system_call(1234);
    let (counts, summary) = running.finish().expect("it ends well");
    assert_eq!(hits(&counts, RARE_FUNCTION), 1234);
    assert_eq!(summary["lost"], 0);
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn after_the_detach_nothing_is_counted() {
    let matches = matches(RARE_FUNCTION);
    let counting = start(&plan_for(&matches).targets, false);
    call_rare_system_call(100);
    assert_eq!(counting.counts(), [100]);
    let (detached, _) = counting.detach();
    call_rare_system_call(100);
    assert_eq!(detached.total(), 100);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_panic_detaches() {
    let result = std::panic::catch_unwind(|| {
        let matches = matches("vfs_*");
        let _counting = start(&plan_for(&matches).targets, false);
        assert_ne!(enabled_functions().expect("readable"), [""; 0]);
        std::panic::panic_any("as planned");
    });
    assert!(result.is_err_and(|payload| payload.is::<&str>()), "it attached and then panicked as planned");
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn every_end_detaches() {
    let started = || Running::start(&["vfs_*"]).expect("it attaches");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut running = started();
        running.signal(signal);
        running.end().expect("a signal ends it in order");
        assert_eq!(enabled_functions().expect("readable"), [""; 0], "signal {signal}");
    }
    let running = started();
    running.signal(libc::SIGKILL);
    running.hang_up().wait().expect("it ended");
    assert_eq!(enabled_functions().expect("readable"), [""; 0], "SIGKILL");

    // Its reader goes away: the next line that it prints fails, and that is no fault.
    let child = Running::start(&["-i", "200ms", "vfs_*"]).expect("it attaches").hang_up();
    assert!(wait(child).success(), "a closed pipe");
    assert_eq!(enabled_functions().expect("readable"), [""; 0], "a closed pipe");
    let lines = json(&["--json", "-d", "0", "vfs_*"]).expect("it runs");
    assert_eq!(lines.len(), 3);
    assert_eq!(enabled_functions().expect("readable"), [""; 0], "the end of the duration");
}

fn wait(mut child: Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        thread::sleep(Duration::from_millis(50));
    }
    child.kill().expect("a child");
    panic!("fastprobe did not end");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn what_ftrace_hooks_is_what_was_announced() {
    let mut planned: Vec<String> = json(&["list", "--json", "kvm*", "xfs:*_read*", "vfs_*"])
        .expect("list works")[0]["targets"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|target| target["function"].as_str().expect("a name").to_owned())
        .collect();
    let running = Running::start(&["kvm*", "xfs:*_read*", "vfs_*"]).expect("it attaches");
    let mut hooked = enabled_functions().expect("readable");
    running.finish().expect("it ends well");
    planned.sort();
    hooked.sort();
    assert_eq!(planned, hooked);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn functions_of_a_module_are_counted() {
    let running = Running::start(&["kvm:*", "vmlinux:vfs_*"]).expect("it attaches");
    let status = Command::new(env!("CARGO_BIN_EXE_kvm-load"))
        .args(["--seconds", "2"])
        .status()
        .expect("kvm-load runs");
    assert!(status.success());
    let (counts, summary) = running.finish().expect("it ends well");
    assert!(hits(&counts, "kvm_dev_ioctl") > 0, "{counts}");
    assert!(hits(&counts, "kvm_vcpu_ioctl") + hits(&counts, "kvm_vm_ioctl") > 0, "{counts}");
    assert!(hits(&counts, "vfs_write") > 0 || hits(&counts, "vfs_read") > 0, "{counts}");
    assert_eq!(summary["lost"], 0);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn addresses_hidden_from_root_change_nothing() {
    let old = std::fs::read_to_string("/proc/sys/kernel/kptr_restrict").expect("readable");
    std::fs::write("/proc/sys/kernel/kptr_restrict", "2").expect("root may");
    let finished = ["text", "kcore"].map(|source| {
        let running = Running::start(&["--source", source, "vfs_*", RARE_FUNCTION]);
        call_rare_system_call(77);
        running.and_then(Running::finish)
    });
    std::fs::write("/proc/sys/kernel/kptr_restrict", old).expect("root may");
    for finished in finished {
        let (counts, summary) = finished.expect("it works");
        assert_eq!(hits(&counts, RARE_FUNCTION), 77);
        assert_eq!(summary["lost"], 0);
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_hit_without_a_slot_is_counted_as_lost_and_logged() {
    struct Lines(std::sync::Mutex<Vec<String>>);
    impl log::Log for &Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            self.0.lock().expect("one thread").push(record.args().to_string());
        }
        fn flush(&self) {}
    }
    let matches = matches(RARE_FUNCTION);
    let mut targets = plan_for(&matches).targets;
    let real = targets[0].function.address;
    // A table that knows another function than the one that is hooked.
    targets[0].function.address += 8;
    let counting = start(&targets, true);
    let lines = Lines(std::sync::Mutex::default());
    let id = counting.program_infos().expect("info")[0].id;
    let mut logger = EbpfLogger::init_from_id_with_logger(id, &lines).expect("a log");
    call_rare_system_call(3);
    logger.flush();
    assert_eq!(counting.counts(), [0]);
    assert_eq!(counting.misses().expect("misses").lost, 3);
    let expected = format!("no slot for the function at 0x{real:x}");
    assert_eq!(*lines.0.lock().expect("one thread"), vec![expected; 3]);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn intervals_cover_the_whole_and_add_up() {
    let child = fastprobe(&["--json", "-i", "500ms", "-d", "2.2", RARE_FUNCTION]);
    let lines = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut child = child;
            child.output().expect("it runs")
        });
        while !worker.is_finished() {
            call_rare_system_call(10);
            thread::sleep(Duration::from_millis(5));
        }
        worker.join().expect("joined").stdout
    });
    let lines: Vec<serde_json::Value> = lines
        .split(|&b| b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).expect("JSON"))
        .collect();
    let counts: Vec<_> = lines.iter().filter(|line| line["type"] == "counts").collect();
    assert!(counts.len() >= 3, "{counts:?}");
    let summary = lines.last().expect("a summary");
    let sum: u64 = counts.iter().map(|c| hits(c, RARE_FUNCTION)).sum();
    assert_eq!(Some(sum), summary["hits"].as_u64());
    assert!(sum > 0);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn strict_attaches_nothing_when_something_is_skipped() {
    let output = run(&["--strict", "--json", "-d", "0", "vfs_read", "do_trap"]).expect("it runs");
    assert_eq!(output.status.code(), Some(5));
    let attach: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!((&attach["attached"], &attach["skipped"][0]["reason"]), (&0.into(), &"blacklisted".into()));
    let output = run(&["--strict", "--json", "-d", "0", "vfs_read"]).expect("it runs");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn everything_at_once_under_load_and_the_machine_lives() {
    const LOAD: &str =
        "for i in $(seq 100000); do ls -R /sys/class >/dev/null; cat /proc/meminfo >/dev/null; done";
    let running = Running::start(&["*"]).expect("it attaches");
    let mut load = Command::new("timeout").args(["10", "sh", "-c", LOAD]).spawn().expect("sh runs");
    load.wait().expect("it ended");
    let attached = running.attach["attached"].as_u64().expect("a number");
    let (_, summary) = running.finish().expect("it ends well");
    println!("* : {attached} functions attached, {summary}");
    assert!(attached > 40_000, "{attached}");
    assert!(summary["hits"].as_u64().expect("a number") > 100_000, "{summary}");
    assert_eq!(summary["lost"], 0);
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_run_leaves_the_next_one_a_cache() {
    let source = || json(&["--json", "-d", "0", "vfs_*"]).expect("it runs")[0]["source"].clone();
    assert!(run(&["cache", "clear"]).expect("it runs").status.success());
    assert_eq!(source(), "kcore");
    assert_eq!(source(), "cache");
    // Where nothing can be kept, the run goes on.
    let line = "mount -t tmpfs -o ro none /run; exec fastprobe -v --json -d 0 vfs_read";
    let output = Command::new("unshare").args(["--mount", "sh", "-c", line]).output().expect("unshare runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    assert!(words.contains("can't use the cache /run/fastprobe"), "{words}");
}
