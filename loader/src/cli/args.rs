//! The command line, as clap reads it.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use fastprobe::tables::{Source, Wish};

use super::duration;

const EXAMPLES: &str = "\
Patterns:
  vfs_read            a function, with its compiler variants (vfs_read.isra.0)
  'kvm*'              a glob: *  ?  [a-z]  {a,b}
  'kvm:*'             functions of one module; vmlinux: is the core kernel
  -r 'tcp_(v4|v6)_.*' with -r a regular expression that matches the whole name
  @FILE               names or patterns from a file, one a line

Examples:
  fastprobe 'kvm*'                      count calls until Ctrl-C
  fastprobe -d 10 -i 1 'xfs:*' -x '*lock*'
  fastprobe --json -d 3 'tcp_*' | jq .
  fastprobe list 'ext4_*'               what would be attached and what not, and why
  fastprobe doctor                      what is in the way on this machine, and what mends it

Exit codes: 0 attached, 1 fault, 2 usage, 3 nothing to attach to, 4 this kernel or environment can't,
5 a function was skipped under --strict";

/// Attach one eBPF program to every kernel function that matches, in milliseconds, and count the calls.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub count: CountArguments,
}

impl Arguments {
    /// Reads a command line.
    ///
    /// # Errors
    ///
    /// What is wrong with it. A command behind options would be taken for the name of a function.
    pub fn read(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let mut clap = Self::command();
        let arguments = Self::try_parse_from(&words).map_err(|error| match error.kind() {
            clap::error::ErrorKind::InvalidUtf8 => {
                let bad = words.iter().find(|word| word.to_str().is_none());
                let bad = bad.map_or(&b""[..], |word| word.as_bytes()).escape_ascii();
                clap.error(clap::error::ErrorKind::InvalidUtf8, format!("an argument is not UTF-8: '{bad}'"))
            }
            _ => error,
        })?;
        match arguments.count.session.select.patterns.first() {
            Some(first) if clap.find_subcommand(first).is_some() => {
                let message = format!(
                    "options go after the command: fastprobe {first} OPTIONS PATTERN... (for a function of that \
                     name: vmlinux:{first})"
                );
                Err(clap.error(clap::error::ErrorKind::ArgumentConflict, message))
            }
            _ => Ok(arguments),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what would be attached and what skipped, and why; attaches nothing
    List(ListArguments),
    /// What is kept between runs: the kernel's tables of this boot
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Keep this machine's tables in a file, to plan elsewhere (list --root FILE) or for a bug report
    ///
    /// It is a tar.gz of the files that tables are read from, and of what they are in the kernel's memory. Kernel
    /// addresses are in it, which help an attacker: the file is for your eyes only (mode 0600), give it to nobody
    /// whom you wouldn't let read /proc/kallsyms as root.
    Snapshot(SnapshotArguments),
    /// What this machine allows, what its lacks cost, and the command that mends each; exits with 4 where fastprobe
    /// can't attach
    Doctor(DoctorArguments),
}

#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// NDJSON on standard output
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum CacheCommand {
    /// Say whether there is a cache and whether it can be used
    Status,
    /// Write it now, for the next run
    Warm,
    /// Remove it
    Clear,
}

/// Which functions, and what to do about those that can't be attached.
#[derive(Debug, Args)]
pub struct Select {
    /// Functions to attach to: names, globs, `module:glob`, `@FILE`; several are a union
    #[arg(value_name = "PATTERN", required_unless_present_any = ["modules", "imports_of", "exports_of"])]
    pub patterns: Vec<String>,
    /// Leave out functions that match; wins over every PATTERN
    #[arg(short = 'x', long = "exclude", value_name = "PATTERN")]
    pub excludes: Vec<String>,
    /// Only functions of this module (a glob; `vmlinux` is the core kernel); alone, all of them
    #[arg(short, long = "module", value_name = "MODULE")]
    pub modules: Vec<String>,
    /// Every function that MODULE calls in others, by its file (it needn't be loaded)
    #[arg(long, value_name = "MODULE")]
    pub imports_of: Vec<String>,
    /// Every function that MODULE defines for others, by its file
    #[arg(long, value_name = "MODULE")]
    pub exports_of: Vec<String>,
    /// Patterns are regular expressions that match the whole name
    #[arg(short, long)]
    pub regex: bool,
    /// Attach to at most N functions
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub max_functions: usize,
    /// Attach to functions of the denylist, too: those that the kernel's own tests leave out or that every eBPF
    /// program runs through
    #[arg(long)]
    pub force: bool,
    /// Don't leave out what the kernel's kprobe blacklist covers
    #[arg(long)]
    pub no_blacklist: bool,
    /// Where to read the kernel's tables from
    #[arg(long, value_enum, default_value_t = SourceChoice::Auto)]
    pub source: SourceChoice,
    /// If any function that matches would be skipped, attach nothing and exit with 5
    #[arg(long)]
    pub strict: bool,
    /// NDJSON on standard output
    #[arg(long)]
    pub json: bool,
    /// Say more: every skipped function, the tables' source, what the eBPF program logs; -vv: how the tables were
    /// read
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// [`Wish`], as words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SourceChoice {
    /// The fastest that works; -v says why not a faster one
    Auto,
    /// What an earlier run of this boot kept: fastprobe cache status
    Cache,
    /// The kernel's memory, through /proc/kcore
    Kcore,
    /// /proc/kallsyms and tracefs
    Text,
}

impl From<SourceChoice> for Wish {
    fn from(choice: SourceChoice) -> Self {
        match choice {
            SourceChoice::Auto => Self::Auto,
            SourceChoice::Cache => Self::Only(Source::Cache),
            SourceChoice::Kcore => Self::Only(Source::Kcore),
            SourceChoice::Text => Self::Only(Source::Text),
        }
    }
}

/// What to attach to, how, and for how long.
#[derive(Debug, Args)]
pub struct SessionArguments {
    #[command(flatten)]
    pub select: Select,
    /// Stop after this long (seconds, or 500ms, 2m); 0 attaches, reports and detaches
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse)]
    pub duration: Option<Duration>,
    /// Look for a second what all of them cost, then leave out the hottest until the rest costs at most so much of one
    /// CPU: 5%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub budget: Option<f64>,
    /// How to attach
    #[arg(long, value_enum, default_value_t = BackendChoice::Auto)]
    pub backend: BackendChoice,
}

