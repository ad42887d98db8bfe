//! What about a kernel makes probes silent or slow, though they attach.

use std::fs;

use crate::tables::Root;

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

/// What is to be known about attaching to so many functions on the machine below `root`.
pub fn conditions(root: &Root, functions: usize) -> Vec<Condition> {
    let mut found = Vec::new();
    // Up to 6.12 a link attaches and never fires (`ftrace_ops_list_func` is left out in `kernel/trace/ftrace.c`).
    let ftrace = fs::read_to_string(root.path().join("proc/sys/kernel/ftrace_enabled"));
    if ftrace.is_ok_and(|enabled| enabled.trim() == "0") {
        found.push(Condition {
            message: "kernel.ftrace_enabled is 0: probes attach and may never fire".to_owned(),
            hint: "sysctl kernel.ftrace_enabled=1",
        });
    }
    let release = root.release().unwrap_or_default();
    if functions >= MANY && has_one_table_for_all(&release) {
        found.push(Condition {
            message: format!(
                "on Linux {release} each hit of {functions} probes gets slower with their number (6.14 to 6.18: 256 \
                 lists for all of them)"
            ),
            hint: "match fewer functions, or use 6.12 or 6.19 and later",
        });
    }
    found
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
            assert_eq!(conditions(&root, 5000).len(), usize::from(slow), "{release}");
            assert_eq!(conditions(&root, 100), [], "{release}");
        }
    }

    #[test]
    fn switched_off_ftrace_is_told_with_the_command_that_mends_it() {
        let (_dir, root) = machine("6.12.0", "0\n");
        assert_eq!(conditions(&root, 1)[0].hint, "sysctl kernel.ftrace_enabled=1");
        let (dir, root) = machine("6.12.0", "0\n");
        fs::remove_file(dir.path().join("proc/sys/kernel/ftrace_enabled")).unwrap();
        assert_eq!(conditions(&root, 1), []);
    }
}
