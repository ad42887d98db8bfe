//! The tables from the files that every kernel has: slow, since the kernel looks up each line anew, and always
//! there.

mod blacklist;
mod filter_functions;
mod join;
mod kallsyms;
mod lines;
mod modules;

use std::{fmt::Display, thread};

pub use filter_functions::Columns;

use super::{
    Blacklist,
    files::Root,
    matches::{MatchSink, Matches},
    symbols::Symbols,
};
use crate::{
    error::{Error, ErrorKind, Result},
    pattern::{CORE, Matcher},
};

/// What the files say.
#[derive(Debug, Default)]
pub struct TextTables {
    /// All functions.
    pub functions: Symbols,
    /// The addresses of the ftrace records, ascending.
    pub sites: Vec<u64>,
    /// Where probes are forbidden.
    pub blacklist: Blacklist,
    /// The loaded modules.
    pub modules: Vec<Box<[u8]>>,
    /// What could not be read and was done without.
    pub warnings: Vec<Error>,
}

/// Reads the files below `root`, the two large ones side by side.
///
/// # Errors
///
/// `Unsupported` and `Permission` where a file isn't there or may not be read, or all addresses are hidden;
/// `Malformed` for a line of unknown form. A blacklist that can't be read is a warning.
pub fn read(root: &Root) -> Result<TextTables> {
    let (functions, records) = thread::scope(|scope| {
        let records = scope.spawn(|| {
            let ((path, file), columns) = root.filter_functions()?;
            filter_functions::parse(&path, file, columns)
        });
        let functions = root.kallsyms().and_then(|(path, file)| kallsyms::parse(&path, file));
        (functions, records.join())
    });
    // The list of traceable functions is the likelier one to be missing, and its error the more helpful.
    let records = records
        .map_err(|_| Error::new(ErrorKind::Io, "the thread that read the traceable functions died"))??;
    let mut functions = functions?;
    if functions.is_empty() {
        return Err(no_functions(root.path().join("proc/kallsyms").display()));
    }
    if records.is_empty() {
        return Err(no_functions("the list of traceable functions"));
    }
    let sites = join::sites(&mut functions, &records)?;

    let mut warnings = Vec::new();
    let blacklist = match root.blacklist().and_then(|(path, file)| blacklist::parse(&path, file)) {
        Err(error) if error.kind() == ErrorKind::Malformed => return Err(error),
        Err(error) => {
            warnings.push(error);
            Blacklist::default()
        }
        Ok(blacklist) => blacklist,
    };
    let modules = match root.modules()? {
        Some((path, file)) => modules::parse(&path, file)?,
        None => Vec::new(),
    };
    Ok(TextTables { functions, sites, blacklist, modules, warnings })
}

/// A list without any function: nothing could be attached to.
fn no_functions(list: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{list} holds no functions"))
        .with_hint("a kernel with CONFIG_KALLSYMS and CONFIG_DYNAMIC_FTRACE has 30,000 and more in it")
}

impl TextTables {
    /// All functions that match.
    ///
    /// # Errors
    ///
    /// `Malformed` where there are more than any kernel has.
    pub fn matching(&self, matcher: &mut Matcher<'_>) -> Result<Matches> {
        let mut sink = MatchSink::new(&self.sites, &self.blacklist);
        for function in self.functions.iter() {
            if matcher.matches(function.module.unwrap_or(CORE), function.name) {
                sink.push(function)?;
            }
        }
        Ok(sink.finish())
    }
}
