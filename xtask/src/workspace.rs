//! This checkout, and building in it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::process;

/// The checkout that this xtask was built from.
pub fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.parent().context("xtask is not within a checkout")?;
    std::fs::canonicalize(root).with_context(|| format!("the checkout {} is gone", root.display()))
}

/// The cargo that runs this xtask, at work in the checkout.
pub fn cargo() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()?);
    Ok(command)
}

/// Where cargo puts what it builds.
pub fn target() -> Result<PathBuf> {
    let text = process::output(cargo()?.args(["metadata", "--format-version=1", "--no-deps"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).context("can't read what cargo metadata says")?;
    Ok(metadata["target_directory"].as_str().context("cargo metadata names no target folder")?.into())
}

/// Builds fastprobe and the load for kvm; gives the folder with the two.
pub fn build_programs() -> Result<PathBuf> {
    process::run(cargo()?.args([
        "build",
        "--release",
        "--locked",
        "-p",
        "fastprobe",
        "-p",
        "fastprobe-tests",
        "--bins",
    ]))?;
    Ok(target()?.join("release"))
}
