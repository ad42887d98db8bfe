//! The tools that fastprobe is compared with: a small Debian of their own, whatever this machine runs.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};

use super::debian;
use crate::{cache, process, say};

/// The suite that has them as new as Debian does.
const SUITE: &str = "forky";

/// What is compared, and what those need to load modules.
const PACKAGES: &str = "bpftrace,bpftool,trace-cmd,libbpf-tools,linux-perf,kmod";

/// debootstrap's own scripts end with the suite that was new when it was made: all newer ones are made like this.
const SCRIPT: &str = "/usr/share/debootstrap/scripts/sid";

/// Gives the root folder of that Debian, for `chroot`; makes it where the cache has none.
///
/// # Errors
///
/// When not root, which debootstrap wants to be, or the packages can't be had.
pub fn ensure() -> Result<PathBuf> {
    cache::entry(&format!("peers-{SUITE}"), |folder| {
        if !process::is_installed("debootstrap") {
            debian::install(&["debootstrap"])?;
        }
        say::step(&format!("installing {PACKAGES} of {SUITE} into the cache"), || {
            process::output(
                Command::new("debootstrap")
                    .args(["--variant=minbase", &format!("--include={PACKAGES}"), SUITE])
                    .arg(folder)
                    .args([&debian::mirror()?, SCRIPT]),
            )
            .context("debootstrap needs root")
        })?;
        // The packages themselves are not needed again.
        process::output(Command::new("chroot").arg(folder).args(["apt-get", "clean"]))?;
        Ok(())
    })
}
