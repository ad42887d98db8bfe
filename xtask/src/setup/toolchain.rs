//! What it takes to build for BPF with a stable compiler: the source of `core`, and a linker.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::debian::Suite;
use crate::{cache, process, say};

/// The compiler's version. The object's bytes depend on it, and bpf-linker on its LLVM.
const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// The linker's version. The object's bytes depend on it.
const BPF_LINKER: &str = "0.13.0";

/// Suites of Debian that may have the source of a compiler that Debian 12 has not.
const SUITES: [&str; 4] = ["trixie-backports", "trixie", "forky", "sid"];

/// A compiler that can build for BPF.
#[derive(Debug)]
pub struct Toolchain {
    /// Where the compiler keeps its libraries.
    pub sysroot: PathBuf,
    /// The linker.
    pub bpf_linker: PathBuf,
}

/// Finds or gets both.
///
/// # Errors
///
/// When something can't be had; says what.
pub fn ensure() -> Result<Toolchain> {
    let version = rustc_version()?;
    ensure!(
        version.starts_with(&format!("{RUST}.")),
        "the eBPF program is built by Rust {RUST}, and this is {version}: use cargo +{RUST} xtask"
    );
    let sysroot: PathBuf = process::output(Command::new("rustc").args(["--print", "sysroot"]))?.trim().into();
    ensure_rust_src(&sysroot)?;
    let bpf_linker = ensure_bpf_linker(&sysroot)?;
    Ok(Toolchain { sysroot, bpf_linker })
}

/// `rustc --version`: `1.95.0`.
fn rustc_version() -> Result<String> {
    let text = process::output(Command::new("rustc").arg("--version"))?;
    Ok(text.split_whitespace().nth(1).context("rustc tells no version")?.to_owned())
}

/// The source of `core` at `lib/rustlib/src/rust`, where `-Z build-std` looks for it.
fn ensure_rust_src(sysroot: &Path) -> Result<()> {
    let place = sysroot.join("lib/rustlib/src/rust");
    if place.join("library/core/src/lib.rs").exists() {
        return Ok(());
    }
    let by_rustup = say::step("adding rust-src to the toolchain, by rustup", || {
        process::output(Command::new("rustup").args(["component", "add", "rust-src"]))
    });
    if by_rustup.is_ok() && place.join("library/core/src/lib.rs").exists() {
        return Ok(());
    }
    say::line("rust-src: rustup can't add it here, looking for Debian's package");
    let version = rustc_version()?;
    let source = cache::entry(&format!("rust-src-{version}"), |folder| unpack_rust_src(&version, folder))?;
    let source = source.join(format!("usr/src/rustc-{version}"));
    link(&source, &place).with_context(|| {
        format!(
            "can't link the source of core into the compiler's folder: ln -s {} {}",
            source.display(),
            place.display()
        )
    })?;
    say::line(&format!("rust-src: linked into the toolchain, as {}", place.display()));
    Ok(())
}

/// Replaces a link that leads nowhere, and makes the folder for it.
fn link(source: &Path, place: &Path) -> Result<()> {
    fs::create_dir_all(place.parent().context("no parent")?)?;
    if place.is_symlink() {
        fs::remove_file(place)?;
    }
    Ok(symlink(source, place)?)
}

fn unpack_rust_src(version: &str, folder: &Path) -> Result<()> {
    for name in SUITES {
        let suite = Suite::open(name)?;
        let versions = suite.versions("rust-src")?;
        if let Some(package) = versions.iter().find(|v| v.starts_with(&format!("{version}+"))) {
            return suite.unpack(&[format!("rust-src={package}")], folder);
        }
    }
    bail!(
        "no Debian suite of {SUITES:?} has rust-src {version}: use a compiler that rustup can add rust-src to"
    )
}

/// bpf-linker, linked to the LLVM that came with the compiler: no other LLVM is needed.
fn ensure_bpf_linker(sysroot: &Path) -> Result<PathBuf> {
    let version = rustc_version()?;
    let folder = cache::entry(&format!("bpf-linker-{BPF_LINKER}-rust-{version}"), |folder| {
        let lib = sysroot.join("lib");
        let llvm = folder.join("llvm/lib");
        fs::create_dir_all(&llvm)?;
        symlink(find_llvm(&lib)?, llvm.join("libLLVM.so"))?;
        say::step(&format!("building bpf-linker {BPF_LINKER}, once, in one to two minutes"), || {
            process::output(
                Command::new("cargo")
                    .args(["install", "bpf-linker", "--version", BPF_LINKER, "--locked"])
                    .args(["--no-default-features", "--features", "llvm-22", "--root"])
                    .arg(folder)
                    .env("LLVM_PREFIX", folder.join("llvm"))
                    .env("CARGO_TARGET_DIR", folder.join("target"))
                    .env("RUSTFLAGS", format!("-C link-arg=-Wl,-rpath,{}", lib.display()))
                    .current_dir("/"),
            )
        })?;
        fs::remove_dir_all(folder.join("target")).context("can't clear what the build left")
    })?;
    Ok(folder.join("bin/bpf-linker"))
}

/// `libLLVM.so.22.1-rust-1.95.0-stable`, whatever its numbers.
fn find_llvm(lib: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(lib).with_context(|| format!("can't read {}", lib.display()))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    files
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libLLVM.so.")))
        .with_context(|| format!("the compiler has no libLLVM.so in {}", lib.display()))
}
