//! The command: reads the arguments, runs the command they name, and says what went wrong. Nothing outside
//! this folder prints.

/// Prints a line on standard error. That nobody can read it, on a full disk or a closed pipe, ends no run.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _unread = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod args;
mod cache;
mod count;
mod doctor;
mod duration;
mod exit;
mod list;
mod no_match;
mod privileges;
mod program_log;
mod render;
mod run;
mod select;
mod snapshot;
mod stop;
mod window;

use std::{io, process::ExitCode, time::Instant};

use args::{Arguments, Command};
use count::Count;
use exit::Exit;
use fastprobe::ErrorKind;

/// Runs the command line of this process.
pub fn run(started: Instant) -> ExitCode {
    let arguments = Arguments::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let result = match &arguments.command {
        Some(Command::List(list)) => list::run(list),
        Some(Command::Cache(command)) => cache::run(*command),
        Some(Command::Snapshot(arguments)) => snapshot::run(arguments),
        Some(Command::Doctor(arguments)) => doctor::run(arguments),
        None => run::run(&mut Count::new(&arguments.count), started),
    };
    match result {
        Ok(exit) => exit.into(),
        // Whoever reads our output has had enough: `fastprobe list … | head` is no fault.
        Err(error) if is_broken_pipe(&error) => Exit::Success.into(),
        Err(error) => {
            say_error(&error);
            if is_interruption(&error) {
                // To whoever waits for us it is as if we had not caught the signal.
                let _returns = signal_hook::low_level::emulate_default_handler(libc::SIGINT);
            }
            Exit::of(&error).into()
        }
    }
}

/// Prints the fault with its causes, and the hints below it.
fn say_error(error: &anyhow::Error) {
    say!("fastprobe: error: {error:#}");
    if let Some(hint) = error.downcast_ref::<fastprobe::Error>().and_then(fastprobe::Error::hint) {
        say_hint(hint);
    }
}

/// Prints a fault that the run survives.
fn warn(message: impl std::fmt::Display, hint: Option<&str>) {
    say!("fastprobe: warning: {message}");
    if let Some(hint) = hint {
        say_hint(hint);
    }
}

fn say_hint(hint: &str) {
    for line in hint.lines() {
        say!("  hint: {line}");
    }
}

fn is_interruption(error: &anyhow::Error) -> bool {
    error.downcast_ref::<fastprobe::Error>().is_some_and(|e| e.kind() == ErrorKind::Interrupted)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
