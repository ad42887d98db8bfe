//! What was found on a machine, before anybody judges it.

use std::path::PathBuf;

use super::trial::Refusal;
use crate::{error::Result, tables::Source};

/// What was found. An `Option` is none where the kernel's file isn't there or can't be understood.
#[derive(Debug)]
pub struct Facts {
    /// The kernel's release; empty where it can't be read.
    pub kernel: String,
    /// Where a run would take the kernel's tables from.
    pub tables: Result<Source>,
    /// Whether they can be read from the kernel's memory.
    pub kcore: Result<()>,
    /// Whether there is a `/proc/kcore` at all.
    pub has_kcore: bool,
    /// Whether BTF says where things are in that memory.
    pub btf: Result<()>,
    /// The list of traceable functions, which can be opened.
    pub tracefs: Result<PathBuf>,
    /// The kprobe blacklist, which can be opened.
    pub debugfs: Result<PathBuf>,
    /// Whether the kernel has tracefs, and it is mounted nowhere.
    pub can_mount_tracefs: bool,
    /// The same of debugfs.
    pub can_mount_debugfs: bool,
    /// Whether tables can be kept for the next run.
    pub cache: Result<()>,
    /// The cache's file.
    pub cache_file: PathBuf,
    /// Whether there is a cache of this boot, good for use.
    pub is_cached: bool,
    /// What came of a link for many functions.
    pub multi: Result<(), Refusal>,
    /// What came of a probe on one function.
    pub single: Result<(), Refusal>,
    /// Whether kprobes are armed (`/sys/kernel/debug/kprobes/enabled`).
    pub kprobes_armed: Option<bool>,
    /// Whether `/proc/kallsyms` shows addresses to this process.
    pub shows_addresses: Option<bool>,
    /// `kernel.kptr_restrict`
    pub kptr_restrict: Option<i64>,
    /// `kernel.perf_event_paranoid`
    pub perf_event_paranoid: Option<i64>,
    /// `kernel.ftrace_enabled`
    pub ftrace_enabled: Option<i64>,
    /// What the kernel forbids even to root.
    pub lockdown: Lockdown,
    /// What this process may do.
    pub capabilities: Option<Capabilities>,
    /// `RLIMIT_MEMLOCK`, in bytes.
    pub memlock: Option<Limit>,
    /// `RLIMIT_NOFILE`, in files.
    pub nofile: Option<Limit>,
}

/// The mode of the lockdown module (`security/lockdown/lockdown.c`, 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lockdown {
    /// There is no such file: the module is not built in or not in use, or securityfs is not mounted.
    Absent,
    /// `none`
    Off,
    /// `integrity`: nothing may change the kernel.
    Integrity,
    /// `confidentiality`: nor may anything be read out of it.
    Confidentiality,
    /// The file has no mode that is known.
    Unknown,
}

/// The effective capabilities of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// `CapEff` in `/proc/self/status`: bit n is capability n.
    pub effective: u64,
    /// Whether they are held in a user namespace: what fastprobe needs is asked for in the first one alone.
    pub in_user_namespace: bool,
}

/// A resource limit; `u64::MAX` is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// What holds.
    pub soft: u64,
    /// What the process may raise it to.
    pub hard: u64,
}

impl Capabilities {
    /// `CAP_DAC_READ_SEARCH`, `include/uapi/linux/capability.h`: tracefs, debugfs and kcore are root's own.
    pub const DAC_READ_SEARCH: u32 = 2;
    /// `CAP_SYS_RAWIO`: `/proc/kcore`.
    pub const SYS_RAWIO: u32 = 17;
    /// `CAP_SYS_ADMIN`: stands for BPF and PERFMON too.
    pub const SYS_ADMIN: u32 = 21;
    /// `CAP_SYS_RESOURCE`: no hard limit binds.
    pub const SYS_RESOURCE: u32 = 24;
    /// `CAP_SYSLOG`: addresses in text files.
    pub const SYSLOG: u32 = 34;
    /// `CAP_PERFMON` (5.8): programs that trace.
    pub const PERFMON: u32 = 38;
    /// `CAP_BPF` (5.8): maps and programs.
    pub const BPF: u32 = 39;

    /// Whether `capability` is held and counts.
    pub fn has(self, capability: u32) -> bool {
        !self.in_user_namespace && self.effective >> capability & 1 == 1
    }

    /// Whether programs that trace can be loaded with them (`bpf_prog_load` in
    /// `kernel/bpf/syscall.c`; the VM tests show it of 6.12 and 7.3).
    pub fn can_trace(self) -> bool {
        self.has(Self::SYS_ADMIN) || self.has(Self::BPF) && self.has(Self::PERFMON)
    }
}