#[derive(Debug, Args)]
pub struct CountArguments {
    #[command(flatten)]
    pub session: SessionArguments,
    /// Print what was counted at each interval, not only at the end
    #[arg(short, long, value_name = "TIME", value_parser = duration::parse_period)]
    pub interval: Option<Duration>,
    /// Show at most N functions [default: 40 in a table, all in JSON]
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "all")]
    pub top: Option<usize>,
    /// Order of the rows
    #[arg(long, value_enum, default_value_t = Sort::Hits)]
    pub sort: Sort,
    /// Show every function, also those without a hit
    #[arg(long)]
    pub all: bool,
}

/// Reads `5%`, a part of one CPU.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
    match number {
        Some(percent) if percent.is_finite() && percent > 0.0 => Ok(percent / 100.0),
        _ => Err("expected more than nothing of one CPU, with a percent sign: 5%, 0.5%".into()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// The first that this kernel has; says so where that is not multi
    Auto,
    /// One kprobe-multi link
    Multi,
    /// A kprobe for each function, for kernels without kprobe-multi links; many times slower
    Single,
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    pub select: Select,
    /// Read DIR/proc and DIR/sys instead of this machine's, or a file that `fastprobe snapshot` wrote
    #[arg(long, value_name = "DIR|FILE")]
    pub root: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SnapshotArguments {
    /// The file to write; it must not be there yet
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Hottest first
    Hits,
    /// By name
    Name,
    /// By module, hottest first within each
    Module,
    /// By address
    Address,
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn counting_is_the_default_and_list_a_command() {
        let count = Arguments::read(["fastprobe", "-d", "500ms", "kvm*", "-x", "*lock*", "xfs:*"]).unwrap();
        assert!(count.command.is_none());
        assert_eq!(count.count.session.select.patterns, ["kvm*", "xfs:*"]);
        assert_eq!(count.count.session.duration, Some(Duration::from_millis(500)));
        let list = Arguments::read(["fastprobe", "list", "--root", "/x", "kvm*"]).unwrap();
        assert!(matches!(list.command, Some(Command::List(list)) if list.select.patterns == ["kvm*"]));
        // Not the pattern "list", with the options of counting.
        let error = Arguments::read(["fastprobe", "-v", "list", "kvm*"]).unwrap_err().to_string();
        assert!(error.contains("options go after the command"), "{error}");
    }

    #[test]
    fn a_budget_is_a_part_of_a_cpu() {
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percent("250 %"), Ok(2.5));
        for bad in ["5", "0%", "-1%", "%", "nan%", "inf%", "five%", ""] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_argument_that_is_no_text_is_named() {
        let words = ["fastprobe".into(), OsString::from_vec(b"vfs_\xff".into())];
        let error = Arguments::read(words).unwrap_err().to_string();
        assert!(error.contains(r"not UTF-8: 'vfs_\xff'"), "{error}");
    }

    #[test]
    fn a_pattern_is_required_unless_a_module_is_named() {
        assert!(Arguments::read(["fastprobe"]).is_err());
        assert!(Arguments::read(["fastprobe", "-m", "kvm"]).is_ok());
        assert!(Arguments::read(["fastprobe", "list", "--imports-of", "kvm"]).is_ok());
        assert!(Arguments::read(["fastprobe", "list"]).is_err());
        assert!(Arguments::read(["fastprobe", "--root", "/x", "kvm*"]).is_err());
    }
}
