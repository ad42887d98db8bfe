//! The folder outside the tree where toolchain, kernels and VM are kept between runs.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// `$FASTPROBE_CACHE`, else `$XDG_CACHE_HOME/fastprobe`, else `~/.cache/fastprobe`.
///
/// # Errors
///
/// When none of the variables is set or the folder can't be made.
pub fn folder() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = var("FASTPROBE_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|cache| cache.join("fastprobe")))
        .or_else(|| var("HOME").map(|home| home.join(".cache/fastprobe")))
        .context("neither FASTPROBE_CACHE nor HOME is set: where shall the cache be?")?;
    fs::create_dir_all(&folder).with_context(|| format!("can't make the cache {}", folder.display()))?;
    fs::canonicalize(&folder).with_context(|| format!("can't find the cache {}", folder.display()))
}

/// The entry `name`, made by `make` if it isn't there. Half-made ones never count: `make` works in a folder of
/// its own, which gets its name when all is done. Two xtasks at once wait for each other.
///
/// # Errors
///
/// What `make` fails with.
pub fn entry(name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let cache = folder()?;
    let entry = cache.join(name);
    if entry.exists() {
        return Ok(entry);
    }
    let lock = File::create(cache.join("lock")).context("can't make the cache's lock file")?;
    lock.lock().context("can't lock the cache")?;
    if entry.exists() {
        return Ok(entry);
    }
    let parent = entry.parent().unwrap_or(&cache);
    fs::create_dir_all(parent).with_context(|| format!("can't make {}", parent.display()))?;
    let half_made = tempfile::Builder::new().prefix(".making-").tempdir_in(parent)?;
    make(half_made.path())?;
    fs::rename(half_made.keep(), &entry).with_context(|| format!("can't make {}", entry.display()))?;
    Ok(entry)
}
