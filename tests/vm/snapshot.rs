//! A snapshot gives the plans of the machine that it is of, on every kernel.

use std::{
    fs,
    os::unix::{fs::MetadataExt, process::CommandExt},
    process::{Command, Output},
};

use fastprobe_tests::{fastprobe, run};
use serde_json::Value;

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn plan(arguments: &[&str]) -> Value {
    let output = run(&[&["list", "--json"], arguments].concat()).expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_snapshot_gives_the_plans_of_its_machine() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, folder) = (dir.path().join("snapshot.tar.gz"), dir.path().join("unpacked"));
    let path = file.to_str().expect("text");
    let output = run(&["snapshot", "-o", path]).expect("it runs");
    assert_eq!((output.status.code(), words(&output)), (Some(0), String::new()));
    assert_eq!(fs::metadata(&file).expect("it is there").mode() & 0o7777, 0o600);
    print!("{}", String::from_utf8_lossy(&output.stdout));

    fs::create_dir(&folder).expect("a folder");
    let unpacked = Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(&folder).status();
    assert!(unpacked.expect("tar runs").success());
    let root = folder.to_str().expect("text");
    // Every 300th name, so that the kernel's own order of the names is used where it has one.
    let symbols = fs::read_to_string("/proc/kallsyms").expect("readable");
    let names: Vec<&str> =
        symbols.lines().step_by(300).filter_map(|line| line.split_whitespace().nth(2)).collect();
    let list = dir.path().join("names");
    fs::write(&list, names.join("\n")).expect("writable");
    let list = format!("@{}", list.display());
    let runs: [(&str, &[&str]); 4] = [
        ("kcore", &["kvm*", "*read*", "xfs:*"]),
        ("text", &["kvm*", "*read*", "xfs:*"]),
        ("kcore", &[&list]),
        ("kcore", &["*"]),
    ];
    for (source, patterns) in runs {
        let of = |root: &[&str]| plan(&[&["--source", source], root, patterns].concat());
        let live = of(&[]);
        for copy in [root, path] {
            assert!(of(&["--root", copy]) == live, "{source} {patterns:?} {copy}");
        }
        println!(
            "{source}, {patterns:?}: {} matched, {} targets, here and in the snapshot",
            live["matched"],
            live["targets"].as_array().map_or(0, Vec::len)
        );
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn nothing_is_overwritten_and_a_missing_folder_is_known_at_once() {
    let dir = tempfile::tempdir().expect("a folder");
    let there = dir.path().join("there");
    fs::write(&there, "mine").expect("writable");
    let output = run(&["snapshot", "-o", there.to_str().expect("text")]).expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    assert!(words(&output).contains("is there already"), "{}", words(&output));
    assert_eq!(fs::read(&there).expect("readable"), b"mine");
    let output = run(&["snapshot", "-o", "/no/such/folder/file"]).expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(words(&output).contains("can't write /no/such/folder/file"), "{}", words(&output));
    let left = fs::read_dir(dir.path()).expect("readable").count();
    assert_eq!(left, 1, "an unfinished file was left behind");
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn without_root_what_is_missing_is_told() {
    const NOBODY: u32 = 65_534;
    let dir = tempfile::tempdir_in("/tmp").expect("a folder");
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
    let file = dir.path().join("snapshot");
    let path = file.to_str().expect("text");
    let output = fastprobe(&["snapshot", "-o", path]).uid(NOBODY).gid(NOBODY).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    for file in ["/proc/kcore", "available_filter_functions", "kprobes/blacklist", "/proc/kallsyms"] {
        assert!(words(&output).contains(file), "{file}: {}", words(&output));
    }
    assert!(words(&output).contains("sudo"), "{}", words(&output));
}
