//! QEMU, virtme-ng and what they call.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result};

use super::debian;
use crate::{cache, process, say};

/// The version of virtme-ng.
const VIRTME_NG: &str = "1.42";

/// A program, and the package of Debian that has it.
const TOOLS: [(&str, &str); 8] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("depmod", "kmod"),
    ("udevadm", "udev"),
    ("ip", "iproute2"),
    ("busybox", "busybox-static"),
    ("setcap", "libcap2-bin"),
    ("sysctl", "procps"),
    ("python3", "python3"),
];

/// Installs what is missing; gives the path of `vng`.
///
/// # Errors
///
/// When something can't be installed.
pub fn ensure() -> Result<PathBuf> {
    let missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(program, _)| !process::is_installed(program))
        .map(|&(_, package)| package)
        .collect();
    if !missing.is_empty() {
        debian::install(&missing)?;
    }
    let folder = cache::entry(&format!("virtme-ng-{VIRTME_NG}"), |folder| {
        // Debian splits off from python3 what makes a venv.
        if process::output(Command::new("python3").args(["-c", "import ensurepip"])).is_err() {
            debian::install(&["python3-venv"])?;
        }
        say::step(&format!("installing virtme-ng {VIRTME_NG} from PyPI, into the cache"), || {
            process::output(Command::new("python3").args(["-m", "venv", "--copies"]).arg(folder))?;
            // As a module: the scripts of a venv name the folder that it was made in, and this one moves.
            let package = format!("virtme-ng=={VIRTME_NG}");
            process::output(
                Command::new(folder.join("bin/python3")).args(["-m", "pip", "install", "-q", &package]),
            )
        })?;
        Ok(())
    })?;
    repair_scripts(&folder).context("can't set up virtme-ng")?;
    Ok(folder.join("bin/vng"))
}

/// Scripts in a venv start with the path of the folder that it was made in. Sets the present one.
fn repair_scripts(venv: &std::path::Path) -> Result<()> {
    let python = venv.join("bin/python3");
    for name in ["vng", "virtme-ng", "virtme-run", "virtme-mkinitramfs"] {
        let path = venv.join("bin").join(name);
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let (first, rest) = text.split_once('\n').context("an empty script")?;
        let right = format!("#!{}", python.display());
        if first != right {
            std::fs::write(&path, format!("{right}\n{rest}"))?;
        }
    }
    Ok(())
}
