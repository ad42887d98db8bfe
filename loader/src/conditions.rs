//! What about a kernel makes probes slow, silent or worse, though they attach.

use std::fs;

use crate::{
    error::{Error, ErrorKind, Result},
    tables::Root,
};

/// A fact about this kernel that a user should know before the attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// What it is and what it leads to.
    pub message: String,
    /// What mends it.
    pub hint: &'static str,
}

/// From so many functions on it is felt that they share 256 lists.
const MANY: usize = 2560;

/// Fails where ftrace is switched off on the machine below `root`. Up to 6.12 a link attaches all the same and never
/// fires, and measured on 6.12, its detach makes ftrace shut itself down until the next boot
/// (`ftrace_shutdown` in `kernel/trace/ftrace.c` finds a record that it can't account for).
///
/// # Errors
///
/// `Unsupported`, with the command that switches it on.
pub fn check_ftrace(root: &Root) -> Result<()> {
    let enabled = fs::read_to_string(root.path().join("proc/sys/kernel/ftrace_enabled"));
    if enabled.is_ok_and(|enabled| enabled.trim() == "0") {
        let message = "kernel.ftrace_enabled is 0: no probe would fire, and to detach it could break ftrace";
        return Err(Error::new(ErrorKind::Unsupported, message).with_hint("sysctl kernel.ftrace_enabled=1"));
    }
    Ok(())
}

/// What makes each hit slow on the machine below `root` when so many functions are attached to.
pub fn slow_hits(root: &Root, functions: usize) -> Option<Condition> {
    let release = root.release().ok().filter(|release| has_one_table_for_all(release))?;
    (functions >= MANY).then(|| Condition {
        message: format!(
            "on Linux {release} each hit of {functions} probes gets slower with their number (6.14 to 6.18: 256 lists \
             for all of them)"
        ),
        hint: "match fewer functions, or use 6.12 or 6.19 and later",
    })
}

/// Whether all fprobes share a table of 256 lists, so that a hit has to walk one of `functions / 256`
/// (`fprobe_ip_table` in `kernel/trace/fprobe.c`, 6.14 to 6.18; a growing table since 6.19).
fn has_one_table_for_all(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => ((6, 14)..(6, 19)).contains(&(major, minor)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(release: &str, ftrace_enabled: &str) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/sys/kernel");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("osrelease"), release).unwrap();
        fs::write(folder.join("ftrace_enabled"), ftrace_enabled).unwrap();
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn the_slow_kernels_are_named_when_many_functions_are_probed() {
        for (release, slow) in [
            ("6.13.12-amd64", false),
            ("6.14.0", true),
            ("6.18.3+deb14-amd64", true),
            ("6.19.0-rc1", false),
            ("7.3.4", false),
            ("5.18", false),
            ("", false),
            ("strange", false),
        ] {
            let (_dir, root) = machine(release, "1\n");
            assert_eq!(slow_hits(&root, 5000).is_some(), slow, "{release}");
            assert_eq!(slow_hits(&root, 100), None, "{release}");
        }
    }

    #[test]
    fn switched_off_ftrace_is_refused_with_the_command_that_mends_it() {
        let (_dir, root) = machine("6.12.0", "0\n");
        let error = check_ftrace(&root).unwrap_err();
        assert_eq!(
            (error.kind(), error.hint()),
            (ErrorKind::Unsupported, Some("sysctl kernel.ftrace_enabled=1"))
        );
        let (dir, root) = machine("6.12.0", "1\n");
        check_ftrace(&root).unwrap();
        fs::remove_file(dir.path().join("proc/sys/kernel/ftrace_enabled")).unwrap();
        check_ftrace(&root).unwrap();
    }
}
