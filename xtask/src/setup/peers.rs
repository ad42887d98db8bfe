//! The tools that fastprobe is compared with: a small Debian of their own, whatever this machine runs.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

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

/// Shell lines for a VM after which programs below `root` find the kernel and a place to write.
///
/// # Errors
///
/// For a folder that no shell can name.
pub fn mount(root: &Path) -> Result<String> {
    let root = shlex::try_quote(root.to_str().context("an odd path")?).context("an odd path")?;
    Ok(["--rbind /dev", "--rbind /proc", "--rbind /sys"]
        .iter()
        .map(|mount| format!("mount {mount} {root}/{}\n", mount.rsplit('/').next().unwrap_or_default()))
        .chain([format!("mount -t tmpfs none {root}/tmp\n")])
        .collect())
}
