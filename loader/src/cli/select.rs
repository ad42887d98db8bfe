//! From the arguments to what they choose: patterns, tables, matches, in this order.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use fastprobe::{
    Error, ErrorKind, module_file,
    pattern::{PatternSet, PatternText, Syntax, parse_file},
    plan::Policy,
    tables::{Matches, Root, Source, Tables, Wish, cache::Folder},
};

use super::{
    args::{Select, SourceChoice},
    no_match, privileges, warn,
};

/// The patterns of a command line, read and compiled; what is wrong with them is known before the kernel is
/// asked anything.
pub struct Patterns {
    /// What to select.
    pub texts: Vec<PatternText>,
    /// The same, to match with.
    pub set: PatternSet,
}

/// Patterns without a match that are named one by one.
const WARNINGS: usize = 10;

/// Where the tables came from, and how long the two steps took.
#[derive(Debug, Clone, Copy)]
pub struct Chosen {
    /// Where they came from.
    pub source: Source,
    /// Reading the kernel's tables.
    pub tables: Duration,
    /// Choosing from them.
    pub plan: Duration,
}

/// Reads the patterns, the files that they name with `@`, and the files of modules of the kernel below `root`.
pub fn patterns(select: &Select, root: &Root) -> Result<Patterns> {
    let syntax = if select.regex { Syntax::Regex } else { Syntax::Glob };
    let mut texts = expand(&select.patterns)?;
    texts.extend(symbols_of_modules(select, root)?);
    if texts.is_empty() {
        // -m alone: everything in that module.
        texts.push(PatternText::argument(if select.regex { ".*" } else { "*" }));
    }
    let set = PatternSet::new(syntax, &texts, &expand(&select.excludes)?, &select.modules)?;
    Ok(Patterns { texts, set })
}

/// What `--imports-of` and `--exports-of` ask for, each name once.
fn symbols_of_modules(select: &Select, root: &Root) -> Result<Vec<PatternText>> {
    if select.imports_of.is_empty() && select.exports_of.is_empty() {
        return Ok(Vec::new());
    }
    let release = root.release()?;
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let mut imports = BTreeSet::new();
    for module in &select.imports_of {
        imports.extend(module_file::imports(root.path(), &release, module)?);
    }
    let mut texts: Vec<_> = imports.iter().map(|name| PatternText::symbol(None, &text(name))).collect();
    for module in &select.exports_of {
        let exports = module_file::exports(root.path(), &release, module)?;
        texts.extend(exports.iter().map(|name| PatternText::symbol(Some(module), &text(name))));
    }
    if texts.is_empty() {
        let modules = [&select.imports_of[..], &select.exports_of[..]].concat().join(" and ");
        let message = format!("the file of {modules} has no such symbols");
        return Err(Error::new(ErrorKind::NoMatch, message).into());
    }
    Ok(texts)
}

/// Ten times all functions that there are.
const MAX_PATTERN_BYTES: u64 = 64 << 20;

/// A file or a pipe, which may be endless.
fn read_at_most(path: &str, bytes: u64) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    let file = privileges::with_own_rights(|| File::open(path))??;
    file.take(bytes + 1).read_to_end(&mut contents)?;
    if contents.len() as u64 > bytes {
        return Err(io::Error::other(format!("more than {} MiB", bytes >> 20)));
    }
    Ok(contents)
}

/// `@FILE` becomes the patterns in it.
fn expand(arguments: &[String]) -> Result<Vec<PatternText>> {
    let mut texts = Vec::new();
    for argument in arguments {
        match argument.strip_prefix('@') {
            None => texts.push(PatternText::argument(argument)),
            Some(path) => {
                let contents = read_at_most(path, MAX_PATTERN_BYTES).map_err(|e| {
                    Error::new(ErrorKind::Usage, format!("can't read the patterns in {path}"))
                        .with_hint("@FILE names a file with one function or pattern a line")
                        .with_source(e)
                })?;
                texts.extend(parse_file(Path::new(path), &contents)?);
            }
        }
    }
    Ok(texts)
}

/// Reads the tables below `root`, warning of what they lack; `cache` is for this machine's own.
pub fn tables(
    root: &Root,
    cache: Option<&Folder>,
    select: &Select,
    patterns: &Patterns,
) -> Result<(Tables, Duration)> {
    let started = Instant::now();
    let tables = Tables::read(root, cache, wish(select, patterns)?, Some(&patterns.set))?;
    let took = started.elapsed();
    say_how(select, &tables, 0);
    if select.verbose > 0 {
        say!("fastprobe: tables from {} in {:.1} ms", tables.source(), took.as_secs_f64() * 1e3);
    }
    if select.verbose > 1 {
        for step in tables.steps() {
            say!("fastprobe: {}: {:.1} ms, {} reads", step.name, step.took.as_secs_f64() * 1e3, step.reads);
        }
    }
    Ok((tables, took))
}

/// Generated code shows up in the text files alone.
fn wish(select: &Select, patterns: &Patterns) -> Result<Wish> {
    match select.source {
        SourceChoice::Auto if patterns.set.names_generated_code() => Ok(Wish::Only(Source::Text)),
        SourceChoice::Kcore | SourceChoice::Cache if patterns.set.names_generated_code() => {
            let message = "the patterns name generated code, which is in no table in memory";
            Err(Error::new(ErrorKind::Usage, message).with_hint("--source text has it").into())
        }
        source => Ok(source.into()),
    }
}

/// Warns of what the tables lack, and tells why faster sources were not used, but for the `known` first ones.
fn say_how(select: &Select, tables: &Tables, known: usize) {
    for warning in tables.warnings() {
        warn(format_args!("{warning:#}; going on with the built-in denylist alone"), warning.hint());
    }
    for reason in tables.fallbacks().iter().skip(known).filter(|_| select.verbose > 0) {
        say!("fastprobe: {reason:#}");
    }
}

/// Chooses from `tables`, warning of patterns that match nothing.
///
/// # Errors
///
/// `NoMatch` with near misses where nothing matches at all.
pub fn matches(root: &Root, select: &Select, patterns: &Patterns, tables: &mut Tables) -> Result<Matches> {
    let known = tables.fallbacks().len();
    let (matches, matcher) = tables.choose(root, wish(select, patterns)?, &patterns.set)?;
    if tables.fallbacks().len() > known {
        say_how(select, tables, known);
        if select.verbose > 0 {
            say!("fastprobe: tables from {} instead", tables.source());
        }
    }
    if matches.iter().next().is_none() {
        return Err(no_match::explain(select, patterns, tables)?.into());
    }
    let unmatched: Vec<_> = matcher.unmatched().filter(|pattern| !pattern.is_symbol()).collect();
    for pattern in unmatched.iter().take(WARNINGS) {
        warn(format_args!("no function matches {pattern}"), None);
    }
    if unmatched.len() > WARNINGS {
        warn(format_args!("{} more patterns match no function", unmatched.len() - WARNINGS), None);
    }
    Ok(matches)
}

/// What the user allows.
pub fn policy(select: &Select) -> Policy {
    Policy {
        force: select.force,
        blacklist: !select.no_blacklist,
        max_functions: select.max_functions,
        ..Policy::default()
    }
}
