//! The tables from the kernel's memory are what its text files say, on every kernel.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::{Command, Output},
};

use fastprobe::tables::{
    Function, Root, Tables, Wish,
    cache::{self, Folder, Key},
    kcore,
};
use fastprobe_tests::{fastprobe, run};

/// Address, name and module of a symbol; several symbols can have all three in common.
type Symbols = BTreeMap<(u64, Vec<u8>, Vec<u8>), usize>;

fn hexadecimal(text: &[u8]) -> u64 {
    let text = std::str::from_utf8(text).expect("digits");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address")
}

fn fields(line: &[u8]) -> Vec<&[u8]> {
    line.split(|b| b.is_ascii_whitespace()).filter(|field| !field.is_empty()).collect()
}

fn lines(path: &str) -> Vec<Vec<u8>> {
    let text = fs::read(path).expect("readable");
    text.split(|&b| b == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Every line of `/proc/kallsyms` but those of generated code, which is in no table of symbols.
fn symbols_of_text() -> Symbols {
    let mut symbols = Symbols::new();
    for line in lines("/proc/kallsyms") {
        let fields = fields(&line);
        let module = fields.get(3).map_or(&b""[..], |module| &module[1..module.len() - 1]);
        if !matches!(module, b"bpf" | b"__builtin__ftrace" | b"__builtin__kprobes") {
            *symbols.entry((hexadecimal(fields[0]), fields[2].to_vec(), module.to_vec())).or_default() += 1;
        }
    }
    symbols
}

fn difference<K: Ord + std::fmt::Debug, V: PartialEq>(a: &BTreeMap<K, V>, b: &BTreeMap<K, V>) -> Vec<String> {
    a.iter()
        .filter(|(key, value)| b.get(key) != Some(value))
        .take(10)
        .map(|(k, _)| format!("{k:?}"))
        .collect()
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn memory_and_text_have_the_same_tables() {
    let memory = kcore::read(&Root::machine(), false).expect("the kernel's memory can be read");

    let mut symbols = Symbols::new();
    memory
        .for_each_symbol(|_, f| {
            let module = f.module.unwrap_or_default().to_vec();
            *symbols.entry((f.address, f.name.to_vec(), module)).or_default() += 1;
            Ok(())
        })
        .expect("well-formed names");
    let text = symbols_of_text();
    assert_eq!(difference(&symbols, &text), [""; 0], "in memory and not in /proc/kallsyms");
    assert_eq!(difference(&text, &symbols), [""; 0], "in /proc/kallsyms and not in memory");

    let sites: BTreeSet<u64> = memory.rest.sites.iter().copied().collect();
    let addrs = "/sys/kernel/tracing/available_filter_functions_addrs";
    let traceable = if fs::exists(addrs).expect("a file system") {
        let records = lines(addrs).into_iter().map(|line| {
            let fields = fields(&line);
            (hexadecimal(fields[0]), fields[1].starts_with(b"__ftrace_invalid_address___"))
        });
        let text: BTreeSet<u64> = records.filter(|(_, invalid)| !invalid).map(|(site, _)| site).collect();
        assert_eq!(sites.symmetric_difference(&text).next(), None, "ftrace records");
        text.len()
    } else {
        // No addresses in text: as many records of each name as there are symbols of that name at a record.
        let names = |list: Vec<Vec<u8>>| {
            let mut names: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            list.into_iter().for_each(|name| *names.entry(name).or_default() += 1);
            names
        };
        let text = lines("/sys/kernel/tracing/available_filter_functions").into_iter();
        let text = text.map(|line| fields(&line)[0].to_vec());
        let text = names(text.filter(|name| !name.starts_with(b"__ftrace_invalid_address___")).collect());
        let total: usize = text.values().sum();
        assert_eq!(total, sites.len(), "ftrace records");
        let mut at_record: BTreeMap<u64, BTreeSet<Vec<u8>>> = BTreeMap::new();
        for (address, name, _) in symbols.keys().filter(|(address, ..)| sites.contains(address)) {
            at_record.entry(*address).or_default().insert(name.clone());
        }
        for (site, aliases) in &at_record {
            assert!(aliases.iter().any(|name| text.contains_key(name)), "{site:#x} {aliases:?}");
        }
        assert_eq!(at_record.len(), sites.len(), "records without a symbol");
        total
    };

    let modules: BTreeSet<Vec<u8>> = memory.rest.modules.iter().map(|module| module.name.to_vec()).collect();
    let text_modules: BTreeSet<Vec<u8>> =
        lines("/proc/modules").iter().map(|line| fields(line)[0].to_vec()).collect();
    assert_eq!(modules, text_modules);

    let mut ranges: Vec<(u64, u64)> = lines("/sys/kernel/debug/kprobes/blacklist")
        .iter()
        .map(|line| {
            let range = fields(line)[0];
            let dash = range.iter().position(|&b| b == b'-').expect("a range");
            (hexadecimal(&range[..dash]), hexadecimal(&range[dash + 1..]))
        })
        .collect();
    let listed = ranges.len();
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match joined.last_mut().filter(|last| start <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => joined.push((start, end)),
        }
    }
    assert_eq!(memory.rest.blacklist.ranges(), joined);
    println!(
        "memory and text agree: {} symbols, {traceable} traceable, {} modules, {listed} blacklisted ranges",
        symbols.values().sum::<usize>(),
        modules.len(),
    );
}

/// `kallsyms_seqs_of_names` came with 6.2.
fn has_order_of_names() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("readable");
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn the_cache_has_what_memory_has_and_finds_every_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let (root, folder) = (Root::machine(), Folder::at(dir.path()));
    let memory =
        Tables::read(&root, Some(&folder), Wish::Auto, None).expect("the kernel's memory can be read");
    assert!(memory.store(&root, &folder).expect("it can be written"));
    let key = Key::of(&root).expect("the kernel says what it is");
    let cached = cache::load(&folder, &key).expect("it is in order").expect("it is there").tables;

    let from_memory = kcore::read(&root, true).expect("the kernel's memory can be read");
    let (mut all, mut kept) = (BTreeMap::new(), BTreeMap::new());
    let symbol = |kind: u8, f: Function<'_>| (f.address, f.name.to_vec(), f.module.map(<[u8]>::to_vec), kind);
    let add = |symbols: &mut BTreeMap<_, usize>, symbol| {
        *symbols.entry(symbol).or_default() += 1;
        Ok(())
    };
    from_memory.for_each_symbol(|kind, f| add(&mut all, symbol(kind, f))).expect("well-formed names");
    cached.for_each_symbol(|kind, f| add(&mut kept, symbol(kind, f))).expect("a file in order");
    assert_eq!(difference(&all, &kept), [""; 0], "in memory and not in the cache");
    assert_eq!(difference(&kept, &all), [""; 0], "in the cache and not in memory");

    let (index, mut plain) = (cached.index(), 0);
    for (_, name, _, _) in all.keys() {
        plain += name.len();
        let (position, record) = index.find(name).expect("a file in order").expect("it is there");
        assert_eq!(record, index.record(position).expect("a file in order"));
        let mut found = Vec::new();
        index
            .for_each(position..position + 1, |_, name| {
                found = name.to_vec();
                Ok(())
            })
            .expect("a file in order");
        assert_eq!(found, *name);
        let other = [name, &b"#"[..]].concat();
        assert_eq!(index.find(&other).expect("a file in order"), None);
    }
    let share = 100 * index.name_bytes() / plain;
    assert_eq!(from_memory.core.order().is_ok(), has_order_of_names(), "the kernel's own order of its names");
    if let Ok(order) = from_memory.core.order() {
        for (_, name, _, _) in all.keys().filter(|(_, _, module, _)| module.is_none()) {
            let family = order.family(name).expect("an order");
            assert!(!family.is_empty(), "{}", name.escape_ascii());
        }
    }
    println!("{} symbols found in the cache, names in {share} % of their plain size", all.len());
    assert!(share <= 40);
}

fn plan(source: &str, patterns: &[&str]) -> serde_json::Value {
    let output = run(&[&["list", "--json", "--source", source], patterns].concat()).expect("it runs");
    assert!(output.status.success(), "{}", words(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_plan_is_the_same_from_every_source() {
    succeed(&["cache", "warm"]);
    // Every fiftieth name, misses among them: more than can be compared one by one.
    let dir = tempfile::tempdir().expect("a folder");
    let list = dir.path().join("names");
    let name = |line: &Vec<u8>| String::from_utf8_lossy(fields(line)[2]).into_owned();
    let names: Vec<_> = lines("/proc/kallsyms").iter().step_by(50).map(name).collect();
    fs::write(&list, names.join("\n") + "\nno_such_function\nvfs_*\n").expect("writable");
    let list = format!("@{}", list.display());
    let sets: [&[&str]; 4] = [
        &["kvm*", "*read*", "xfs:*"],
        &["-r", ".*_(lock|unlock)", "-m", "vmlinux"],
        &["*"],
        &[&list, "-x", "*lock*"],
    ];
    for patterns in sets {
        let text = plan("text", patterns);
        for source in ["kcore", "cache"] {
            let memory = plan(source, patterns);
            assert_eq!(text["matched"], memory["matched"], "{source} {patterns:?}");
            assert!(text == memory, "{source} {patterns:?}");
        }
    }
}

fn succeed(arguments: &[&str]) -> String {
    let output = run(arguments).expect("it runs");
    assert!(output.status.success(), "{arguments:?}: {}", words(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fail(arguments: &[&str], code: i32) -> String {
    let output = run(arguments).expect("it runs");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", words(&output));
    words(&output)
}

fn modprobe(arguments: &[&str]) {
    assert!(Command::new("modprobe").args(arguments).status().expect("modprobe runs").success());
}

/// The cache's file, as `cache clear` names it.
fn cleared_cache() -> String {
    let answer = succeed(&["cache", "clear"]);
    answer.split(": ").next().expect("a path").to_owned()
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn the_cache_holds_until_a_module_comes_or_goes() {
    cleared_cache();
    assert!(fail(&["cache", "status"], 4).contains("there is no cache"));
    succeed(&["cache", "warm"]);
    assert!(succeed(&["cache", "status"]).contains("traceable functions"));
    for change in [&["-r", "nf_tables"][..], &["nf_tables"]] {
        modprobe(change);
        assert!(fail(&["cache", "status"], 4).contains("modules were loaded or unloaded"), "{change:?}");
        // What did not change is not read again.
        let told = run(&["list", "-vv", "vfs_read"]).expect("it runs");
        let told = words(&told);
        assert!(told.contains("tables from kcore") && !told.contains("fastprobe: symbols:"), "{told}");
        assert!(plan("auto", &["n*"]) == plan("kcore", &["n*"]), "{change:?}");
        succeed(&["cache", "warm"]);
        succeed(&["cache", "status"]);
    }
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn a_cache_that_cannot_be_trusted_is_left_alone() {
    let file = cleared_cache();
    succeed(&["cache", "warm"]);
    let folder = std::path::Path::new(&file).parent().expect("a folder");
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
    assert_eq!((mode(file.as_ref()), mode(folder)), (0o600, 0o700));

    let mut bytes = fs::read(&file).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).expect("writable");
    // Who needs that page sees it, and reads the kernel's memory instead.
    assert!(fail(&["cache", "status"], 1).contains("damaged"));
    assert!(fail(&["list", "--source", "cache", "*"], 1).contains("damaged"));
    let run = run(&["list", "-v", "*"]).expect("it runs");
    assert!(run.status.success() && words(&run).contains("damaged"), "{}", words(&run));
    assert!(words(&run).contains("kcore"), "{}", words(&run));

    succeed(&["cache", "warm"]);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("root may");
    assert!(fail(&["cache", "status"], 1).contains("others could have changed it"));
}

#[test]
#[ignore = "needs a VM: cargo xtask test"]
fn two_runs_at_once_make_one_cache() {
    let file = cleared_cache();
    let runs: Vec<_> = (0..2).map(|_| fastprobe(&["cache", "warm"]).spawn().expect("it runs")).collect();
    for mut run in runs {
        assert!(run.wait().expect("it ends").success());
    }
    succeed(&["cache", "status"]);
    let folder = std::path::Path::new(&file).parent().expect("a folder");
    assert_eq!(fs::read_dir(folder).expect("readable").count(), 1);
}
