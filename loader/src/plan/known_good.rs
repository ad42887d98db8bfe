//! A function to try a probe on.

use super::{Policy, plan};
use crate::{
    error::Result,
    pattern::{PatternSet, PatternText, Syntax},
    tables::Tables,
};

/// Functions that every kernel has and that are called once at most: a link with one of them changes no count.
const KNOWN_GOOD: [&str; 3] = ["kernel_restart", "kernel_halt", "kernel_power_off"];

/// The site of a function that can be attached to, whatever is wrong with others.
///
/// # Errors
///
/// Those of [`Tables::matching`].
pub fn known_good(tables: &Tables) -> Result<Option<u64>> {
    let names = KNOWN_GOOD.map(|name| PatternText::argument(format!("vmlinux:{name}")));
    let patterns = PatternSet::new(Syntax::Glob, &names, &[], &[])?;
    let matches = tables.matching(&mut patterns.matcher())?;
    Ok(plan(&matches, Policy::default()).targets.first().map(|target| target.site))
}
