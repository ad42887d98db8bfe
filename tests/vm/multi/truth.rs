//! What is attached is what there is: once for each real function, and each call counted once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, thread,
};

use fastprobe_tests::{RARE_FUNCTION, Running, call_rare_system_call, enabled_functions, hits, json, run};
use serde_json::Value;

/// The functions that would be attached to.
fn targets(patterns: &[&str]) -> Vec<Value> {
    let plan = json(&[&["list", "--json"], patterns].concat()).expect("list works").remove(0);
    plan["targets"].as_array().expect("a list").clone()
}

fn text<'v>(target: &'v Value, field: &str) -> &'v str {
    target[field].as_str().unwrap_or("-")
}

/// The lines of ftrace's own list, whole: `vfs_read (1)` and more.
fn hooked() -> Vec<String> {
    let text = fs::read_to_string("/sys/kernel/tracing/enabled_functions").expect("readable");
    text.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn only_functions_that_are_real_are_targets_each_once() {
    let all = targets(&["*"]);
    let mut addresses = BTreeSet::new();
    for target in &all {
        let name = text(target, "function");
        assert!(addresses.insert(text(target, "address").to_owned()), "twice: {target}");
        assert!(!name.starts_with("__pfx_") && !name.starts_with("__cfi_"), "padding: {target}");
        assert!(!name.ends_with(".cold") && !name.starts_with("__ftrace_invalid"), "no function: {target}");
    }
    println!("{} targets, each at an address of its own", all.len());
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn of_several_functions_with_one_name_each_is_attached_once() {
    let mut namesakes: BTreeMap<(String, String), usize> = BTreeMap::new();
    for target in targets(&["*"]) {
        let key = (text(&target, "module").to_owned(), text(&target, "function").to_owned());
        *namesakes.entry(key).or_default() += 1;
    }
    namesakes.retain(|(module, name), count| *count > 1 && module == "-" && !name.contains('.'));
    let patterns: Vec<String> = namesakes.keys().map(|(_, name)| format!("vmlinux:{name}")).collect();
    assert!(patterns.len() > 20, "{} names that several functions have", patterns.len());
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let expected = targets(&patterns).len();
    assert!(expected >= namesakes.values().sum());
    let running = Running::start(&patterns).expect("it attaches");
    let hooked = hooked();
    running.finish().expect("it ends well");
    println!("{} names of {expected} functions, {} records hooked", patterns.len(), hooked.len());
    assert_eq!(hooked.len(), expected);
    for line in hooked {
        assert!(line.contains("(1)"), "hooked more than once: {line}");
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_call_of_a_function_with_two_names_counts_once() {
    // A system call without arguments is one function for 64-bit and 32-bit callers.
    let names = ["__x64_sys_getppid", "__ia32_sys_getppid"];
    let address = |name| targets(&[name]).first().map(|target| text(target, "address").to_owned());
    assert_eq!(address(names[0]).expect("it is there"), address(names[1]).expect("it is there"));
    let running = Running::start(&names).expect("it attaches");
    assert_eq!(running.attach["attached"], 1);
    for _ in 0..1000 {
        // SAFETY: takes nothing and gives a number.
        let parent = unsafe { libc::syscall(libc::SYS_getppid) };
        assert!(parent > 0);
    }
    let (counts, _) = running.finish().expect("it ends well");
    assert_eq!(counts["functions"].as_array().expect("a list").len(), 1);
    assert_eq!(counts["functions"][0]["hits"], 1000);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn where_ftrace_is_switched_off_nothing_is_attached() {
    const SWITCH: &str = "/proc/sys/kernel/ftrace_enabled";
    if let Err(error) = fs::write(SWITCH, "0") {
        // The newest kernels don't allow it.
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
        return;
    }
    // Up to 6.12 it would attach, and the detach break ftrace.
    let output = run(&["-d", "0", "vfs_read"]).expect("it runs");
    fs::write(SWITCH, "1").expect("root may");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{words}");
    assert!(words.contains("kernel.ftrace_enabled is 0"), "{words}");
    assert!(words.contains("sysctl kernel.ftrace_enabled=1"), "{words}");
    assert!(run(&["-d", "0", "vfs_read"]).expect("it runs").status.success());
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_budget_leaves_out_the_hottest_function_alone() {
    let arguments = ["--budget", "1%", "-d", "1", "--json", "vfs_*", RARE_FUNCTION];
    let lines = thread::scope(|scope| {
        let worker = scope.spawn(|| json(&arguments));
        while !worker.is_finished() {
            call_rare_system_call(1000);
        }
        worker.join().expect("joined").expect("it runs")
    });
    let over: Vec<&Value> = lines[0]["skipped"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|skipped| skipped["reason"] == "over-budget")
        .collect();
    assert!(over.iter().any(|skipped| skipped["function"] == RARE_FUNCTION), "{over:?}");
    assert_eq!(hits(&lines[1], RARE_FUNCTION), 0);
    assert!(lines[0]["attached"].as_u64().expect("a number") > 20, "{}", lines[0]["attached"]);
    assert_eq!(lines[0]["matched"].as_u64(), Some(targets(&["vfs_*"]).len() as u64 + 1 + skipped_of_vfs()));
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
    // When it is quiet, everything stays.
    let quiet = json(&["--budget", "90%", "-d", "0", "--json", RARE_FUNCTION]).expect("it runs");
    assert_eq!((&quiet[0]["attached"], &quiet[0]["skipped"]), (&1.into(), &Value::Array(vec![])));
}

/// How many functions of `vfs_*` can't be attached to anyway.
fn skipped_of_vfs() -> u64 {
    let plan = json(&["list", "--json", "vfs_*"]).expect("list works").remove(0);
    plan["skipped"].as_array().expect("a list").len() as u64
}
