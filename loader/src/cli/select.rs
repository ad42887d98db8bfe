//! From the arguments to a plan: patterns, tables, plan, in this order, each timed.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use fastprobe::{
    Error, ErrorKind,
    pattern::{PatternSet, PatternText, Syntax, parse_file},
    plan::{Plan, Policy, plan},
    tables::{Root, Tables},
};

use super::{args::Select, no_match, warn};

/// The patterns of a command line, read and compiled; what is wrong with them is known before the kernel is
/// asked anything.
pub struct Patterns {
    /// What to select.
    pub texts: Vec<PatternText>,
    /// The same, to match with.
    pub set: PatternSet,
}

/// How long the two steps took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    /// Reading the kernel's tables.
    pub tables: Duration,
    /// Choosing from them.
    pub plan: Duration,
}

/// Reads the patterns and the files that they name with `@`.
pub fn patterns(select: &Select) -> Result<Patterns> {
    let syntax = if select.regex { Syntax::Regex } else { Syntax::Glob };
    let mut texts = expand(&select.patterns)?;
    if texts.is_empty() {
        // -m alone: everything in that module.
        texts.push(PatternText::argument(if select.regex { ".*" } else { "*" }));
    }
    let set = PatternSet::new(syntax, &texts, &expand(&select.excludes)?, &select.modules)?;
    Ok(Patterns { texts, set })
}

/// `@FILE` becomes the patterns in it.
fn expand(arguments: &[String]) -> Result<Vec<PatternText>> {
    let mut texts = Vec::new();
    for argument in arguments {
        match argument.strip_prefix('@') {
            None => texts.push(PatternText::argument(argument)),
            Some(path) => {
                let contents = std::fs::read(path).map_err(|e| {
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

/// Reads the tables below `root`, warning of what they lack.
pub fn tables(root: &Root) -> Result<(Tables, Duration)> {
    let started = Instant::now();
    let tables = Tables::read(root)?;
    let took = started.elapsed();
    for warning in tables.warnings() {
        warn(format_args!("{warning:#}; going on with the built-in denylist alone"), warning.hint());
    }
    Ok((tables, took))
}

/// Chooses from `tables`, warning of patterns that match nothing.
///
/// # Errors
///
/// `NoMatch` with near misses where nothing matches at all.
pub fn choose<'t>(select: &Select, patterns: &Patterns, tables: &'t Tables) -> Result<(Plan<'t>, Duration)> {
    let started = Instant::now();
    let policy = Policy {
        force: select.force,
        blacklist: !select.no_blacklist,
        max_functions: select.max_functions,
        ..Policy::default()
    };
    let mut matcher = patterns.set.matcher();
    let plan = plan(tables, &mut matcher, policy);
    let took = started.elapsed();
    if plan.matched() == 0 {
        return Err(no_match::explain(select, patterns, tables).into());
    }
    for pattern in matcher.unmatched() {
        warn(format_args!("no function matches {pattern}"), None);
    }
    Ok((plan, took))
}
