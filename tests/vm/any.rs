//! True on every kernel.

use std::{
    collections::BTreeSet,
    os::unix::process::CommandExt,
    process::{Command, Output},
};

use fastprobe_tests::{addresses, fastprobe, json, run};

const GLOBS: [&str; 6] = ["kvm*", "s*", "*read*", "vfs_read", "*_[a-c]?[!t]", "*"];

/// What the oracle says of [`GLOBS`]: pairs of a glob and an address, or `?` for a name that it can't decide.
fn oracle() -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/oracle.py");
    let output = Command::new("python3").arg(script).args(GLOBS).output().expect("python3 runs");
    assert!(output.status.success(), "{}", words(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// What it chooses for one glob, and how many names it left to us.
fn choice(oracle: &str, glob: &str) -> (BTreeSet<u64>, usize) {
    let places = oracle.lines().filter_map(|line| line.strip_prefix(glob)?.strip_prefix(' '));
    let (unsure, sure): (Vec<_>, Vec<_>) = places.partition(|place| *place == "?");
    let parse = |place: &&str| u64::from_str_radix(place.trim_start_matches("0x"), 16).expect("an address");
    (sure.iter().map(parse).collect(), unsure.len())
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn the_chosen_set_is_the_oracles() {
    let oracle = oracle();
    for glob in GLOBS {
        let plan = json(&["list", "--json", glob]).expect("list works").remove(0);
        let chosen = addresses(&plan["targets"]).expect("addresses");
        let (expected, unsure) = choice(&oracle, glob);
        assert!(!expected.is_empty(), "{glob}");
        let missing: Vec<_> = expected.difference(&chosen).map(|a| format!("{a:#x}")).collect();
        assert!(missing.is_empty(), "{glob}: not chosen: {missing:?}");
        // Names that the oracle can't decide belong to two functions or more, a few to some dozen.
        let extra = chosen.difference(&expected).count();
        println!(
            "{glob}: {} chosen, the oracle agrees; {unsure} names left to us gave {extra}",
            chosen.len()
        );
        assert!(if unsure == 0 { extra == 0 } else { extra < unsure * 40 }, "{glob}: {extra} extra");
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn every_matched_function_is_a_target_or_has_a_reason() {
    let plan = json(&["list", "--json", "*"]).expect("list works").remove(0);
    let lists = ["targets", "skipped"].map(|list| addresses(&plan[list]).expect("addresses"));
    assert_eq!(plan["matched"].as_u64(), Some(lists.iter().map(|l| l.len() as u64).sum()));
    assert!(lists[0].is_disjoint(&lists[1]));
    for reason in ["not-traceable", "blacklisted", "denylisted"] {
        let skipped = plan["skipped"].as_array().expect("a list");
        assert!(skipped.iter().any(|skip| skip["reason"] == reason), "nothing is {reason}");
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_module_is_named_exactly() {
    let modules = |pattern: &str| -> BTreeSet<String> {
        let plan = json(&["list", "--json", pattern]).expect("list works").remove(0);
        let targets = plan["targets"].as_array().expect("a list").clone();
        targets.iter().map(|t| t["module"].as_str().unwrap_or("-").to_owned()).collect()
    };
    assert_eq!(modules("kvm:*"), ["kvm".to_owned()].into());
    assert_eq!(modules("vmlinux:v*"), ["-".to_owned()].into());
    assert!(modules("*").len() > 3);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_list_can_be_fed_back() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), run(&["list", "kvm*"]).expect("it runs").stdout).expect("written");
    let from_file = format!("@{}", file.path().display());
    let direct = json(&["list", "--json", "kvm*"]).expect("list works").remove(0);
    let again = json(&["list", "--json", &from_file]).expect("list works").remove(0);
    assert_eq!(direct["targets"], again["targets"]);
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn nothing_matches_and_the_error_helps() {
    let output = run(&["kmv*"]).expect("it runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(words(&output).contains("kvm*"), "{}", words(&output));
    let output = run(&["no_such_module:x*"]).expect("it runs");
    assert_eq!(output.status.code(), Some(3));
    assert!(words(&output).contains("is the module no_such_module loaded?"), "{}", words(&output));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn without_root_the_error_says_sudo() {
    const NOBODY: u32 = 65_534;
    for arguments in [&["vfs_read"][..], &["list", "vfs_read"]] {
        let output = fastprobe(arguments).uid(NOBODY).gid(NOBODY).output().expect("it runs");
        assert_eq!(output.status.code(), Some(4), "{}", words(&output));
        assert!(words(&output).contains("sudo"), "{}", words(&output));
    }
}

/// Runs a shell line in mount points of its own.
fn unshared(line: &str) -> Output {
    Command::new("unshare").args(["--mount", "sh", "-c", line]).output().expect("unshare runs")
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn without_tracefs_the_error_says_mount() {
    let output = unshared(
        "umount -l /sys/kernel/tracing; umount -l /sys/kernel/debug; fastprobe list --source text vfs_read",
    );
    assert_eq!(output.status.code(), Some(4), "{}", words(&output));
    assert!(words(&output).contains("mount -t tracefs tracefs /sys/kernel/tracing"), "{}", words(&output));
    // The kernel's memory needs no file system but proc and sysfs.
    let output =
        unshared("umount -l /sys/kernel/tracing; umount -l /sys/kernel/debug; fastprobe list vfs_read");
    assert_eq!((output.status.code(), words(&output)), (Some(0), String::new()));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn tracefs_is_also_found_below_debugfs() {
    let output = unshared(
        "umount -l /sys/kernel/tracing; ls /sys/kernel/debug/tracing >&2; fastprobe list --source text vfs_read",
    );
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn without_the_blacklist_there_is_a_warning_and_the_run_goes_on() {
    let output = unshared("umount -l /sys/kernel/debug; fastprobe list --source text vfs_read");
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    assert!(
        words(&output).contains("warning: can't open /sys/kernel/debug/kprobes/blacklist"),
        "{}",
        words(&output)
    );
    assert!(words(&output).contains("mount -t debugfs"), "{}", words(&output));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn without_the_kernels_memory_the_text_files_do_and_the_reason_is_told() {
    let hidden = "mount --bind /dev/null /proc/kcore";
    let output = unshared(&format!("{hidden}; fastprobe list -v vfs_read"));
    assert_eq!(output.status.code(), Some(0), "{}", words(&output));
    assert!(words(&output).contains("can't open /proc/kcore: not a regular file"), "{}", words(&output));
    assert!(words(&output).contains("tables from text"), "{}", words(&output));
    let quiet = unshared(&format!("{hidden}; fastprobe list vfs_read"));
    assert_eq!((quiet.status.code(), words(&quiet)), (Some(0), String::new()));
    let insisted = unshared(&format!("{hidden}; fastprobe list --source kcore vfs_read"));
    assert_eq!(insisted.status.code(), Some(1), "{}", words(&insisted));
}

/// The addresses of all functions that match, attached or not.
fn matched(arguments: &[&str]) -> BTreeSet<u64> {
    let plan = json(&[&["list", "--json"], arguments].concat()).expect("list works").remove(0);
    let lists = ["targets", "skipped"].map(|list| addresses(&plan[list]).expect("addresses"));
    lists.into_iter().flatten().collect()
}

fn printed(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().expect("sh runs");
    assert!(output.status.success(), "{line}: {}", words(&output));
    String::from_utf8(output.stdout).expect("text")
}

const UNPACK: &str = "import lzma, sys; name = sys.argv[1]; file = open(name, \"rb\").read(); \
     file = lzma.decompress(file) if name.endswith(\".xz\") else file; \
     open(\"/tmp/unpacked.ko\", \"wb\").write(file)";

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn imports_and_exports_are_those_that_the_kernel_knows() {
    let symbols = printed("cat /proc/kallsyms");
    let functions: Vec<Vec<&str>> = symbols
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|fields: &Vec<&str>| matches!(fields[1], "t" | "T" | "w" | "W"))
        .collect();
    let addresses_of = |names: &BTreeSet<&str>, module: Option<&str>| -> BTreeSet<u64> {
        let wanted = functions.iter().filter(|fields| {
            let generated = matches!(fields.get(3), Some(&("[bpf]" | "[__builtin__ftrace]")));
            names.contains(fields[2]) && !generated && (module.is_none() || fields.get(3).copied() == module)
        });
        wanted.map(|fields| u64::from_str_radix(fields[0], 16).expect("an address")).collect()
    };
    for module in ["kvm", "xfs"] {
        let undefined =
            printed(&format!("python3 -c '{UNPACK}' $(modinfo -n {module}) && nm -u /tmp/unpacked.ko"));
        let imports = undefined.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
        let expected = addresses_of(&imports, None);
        assert!(expected.len() > 100, "{module}: {}", expected.len());
        let found = matched(&["--imports-of", module]);
        assert_eq!(found.symmetric_difference(&expected).collect::<Vec<_>>(), [&0; 0], "{module}");
    }
    // A loaded module's table of exports is among its symbols.
    let exports = symbols.lines().filter(|line| line.ends_with("\t[kvm]"));
    let exports: BTreeSet<&str> =
        exports.filter_map(|line| line.split_whitespace().nth(2)?.strip_prefix("__ksymtab_")).collect();
    let expected = addresses_of(&exports, Some("[kvm]"));
    assert!(expected.len() > 100, "{}", expected.len());
    let found = matched(&["--exports-of", "kvm"]);
    assert_eq!(found.symmetric_difference(&expected).collect::<Vec<_>>(), [&0; 0]);
}
