//! `cargo xtask ebpf`: builds the eBPF objects that are checked in beside their sources.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    process, say,
    setup::toolchain::{self, Toolchain},
    workspace,
};

/// Where the sources are, one for each object.
const SOURCES: &str = "probe-ebpf/src/bin";

/// Where the objects are in the tree.
const OBJECTS: &str = "probe-ebpf/objects";

/// What cargo is told to build, by any of its subcommands.
const BUILD: [&str; 13] = [
    "--locked",
    "-p",
    "probe-ebpf",
    "--bins",
    "--features",
    "ebpf",
    "--target",
    "bpfel-unknown-none",
    "-Z",
    "build-std=core",
    "--profile",
    "ebpf",
    "--target-dir",
];

/// `cargo xtask ebpf`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Change nothing; fail if the object in the tree is not byte for byte what its source builds
    #[arg(long)]
    check: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.check { check() } else { build_into_tree() }
}

/// Fails where an object in the tree is not what its source builds.
pub fn check() -> Result<()> {
    for (name, built) in build()? {
        let in_tree = workspace::root()?.join(&name);
        let expected = fs::read(&in_tree).with_context(|| format!("can't read {}", in_tree.display()))?;
        if built != expected {
            bail!(
                "{name} ({} bytes) is not what its source builds ({} bytes): run cargo xtask ebpf and commit it",
                expected.len(),
                built.len()
            );
        }
        say::line(&format!("{name} is what its source builds, {} bytes", built.len()));
    }
    Ok(())
}

fn build_into_tree() -> Result<()> {
    fs::create_dir_all(workspace::root()?.join(OBJECTS)).with_context(|| format!("can't make {OBJECTS}"))?;
    for (name, built) in build()? {
        let in_tree = workspace::root()?.join(&name);
        let changed = fs::read(&in_tree).ok().is_none_or(|old| old != built);
        if changed {
            fs::write(&in_tree, &built).with_context(|| format!("can't write {}", in_tree.display()))?;
        }
        say::line(&format!("{name}: {} bytes, {}", built.len(), if changed { "new" } else { "as it was" }));
    }
    Ok(())
}

/// The objects: their places in the tree, and their bytes.
fn build() -> Result<Vec<(String, Vec<u8>)>> {
    let toolchain = toolchain::ensure()?;
    say::step("building the eBPF objects", || {
        process::output(&mut cargo(&toolchain, "build")?)?;
        let built = target_folder()?.join("bpfel-unknown-none/ebpf");
        let object = |source: String| {
            let bytes = strip(&toolchain, &built.join(&source))?;
            Ok((format!("{OBJECTS}/{source}.bpf.o"), bytes))
        };
        sources()?.into_iter().map(object).collect()
    })
}

/// The names of the sources, in their order.
fn sources() -> Result<Vec<String>> {
    let folder = workspace::root()?.join(SOURCES);
    let read = || -> std::io::Result<Vec<String>> {
        let files = fs::read_dir(&folder)?.map(|entry| Ok(entry?.path()));
        let files: Vec<PathBuf> = files.collect::<std::io::Result<_>>()?;
        let mut names: Vec<_> =
            files.iter().filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect();
        names.sort();
        Ok(names)
    };
    read().with_context(|| format!("can't read {}", folder.display()))
}

/// A cargo command on the eBPF program, with all that makes the bytes the same everywhere.
pub fn cargo(toolchain: &Toolchain, subcommand: &str) -> Result<Command> {
    let root = workspace::root()?;
    let cargo_home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    let remap = |from: &Path, to| format!("--remap-path-prefix={}={to}", from.display());
    let flags = [
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        format!("-Clinker={}", toolchain.bpf_linker.display()),
        remap(&toolchain.sysroot, "/rust"),
        remap(Path::new(&cargo_home), "/cargo"),
        // The last that fits wins, and the checkout may lie in any of the others.
        remap(&root, "/fastprobe"),
    ];
    let mut command = workspace::cargo()?;
    command
        .arg(subcommand)
        .args(BUILD)
        .arg(target_folder()?)
        // Stable refuses -Z without it.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    Ok(command)
}

fn target_folder() -> Result<PathBuf> {
    Ok(workspace::target()?.join("ebpf"))
}

/// The object without DWARF. The linker needs that to make BTF of and has no way to drop it afterwards; with it
/// the object is eight times as large, and every load parses it.
fn strip(toolchain: &Toolchain, object: &Path) -> Result<Vec<u8>> {
    let host = host_triple()?;
    let stripped = object.with_extension("stripped");
    process::output(
        Command::new(toolchain.sysroot.join(format!("lib/rustlib/{host}/bin/rust-objcopy")))
            .env("LD_LIBRARY_PATH", toolchain.sysroot.join("lib"))
            .arg("--strip-debug")
            .args([object, &stripped]),
    )?;
    fs::read(&stripped).with_context(|| format!("can't read {}", stripped.display()))
}

/// `rustc -vV`: `host: x86_64-unknown-linux-gnu`.
fn host_triple() -> Result<String> {
    let text = process::output(Command::new("rustc").arg("-vV"))?;
    Ok(text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc tells no host")?.to_owned())
}
