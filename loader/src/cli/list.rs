//! `fastprobe list PATTERN…`: the plan, and nothing but the plan.

use std::path::Path;

use anyhow::Result;
use fastprobe::{
    Error, ErrorKind,
    plan::plan,
    tables::{Root, cache::Folder, snapshot},
};
use tempfile::TempDir;

use super::{args::ListArguments, exit::Exit, privileges, render, select};

/// Runs the command; what is below `--root` may be a link to anything.
pub fn run(arguments: &ListArguments) -> Result<Exit> {
    match arguments.root {
        Some(_) => privileges::with_own_rights(|| list(arguments))?,
        None => list(arguments),
    }
}

fn list(arguments: &ListArguments) -> Result<Exit> {
    let (root, _unpacked) = root(arguments.root.as_deref())?;
    let cache = arguments.root.is_none().then(Folder::of_this_user);
    let patterns = select::patterns(&arguments.select, &root)?;
    let (mut tables, _) = select::tables(&root, cache.as_ref(), &arguments.select, &patterns)?;
    let matches = select::matches(&root, &arguments.select, &patterns, &mut tables)?;
    let plan = plan(&matches, select::policy(&arguments.select));
    render::plan(&plan, arguments.select.json)?;
    let incomplete = arguments.select.strict && !plan.skipped.is_empty();
    Ok(if incomplete { Exit::Strict } else { Exit::Success })
}

/// What `--root` names, and the folder that a snapshot was unpacked into, for as long as it is held.
fn root(named: Option<&Path>) -> Result<(Root, Option<TempDir>)> {
    let Some(path) = named else { return Ok((Root::machine(), None)) };
    if path.is_dir() {
        return Ok((Root::at(path), None));
    }
    if !path.exists() {
        let message = format!("--root {}: no such folder or snapshot", path.display());
        let hint = "a folder with proc/kallsyms and sys/kernel/tracing/available_filter_functions in it, or a file \
                    that fastprobe snapshot -o FILE has written";
        return Err(Error::new(ErrorKind::Usage, message).with_hint(hint).into());
    }
    let folder = tempfile::Builder::new().prefix("fastprobe-").tempdir()?;
    snapshot::unpack(path, folder.path())?;
    Ok((Root::at(folder.path()), Some(folder)))
}
