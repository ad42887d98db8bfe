//! `fastprobe snapshot -o FILE`: this machine's tables, for another one.

use std::{
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use anyhow::Result;
use fastprobe::{
    Error, ErrorKind,
    tables::{Root, snapshot},
};

use super::{args::SnapshotArguments, exit::Exit, warn};

/// Runs the command. That there is a place to write to is known before anything is read; a file that is there already
/// is left alone.
pub fn run(arguments: &SnapshotArguments) -> Result<Exit> {
    let path = &arguments.output;
    if path.symlink_metadata().is_ok() {
        return Err(already_there(path).into());
    }
    let cant_write = |e: io::Error| {
        Error::new(ErrorKind::Io, format!("can't write {}", path.display()))
            .with_hint("-o FILE, in a folder that is there and may be written to")
            .with_source(e)
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Kernel addresses are nobody else's business.
    let mut file = tempfile::Builder::new()
        .prefix(".snapshot-")
        .permissions(Permissions::from_mode(0o600))
        .tempfile_in(folder)
        .map_err(cant_write)?;
    let written = snapshot::write(&Root::machine(), io::BufWriter::new(file.as_file_mut()))?;
    for missing in &written.missing {
        warn(format_args!("{missing:#}"), missing.hint());
    }
    let bytes = file.as_file().metadata().map_err(cant_write)?.len();
    file.persist_noclobber(path).map_err(|e| match e.error.kind() {
        io::ErrorKind::AlreadyExists => already_there(path),
        _ => cant_write(e.error),
    })?;
    writeln!(io::stdout(), "{}: {} files, {bytes} bytes", path.display(), written.files.len())?;
    Ok(Exit::Success)
}

fn already_there(path: &Path) -> Error {
    Error::new(ErrorKind::Usage, format!("{} is there already", path.display()))
        .with_hint("another name, or remove it first: nothing is overwritten")
}
