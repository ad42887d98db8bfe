//! `fastprobe cache status|warm|clear`.

use std::{
    io::{self, Write},
    time::Instant,
};

use anyhow::Result;
use fastprobe::{
    Error, ErrorKind,
    tables::{Root, Source, Tables, Wish, cache::Folder},
};

use super::{args::CacheCommand, exit::Exit};

/// Runs the command.
pub fn run(command: CacheCommand) -> Result<Exit> {
    let folder = Folder::of_this_user();
    match command {
        CacheCommand::Status => status(&folder),
        CacheCommand::Warm => warm(&folder),
        CacheCommand::Clear => clear(&folder),
    }
}

/// Says what a run would say; with a cache that can't be used, as one that would have to use it.
fn status(folder: &Folder) -> Result<Exit> {
    let started = Instant::now();
    let tables = Tables::read(&Root::machine(), Some(folder), Wish::Only(Source::Cache), None)?;
    tables.check()?;
    let took = started.elapsed();
    writeln!(
        io::stdout(),
        "{}: {} traceable functions, {} modules, {} bytes; read and checked in {:.1} ms",
        folder.file().display(),
        tables.counts().traceable,
        tables.modules().len(),
        std::fs::metadata(folder.file()).map_or(0, |metadata| metadata.len()),
        took.as_secs_f64() * 1e3
    )?;
    Ok(Exit::Success)
}

fn warm(folder: &Folder) -> Result<Exit> {
    let root = Root::machine();
    let mut tables = Tables::read(&root, Some(folder), Wish::Auto, None)?;
    if tables.check().is_err() {
        folder.clear()?;
        tables = Tables::read(&root, Some(folder), Wish::Auto, None)?;
    }
    let file = folder.file();
    match tables.source() {
        Source::Cache => writeln!(io::stdout(), "{}: was there already", file.display())?,
        Source::Kcore => {
            tables.store(&root, folder)?;
            writeln!(io::stdout(), "{}: written", file.display())?;
        }
        Source::Text => {
            let reasons: Vec<_> = tables.fallbacks().iter().map(|reason| format!("{reason:#}")).collect();
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("only the kernel's memory can be kept: {}", reasons.join("; ")),
            )
            .into());
        }
    }
    Ok(Exit::Success)
}

fn clear(folder: &Folder) -> Result<Exit> {
    let found = folder.clear()?;
    writeln!(
        io::stdout(),
        "{}: {}",
        folder.file().display(),
        if found { "removed" } else { "was not there" }
    )?;
    Ok(Exit::Success)
}
