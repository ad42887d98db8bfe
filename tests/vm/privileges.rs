//! Without root, and with less and less of what root may do.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output},
    thread,
    time::Duration,
};

use fastprobe_tests::{RARE_FUNCTION, Running, call_rare_system_call, enabled_functions, fastprobe, hits};

const NOBODY: u32 = 65_534;

/// A line of a shell by a user with these capabilities and no others.
fn with(capabilities: &[&str], line: &str) -> Output {
    let list: String = capabilities.iter().map(|capability| format!(",+{capability}")).collect();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    for set in ["inh-caps", "ambient-caps", "bounding-set"] {
        command.arg(format!("--{set}=-all{list}"));
    }
    command.args(["sh", "-c", line]).output().expect("setpriv runs")
}

/// The command of root's, with a cache in `/run`.
fn of_root(arguments: &[&str]) -> Command {
    let mut command = fastprobe(arguments);
    command.env_remove("XDG_RUNTIME_DIR");
    command
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `line` works with these capabilities, and with none of them left out.
fn minimal(capabilities: &[&str], line: &str) {
    let output = with(capabilities, line);
    assert_eq!(output.status.code(), Some(0), "{capabilities:?}: {line}: {}", words(&output));
    for left_out in capabilities {
        let fewer: Vec<_> =
            capabilities.iter().copied().filter(|capability| capability != left_out).collect();
        let output = with(&fewer, line);
        assert_eq!(output.status.code(), Some(4), "{fewer:?}: {line}: {}", words(&output));
    }
}

/// Whether the kernel lists addresses of ftrace records, so that those of symbols aren't needed.
fn shows_sites() -> bool {
    Path::new("/sys/kernel/tracing/available_filter_functions_addrs").exists()
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn each_source_has_its_capabilities() {
    minimal(&["dac_read_search", "sys_rawio"], "fastprobe list --source kcore vfs_read");
    let text = "fastprobe list --source text vfs_read";
    match shows_sites() {
        true => minimal(&["dac_read_search"], text),
        false => minimal(&["dac_read_search", "syslog"], text),
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn the_right_to_read_the_kernels_files_is_none_to_read_others() {
    const SECRET: &str = "secret)(";
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("root may");
    let secret = folder.path().join("secret");
    fs::write(&secret, SECRET).expect("root may");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("root may");
    // A folder whose tables are that file.
    let root = folder.path().join("root");
    fs::create_dir_all(root.join("proc")).expect("root may");
    symlink(&secret, root.join("proc/kallsyms")).expect("root may");
    let sites = "sys/kernel/tracing/available_filter_functions";
    fs::create_dir_all(root.join(sites).parent().expect("a folder")).expect("root may");
    symlink(&secret, root.join(sites)).expect("root may");

    let all = ["bpf", "perfmon", "syslog", "dac_read_search", "sys_rawio"];
    let (secret, root) = (secret.display(), root.display());
    // Such capabilities reach the programs that are started, too: this one may read it.
    assert_eq!(String::from_utf8_lossy(&with(&all, &format!("cat {secret}")).stdout), SECRET);
    for line in [
        format!("fastprobe --regex -d 0 @{secret}"),
        format!("fastprobe list --regex @{secret}"),
        format!("fastprobe list --regex -x @{secret} vfs_read"),
        format!("fastprobe list --root {root} vfs_read"),
    ] {
        let output = with(&all, &line);
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), words(&output));
        assert!(!output.status.success() && said.contains("Permission denied"), "{line}: {said}");
        assert!(!said.contains(SECRET), "{line}: {said}");
    }
    // What they may read they can name, and the kernel's files are read afterwards.
    let own = with(&all, "echo vfs_read | fastprobe list --source kcore @/dev/stdin");
    assert_eq!(own.status.code(), Some(0), "{}", words(&own));
    // Root reads what is somebody else's.
    chown(folder.path().join("secret"), Some(NOBODY), Some(NOBODY)).expect("root may");
    let of_root = of_root(&["list", "--regex", &format!("@{secret}")]).output().expect("it runs");
    assert!(words(&of_root).contains(SECRET), "{}", words(&of_root));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn nobody_makes_a_cache_for_root() {
    let _was_there = fs::remove_dir_all("/run/fastprobe");
    let all = ["dac_override", "dac_read_search", "sys_rawio", "syslog"];
    let output = with(&all, "touch /run/mine && rm /run/mine && fastprobe cache warm");
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(words(&output).contains("no cache is kept in /run"), "{}", words(&output));
    assert!(words(&output).contains("XDG_RUNTIME_DIR"), "{}", words(&output));
    assert!(!Path::new("/run/fastprobe").exists());
    assert!(of_root(&["cache", "warm"]).status().expect("it runs").success());
    assert!(Path::new("/run/fastprobe/tables").exists());
    // Nor is root's used, though it could be read.
    let output = with(&all, "fastprobe list -v vfs_read");
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    assert!(words(&output).contains("belongs to somebody else"), "{}", words(&output));
    assert!(words(&output).contains("tables from kcore"), "{}", words(&output));
}

/// Runs `test` while `kernel.perf_event_paranoid` is that, which Debian's kernels know up to 3.
fn with_perf_event_paranoid(setting: &str, test: impl FnOnce()) {
    const SETTING: &str = "/proc/sys/kernel/perf_event_paranoid";
    let before = fs::read_to_string(SETTING).expect("readable");
    fs::write(SETTING, setting).expect("root may");
    test();
    fs::write(SETTING, before).expect("root may");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_kprobe_for_each_takes_the_right_to_write_to_tracefs_until_all_are_attached() {
    // Misses are read at the end, when no capability is left, from one of root's files.
    let line = "fastprobe --backend single --source text -d 0 vfs_read";
    let held = ["bpf", "perfmon", "dac_override", "syslog"];
    with_perf_event_paranoid("2", || minimal(if shows_sites() { &held[..3] } else { &held }, line));
    assert_eq!(fs::read_to_string("/sys/kernel/tracing/kprobe_events").expect("readable"), "");
}

mod multi {
    use super::*;

    /// Lines of `/proc/PID/status`, of each thread.
    fn states(process: &Path) -> Vec<String> {
        let tasks = fs::read_dir(process.join("task")).expect("it lives");
        // One that has ended meanwhile has no state.
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok()).collect()
    }

    /// Waits until the thread that writes the cache is gone, and gives the state of the only one left.
    fn only_thread(process: &Path) -> String {
        for _ in 0..600 {
            if let [state] = &states(process)[..] {
                return state.clone();
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("{:?}", states(process));
    }

    fn assert_powerless(state: &str) {
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert!(state.contains(&format!("{set}:\t0000000000000000\n")), "{state}");
        }
        assert!(state.contains("NoNewPrivs:\t1\n"), "{state}");
    }

    fn counts_exactly(running: Running) {
        call_rare_system_call(777);
        let (counts, summary) = running.finish().expect("it ends well");
        assert_eq!((hits(&counts, RARE_FUNCTION), &summary["lost"]), (777, &0.into()));
        assert_eq!(enabled_functions().expect("readable"), [""; 0]);
    }

    #[test]
    #[ignore = "needs a VM: cargo xtask test"]
    fn after_the_attach_root_has_no_more_rights_and_counts_on() {
        assert!(of_root(&["cache", "clear"]).status().expect("it runs").success());
        let running = Running::spawn(&mut of_root(&["--json", RARE_FUNCTION])).expect("it attaches");
        assert_eq!(running.attach["source"], "kcore");
        // Its main thread at once, the one that writes the cache by its end.
        assert!(states(&running.process())[0].contains("CapEff:\t0000000000000000\n"));
        assert_powerless(&only_thread(&running.process()));
        assert!(Path::new("/run/fastprobe/tables").exists());
        counts_exactly(running);
        let again = Running::spawn(&mut of_root(&["--json", "-v", RARE_FUNCTION])).expect("it attaches");
        assert_eq!(again.attach["source"], "cache");
        assert_powerless(&only_thread(&again.process()));
        counts_exactly(again);
    }

    #[test]
    #[ignore = "needs a VM: cargo xtask test"]
    fn whatever_ends_it_the_powerless_detach() {
        for signal in [libc::SIGTERM, libc::SIGKILL] {
            let running = Running::start(&["vfs_*"]).expect("it attaches");
            only_thread(&running.process());
            assert!(!enabled_functions().expect("readable").is_empty());
            running.signal(signal);
            running.hang_up().wait().expect("it ends");
            assert_eq!(enabled_functions().expect("readable"), [""; 0]);
        }
    }

    #[test]
    #[ignore = "needs a VM: cargo xtask test"]
    fn to_attach_takes_two_more() {
        let count = |source: &str| format!("fastprobe -d 0 --source {source} vfs_read");
        minimal(&["bpf", "perfmon", "dac_read_search", "sys_rawio"], &count("kcore"));
        minimal(&["bpf", "perfmon", "dac_read_search"], &count("text"));
        minimal(&["sys_admin", "dac_read_search"], &count("text"));
        let folder = own_folder();
        let own = |line: &str| format!("export XDG_RUNTIME_DIR={}; {line}", folder.path().display());
        let warm = with(&["dac_read_search", "sys_rawio", "syslog"], &own("fastprobe cache warm"));
        assert_eq!(warm.status.code(), Some(0), "{}", words(&warm));
        // Modules have addresses, which tell whether the cache is right.
        let output = with(&["bpf", "perfmon", "syslog"], &own(&count("cache")));
        assert_eq!(output.status.code(), Some(0), "{}", words(&output));
        minimal(&["bpf", "perfmon", "syslog"], &own(&count("cache")));
    }

    /// A folder of nobody's own.
    fn own_folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
        folder
    }

    /// A copy of the command that has what the README's line gives it.
    fn with_file_capabilities() -> tempfile::TempDir {
        let readme =
            fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("readable");
        let line =
            readme.lines().find_map(|line| line.trim().strip_prefix("sudo setcap ")).expect("the line");
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("root may");
        let script = format!(
            "cp \"$(command -v fastprobe)\" {0} && PATH={0}:/usr/sbin:/sbin:$PATH && setcap {line}",
            folder.path().display()
        );
        let output = Command::new("sh").args(["-c", &script]).output().expect("sh runs");
        assert!(output.status.success(), "{}", words(&output));
        folder
    }

    #[test]
    #[ignore = "needs a VM: cargo xtask test"]
    fn the_line_of_the_readme_is_enough_for_anybody() {
        let (folder, runtime) = (with_file_capabilities(), own_folder());
        let command = || {
            let mut command = Command::new(folder.path().join("fastprobe"));
            command.uid(NOBODY).gid(NOBODY).env("XDG_RUNTIME_DIR", runtime.path());
            command
        };
        let output = command().args(["doctor", "--json"]).output().expect("it runs");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let states = |name: &str| {
            let mut checks = report["checks"].as_array().expect("a list").iter();
            checks.find(|check| check["name"] == name).expect("it is there")["state"].clone()
        };
        for name in ["fprobe", "kcore", "tracefs", "debugfs", "kptr_restrict", "capabilities", "cache"] {
            assert_eq!(states(name), "ok", "{name}: {report:#}");
        }
        for source in ["kcore", "cache"] {
            let running = Running::spawn(command().args(["--json", RARE_FUNCTION])).expect("it attaches");
            assert_eq!(running.attach["source"], source);
            assert_powerless(&only_thread(&running.process()));
            counts_exactly(running);
        }
        let kept = fs::metadata(runtime.path().join("fastprobe/tables")).expect("it was kept");
        assert_eq!((kept.uid(), kept.mode() & 0o7777), (NOBODY, 0o600));
        // Of root's files it reads the kernel's alone.
        let theirs = folder.path().join("theirs");
        fs::write(&theirs, "secret)(").expect("root may");
        fs::set_permissions(&theirs, fs::Permissions::from_mode(0o600)).expect("root may");
        let patterns = format!("@{}", theirs.display());
        let output = command().args(["list", "--regex", &patterns]).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{}", words(&output));
        assert!(words(&output).contains("Permission denied"), "{}", words(&output));
        assert!(!words(&output).contains("secret)("), "{}", words(&output));
        for source in ["text", "kcore"] {
            let running = Running::spawn(command().args(["--json", "--source", source, RARE_FUNCTION]))
                .expect("it attaches");
            counts_exactly(running);
        }
        // Without a folder of its own it goes without a cache, and says so to who asks.
        let output = command().env_remove("XDG_RUNTIME_DIR").args(["-v", "-d", "0", RARE_FUNCTION]).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{}", words(&output));
        assert!(words(&output).contains("belongs to somebody else"), "{}", words(&output));
        assert!(words(&output).contains("it takes CAP_SYS_ADMIN"), "{}", words(&output));
    }
}

mod without_fprobe {
    use super::*;

    #[test]
    #[ignore = "needs a VM: cargo xtask test"]
    fn probes_one_by_one_take_a_setting_or_one_more() {
        let held = ["bpf", "perfmon", "dac_read_search", "sys_rawio", "syslog"];
        with_perf_event_paranoid("3", || {
            let output = with(&held, "fastprobe doctor");
            let report = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(4), "{report}");
            assert!(report.contains("missing   perf_event_paranoid"), "{report}");
            assert!(report.contains("sysctl kernel.perf_event_paranoid=2"), "{report}");
            let with_admin = with(&[&held[..], &["sys_admin"]].concat(), "fastprobe doctor");
            assert_eq!(with_admin.status.code(), Some(0), "{}", words(&with_admin));
        });
        with_perf_event_paranoid("2", || {
            let output = with(&held, "fastprobe doctor");
            assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
        });
    }
}
