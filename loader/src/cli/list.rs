//! `fastprobe list PATTERN…`: the plan, and nothing but the plan.

use anyhow::Result;
use fastprobe::{plan::plan, tables::Root};

use super::{args::ListArguments, exit::Exit, render, select};

/// Runs the command.
pub fn run(arguments: &ListArguments) -> Result<Exit> {
    let root = arguments.root.as_ref().map_or_else(Root::machine, Root::at);
    let patterns = select::patterns(&arguments.select, &root)?;
    let (tables, _) = select::tables(&root, &arguments.select, &patterns)?;
    let matches = select::matches(&arguments.select, &patterns, &tables)?;
    let plan = plan(&matches, select::policy(&arguments.select));
    render::plan(&plan, arguments.select.json)?;
    let incomplete = arguments.select.strict && !plan.skipped.is_empty();
    Ok(if incomplete { Exit::Strict } else { Exit::Success })
}
