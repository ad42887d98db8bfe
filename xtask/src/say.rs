//! What xtask says of its own work, on standard error: standard output belongs to the command that it runs.

use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// Runs a step that may take a while: on a terminal a spinner, and a line with the time when it is done; anywhere
/// else one line, before the work, which tells what is going on.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    let spinner = ProgressBar::new_spinner();
    if spinner.is_hidden() {
        line(&format!("{what} …"));
        return work();
    }
    spinner.set_style(
        ProgressStyle::with_template("xtask: {spinner} {msg} … {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    spinner.set_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    let result = work();
    spinner.finish_and_clear();
    if result.is_ok() {
        line(&format!("{what}: {:.1} s", started.elapsed().as_secs_f64()));
    }
    result
}

/// One line.
pub fn line(text: &str) {
    eprintln!("xtask: {text}");
}
