//! `cargo xtask bench`: the benchmarks, on the tables of a real kernel.
//!
//! Those are in a snapshot that is taken in a VM with many modules loaded, once; it stays in the cache. Beside it lies
//! the file of one large module, whose imports are looked up.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    cache, say,
    setup::{
        kernels::{self, Kernel},
        vm_tools,
    },
    vm::{self, Job},
    workspace,
};

/// Loading the modules takes minutes when emulated.
const TIMEOUT: Duration = Duration::from_secs(1500);

/// File systems, a graphics driver, radio: with them the kernel has somewhat more than 300,000 symbols.
const MODULES: &str = "kvm_amd xfs btrfs ext4 nfsd i915 nf_tables overlay bluetooth mac80211";

/// The module whose file goes beside the snapshot.
const LARGE_MODULE: &str = "amdgpu";

/// `cargo xtask bench`
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Less than a minute, fewer rounds; fails where a target is missed by far, too
    #[arg(long)]
    quick: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    link_input(&kernels::find(None)?)?;
    let mut cargo = workspace::cargo()?;
    cargo.args(["bench", "--locked", "-p", "fastprobe", "--bench", "tables", "--"]);
    if arguments.quick {
        cargo.arg("--quick");
    }
    // What it prints is this command's output.
    let status = cargo.status().context("can't start cargo")?;
    ensure!(status.success(), "the benchmarks failed ({status})");
    Ok(())
}

/// Quick benchmarks, as a step of the tests.
///
/// # Errors
///
/// When an answer is wrong or a target missed by far.
pub fn smoke() -> Result<()> {
    run(&Arguments { quick: true })
}

/// Makes the input, if it isn't there, and links it to where the benchmarks look: the folder that cargo has for them.
fn link_input(kernel: &Kernel) -> Result<()> {
    // These have entries of their own in the cache, which is locked while one is made.
    vm_tools::ensure()?;
    let image = kernels::fetch(kernel)?;
    let input =
        cache::entry(&format!("bench-{}", kernel.suite), |folder| make_input(kernel, &image, folder))?;
    let folder = workspace::target()?.join("tmp");
    fs::create_dir_all(&folder).with_context(|| format!("can't make {}", folder.display()))?;
    let link = folder.join("bench-input");
    if fs::read_link(&link).is_ok_and(|linked| linked == input) {
        return Ok(());
    }
    let _there_was_none = fs::remove_file(&link);
    symlink(&input, &link).with_context(|| format!("can't make {}", link.display()))
}

fn make_input(kernel: &Kernel, image: &Path, folder: &Path) -> Result<()> {
    copy_module(&kernels::modules_of(image)?, folder)?;
    // The guest may write to the folder with our programs.
    let programs = workspace::build_programs()?;
    let shared = tempfile::Builder::new().prefix("snapshot-").tempdir_in(&programs)?;
    let snapshot = shared.path().join("snapshot.tar.gz");
    let command = format!(
        "for module in {MODULES}; do modprobe -q $module || echo \"$module was not loaded\" >&2; done\n\
         fastprobe snapshot -o {}",
        vm::join(&[snapshot.to_string_lossy().into_owned()])?
    );
    say::line("taking a snapshot of a kernel with many modules, for the benchmarks: minutes, once");
    vm::expect_success(kernel, &Job { prelude: "", command: &command, programs: &programs }, TIMEOUT)?;
    fs::copy(&snapshot, folder.join("snapshot.tar.gz")).context("the VM left no snapshot")?;
    Ok(())
}

/// Copies one module's file, and the list that leads to it, to their places below `folder`.
fn copy_module(modules: &Path, folder: &Path) -> Result<()> {
    let list = fs::read_to_string(modules.join("modules.dep")).context("the kernel has no modules.dep")?;
    let paths = list.lines().filter_map(|line| line.split(':').next());
    let is_wanted = |path: &&str| {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        name.split('.').next() == Some(LARGE_MODULE)
    };
    let path: PathBuf = paths.into_iter().find(is_wanted).context("the kernel has no such module")?.into();
    let to = folder.join("lib/modules").join(modules.file_name().context("modules in an odd place")?);
    fs::create_dir_all(to.join(&path).parent().context("a module in an odd place")?)?;
    fs::copy(modules.join(&path), to.join(&path)).context("can't copy a module's file")?;
    fs::write(to.join("modules.dep"), list).context("can't copy modules.dep")
}
