//! A kprobe for each function: true on every kernel, those with kprobe-multi links included.

use std::{collections::BTreeMap, fs, process::Command, thread};

use fastprobe_tests::{RARE_FUNCTION, Running, call_rare_system_call, hits, json};

const TRACEFS: &str = "/sys/kernel/tracing";

fn start(arguments: &[&str]) -> Running {
    let arguments = [&["--backend", "single"], arguments].concat();
    let running = Running::start(&arguments).expect("it attaches");
    assert_eq!(running.attach["backend"], "single");
    running
}

/// The kprobes of tracefs, anybody's: group and event.
fn defined() -> Vec<String> {
    let text = fs::read_to_string(format!("{TRACEFS}/kprobe_events")).expect("readable");
    text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// The kprobes that the kernel has, anybody's, armed or not.
fn registered() -> usize {
    fs::read_to_string("/sys/kernel/debug/kprobes/list").expect("readable").lines().count()
}

/// How many kprobes are armed.
fn armed() -> usize {
    let text = fs::read_to_string("/sys/kernel/debug/kprobes/list").expect("readable");
    text.lines().filter(|line| !line.contains("[DISABLED]")).count()
}

fn assert_nothing_is_left(after: &str) {
    assert_eq!((defined(), registered()), (vec![], 0), "{after}");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn counts_are_exact() {
    const CALLS: u64 = 20_000;
    let running = start(&[RARE_FUNCTION]);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| call_rare_system_call(CALLS));
        }
    });
    let (counts, summary) = running.finish().expect("it ends well");
    assert_eq!(hits(&counts, RARE_FUNCTION), 4 * CALLS);
    assert_eq!((&summary["hits"], &summary["lost"]), (&(4 * CALLS).into(), &0.into()));
    assert_eq!(summary["missed"], 0);
    assert_nothing_is_left("an interrupt");
}

/// How often each function was called, of what ftrace's function tracer has recorded.
fn calls(text: &str) -> BTreeMap<String, u64> {
    let entries = text.lines().find_map(|line| line.strip_prefix("# entries-in-buffer/entries-written: "));
    let (kept, written) =
        entries.and_then(|text| text.split_whitespace().next()?.split_once('/')).expect("counts");
    assert_eq!(kept, written, "the buffer was too small");
    let mut counts = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let called = line.split_once(": ").and_then(|(_, called)| called.split_whitespace().next());
        *counts.entry(called.expect("a function").to_owned()).or_default() += 1;
    }
    counts
}

fn set(file: &str, text: &str) {
    fs::write(format!("{TRACEFS}/{file}"), text).unwrap_or_else(|e| panic!("{file}: {e}"));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn each_function_of_a_module_has_as_many_hits_as_ftrace_counts() {
    // The clock calls others of the module all the time, also when the tracer is off.
    let running = start(&["--all", "kvm:kvm_*"]);
    let attached = running.attach["attached"].as_u64().expect("a number");
    set("set_ftrace_filter", ":mod:kvm");
    set("buffer_size_kb", "65536");
    set("current_tracer", "function");
    let load = Command::new(env!("CARGO_BIN_EXE_kvm-load")).args(["--seconds", "1"]).status();
    assert!(load.expect("kvm-load runs").success());
    set("tracing_on", "0");
    let recorded = fs::read_to_string(format!("{TRACEFS}/trace")).expect("readable");
    set("current_tracer", "nop");
    set("set_ftrace_filter", "");
    set("buffer_size_kb", "1408");
    set("tracing_on", "1");
    let (counts, summary) = running.finish().expect("it ends well");
    let expected = calls(&recorded);
    let mut compared = 0;
    for (name, calls) in &expected {
        let listed = counts["functions"].as_array().expect("a list").iter().any(|f| f["function"] == **name);
        if listed {
            assert_eq!(hits(&counts, name), *calls, "{name}; {summary}");
            compared += 1;
        }
    }
    println!("{attached} attached, {compared} that were called have the hits that ftrace counts");
    assert!(compared > 30, "{compared}: {expected:?}");
    assert_eq!(summary["lost"], 0);
    assert_nothing_is_left("an interrupt");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn what_the_kernel_forbids_is_rejected_and_the_rest_attached() {
    let lines = json(&[
        "--json",
        "--backend",
        "single",
        "-d",
        "0",
        "--no-blacklist",
        "--source",
        "text",
        "vfs_read",
        "do_trap",
        "vfs_write",
    ])
    .expect("it runs");
    let attach = &lines[0];
    let skipped = attach["skipped"].as_array().expect("a list");
    let trap = skipped.iter().find(|skip| skip["function"] == "do_trap").expect("it is skipped");
    assert_eq!((&attach["attached"], &trap["reason"]), (&2.into(), &"rejected-by-kernel".into()));
    assert_eq!(trap["errno"], libc::EINVAL);
    assert!(trap["error"].as_str().expect("words").contains("the kernel forbids a probe there"), "{trap}");
    assert_nothing_is_left("the end of the duration");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn after_sigkill_nothing_is_armed_and_the_next_run_removes_what_is_left_but_nothing_else() {
    set_others("p:others/read vfs_read\n");
    let alive = start(&["vfs_open"]);
    let running = start(&["vfs_*"]);
    let attached = running.attach["attached"].as_u64().expect("a number") as usize;
    assert!(attached > 20, "{attached}");
    running.signal(libc::SIGKILL);
    running.hang_up().wait().expect("it ended");
    // Ours that lives; the others' was never enabled.
    assert_eq!(armed(), 1);
    assert_eq!(defined().len(), attached + 2);
    drop(json(&["--json", "--backend", "single", "-d", "0", "vfs_read"]).expect("it runs"));
    let left = defined();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left.contains(&"p:others/read".to_owned()), "{left:?}");
    alive.finish().expect("it ends well");
    assert_eq!(defined(), ["p:others/read"]);
    set_others("-:others/read\n");
    assert_nothing_is_left("all ends");
}

/// Adds to the kprobes as somebody else.
fn set_others(line: &str) {
    use std::io::Write;
    let file = fs::File::options().append(true).open(format!("{TRACEFS}/kprobe_events"));
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the kernel takes it");
}
