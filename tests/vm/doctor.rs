//! `fastprobe doctor` says of each kernel what is so, and what it names as a remedy is one.

use std::{
    fs,
    os::unix::process::CommandExt,
    process::{Command, Output, Stdio},
};

use fastprobe_tests::{enabled_functions, fastprobe};
use serde_json::Value;

const NOBODY: u32 = 65_534;

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What it finds, and its exit code.
fn examine(command: &mut Command) -> (Value, Option<i32>) {
    let output = command.output().expect("it runs");
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", words(&output)));
    (report, output.status.code())
}

fn doctor() -> Command {
    fastprobe(&["doctor", "--json"])
}

fn check<'r>(report: &'r Value, name: &str) -> &'r Value {
    let mut checks = report["checks"].as_array().expect("a list").iter();
    checks.find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// A machine before and after what the doctor prescribes, told apart by one check. `change` is undone with the
/// mount points of its shell, or by the remedy.
fn prescribes(change: &str, name: &str, state: &str, remedy: &str) {
    let line = format!("{change}; fastprobe doctor --json; {remedy}; fastprobe doctor --json");
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &line]).output().expect("unshare runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let reports: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [before, after] = &reports[..] else { panic!("{text}{}", words(&output)) };
    let sick = check(before, name);
    assert_eq!((&sick["state"], &sick["fix"]), (&state.into(), &remedy.into()), "{sick}");
    assert!(sick["cost"].is_string(), "{sick}");
    assert_eq!(before["can_attach"], state != "missing", "{before}");
    assert_eq!(check(after, name)["state"], "ok", "{}: {}", check(after, name), words(&output));
    assert_eq!(after["can_attach"], true, "{after}");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn to_root_nothing_is_missing_and_nothing_stays_behind() {
    let (report, code) = examine(&mut doctor());
    println!("{report:#}");
    assert_eq!(code, Some(0));
    assert_eq!(
        (&report["schema"], &report["type"], &report["can_attach"]),
        (&1.into(), &"doctor".into(), &true.into())
    );
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("readable");
    assert_eq!(report["kernel"], release.trim());
    for name in [
        "kprobes",
        "btf",
        "tracefs",
        "debugfs",
        "kcore",
        "kptr_restrict",
        "lockdown",
        "capabilities",
        "cache",
    ] {
        assert_eq!(check(&report, name)["state"], "ok", "{}", check(&report, name));
    }
    assert_eq!(enabled_functions().expect("readable"), [""; 0]);
    let text = fastprobe(&["doctor"]).output().expect("it runs");
    let text = String::from_utf8(text.stdout).expect("text");
    for check in report["checks"].as_array().expect("a list") {
        let (state, name) =
            (check["state"].as_str().expect("a word"), check["name"].as_str().expect("a word"));
        assert!(text.contains(&format!("{state:<8}  {name}")), "{text}");
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn without_root_it_runs_and_says_what_cannot_be_seen() {
    let (report, code) = examine(doctor().uid(NOBODY).gid(NOBODY));
    assert_eq!((code, &report["can_attach"]), (Some(4), &false.into()));
    for name in ["fprobe", "kprobes", "tracefs", "kcore"] {
        let check = check(&report, name);
        assert_eq!(
            (&check["state"], &check["fix"]),
            (&"missing".into(), &"sudo fastprobe doctor".into()),
            "{check}"
        );
        assert!(check["detail"].as_str().expect("text").contains("can't be seen without root"), "{check}");
    }
    let capabilities = check(&report, "capabilities");
    assert!(
        capabilities["detail"].as_str().expect("text").contains("CAP_BPF, CAP_PERFMON"),
        "{capabilities}"
    );
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("readable");
    assert!(readme.contains(capabilities["fix"].as_str().expect("a command")), "{capabilities}");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn capabilities_of_a_user_namespace_are_not_taken_for_real_ones() {
    let mut command = Command::new("unshare");
    let (report, code) =
        examine(command.args(["--user", "--map-root-user", "fastprobe", "doctor", "--json"]));
    assert_eq!(code, Some(4));
    let check = check(&report, "capabilities");
    assert_eq!(check["state"], "missing");
    assert!(check["detail"].as_str().expect("text").contains("user namespace"), "{check}");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn file_systems_are_mounted_as_prescribed() {
    let unmount = "umount -l /sys/kernel/tracing; umount -l /sys/kernel/debug";
    prescribes(unmount, "tracefs", "degraded", "mount -t tracefs tracefs /sys/kernel/tracing");
    prescribes(unmount, "debugfs", "degraded", "mount -t debugfs debugfs /sys/kernel/debug");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn switches_are_set_as_prescribed() {
    prescribes(
        "sysctl -q kernel.kptr_restrict=2",
        "kptr_restrict",
        "degraded",
        "sysctl kernel.kptr_restrict=1",
    );
    fs::write("/proc/sys/kernel/kptr_restrict", "0").expect("root may");
    // 7.x can be built to know no other state.
    let switch = "/proc/sys/kernel/ftrace_enabled";
    if fs::write(switch, "0").is_ok() {
        prescribes("true", "ftrace_enabled", "missing", "sysctl kernel.ftrace_enabled=1");
    }
    assert_eq!(fs::read_to_string(switch).expect("readable"), "1\n");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_folder_that_others_could_have_changed_is_removed_as_prescribed() {
    let change = "export XDG_RUNTIME_DIR=$(mktemp -d); cd /; mkdir -m 755 $XDG_RUNTIME_DIR/fastprobe";
    let line = format!(
        "{change}; fastprobe doctor --json; rm -r $XDG_RUNTIME_DIR/fastprobe; fastprobe doctor --json"
    );
    let output = Command::new("sh").args(["-c", &line]).output().expect("sh runs");
    let reports: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let (before, after) = (check(&reports[0], "cache"), check(&reports[1], "cache"));
    assert_eq!((&before["state"], &after["state"]), (&"degraded".into(), &"ok".into()), "{before} {after}");
    assert!(before["fix"].as_str().expect("a command").starts_with("rm -r /tmp/"), "{before}");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn without_the_kernels_memory_the_cost_is_told() {
    prescribes("mount --bind /dev/null /proc/kcore", "kcore", "degraded", "umount /proc/kcore");
    let line = "mount --bind /dev/null /proc/kcore; fastprobe doctor --json";
    let (report, _) = examine(Command::new("unshare").args(["--mount", "sh", "-c", line]));
    assert_eq!(check(&report, "kcore")["cost"], "tables are read from text: ten times slower");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_reader_that_goes_away_leaves_the_exit_code() {
    for arguments in [&["doctor"][..], &["doctor", "--json"]] {
        let mut child = fastprobe(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
        drop(child.stdout.take());
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
        let closed = format!("exec fastprobe {} >&-", arguments.join(" "));
        let status = Command::new("sh").args(["-c", &closed]).status().expect("sh runs");
        assert_eq!(status.code(), Some(0));
        let full = format!("exec fastprobe {} >/dev/full", arguments.join(" "));
        let output = Command::new("sh").args(["-c", &full]).output().expect("sh runs");
        assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    }
}

mod multi {
    use super::*;

    #[test]
    #[ignore = "needs a VM: cargo xtask test"]
    fn links_are_told_from_probes() {
        let disarm = "echo 0 >/sys/kernel/debug/kprobes/enabled";
        prescribes(disarm, "kprobes", "degraded", "echo 1 >/sys/kernel/debug/kprobes/enabled");
        let (report, _) = examine(&mut doctor());
        assert_eq!(check(&report, "fprobe")["state"], "ok", "{report}");
    }
}

mod without_fprobe {
    use super::*;

    #[test]
    #[ignore = "needs a VM: cargo xtask test"]
    fn probes_stand_in_for_links() {
        let (report, _) = examine(&mut doctor());
        let fprobe = check(&report, "fprobe");
        assert_eq!(fprobe["state"], "degraded", "{fprobe}");
        assert!(fprobe["detail"].as_str().expect("text").contains("CONFIG_FPROBE"), "{fprobe}");
        let disarm = "echo 0 >/sys/kernel/debug/kprobes/enabled";
        prescribes(disarm, "kprobes", "missing", "echo 1 >/sys/kernel/debug/kprobes/enabled");
    }
}
