//! Runs other programs.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Lines of a failed program's output that its error shows.
const LAST_LINES: usize = 15;

/// Runs a program quietly and gives its standard output.
///
/// # Errors
///
/// When it can't be started or fails: with the command and the last lines that it printed.
pub fn output(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("can't start {}", shown(command)))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let all = text + &String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = all.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n  ");
        bail!("{} failed ({}):\n  {last}", shown(command), output.status);
    }
    Ok(text)
}

/// Runs a program that says for itself what it does; all it prints goes to standard error.
///
/// # Errors
///
/// When it can't be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("can't start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Whether a program of this name is on PATH, or where Debian keeps those for root.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .any(|folder| std::path::Path::new(folder).join(program).is_file())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_command_and_its_last_words() {
        let error = output(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("sh -c echo one; echo two >&2; exit 3 failed (exit status: 3)"), "{error}");
        assert!(error.ends_with("one\n  two"), "{error}");
        assert!(
            output(&mut Command::new("no-such-program")).unwrap_err().to_string().contains("can't start")
        );
    }
}
