//! Which hits count. All of it is constants of the programs, so that a filter that isn't asked for is not in what the
//! kernel runs.

/// The symbol of the set of tests, a `u32` of `FILTER_BY_…` and [`FILTER_NOT_PROCESS`]: a hit counts if it passes all.
pub const FILTER_TESTS_SYMBOL: &str = "FILTER_TESTS";
/// The symbol of a process, a `u32`, as the kernel numbers them (its `tgid`).
pub const FILTER_PROCESS_SYMBOL: &str = "FILTER_PROCESS";
/// The symbol of the process whose hits don't count, a `u32`.
pub const FILTER_NOT_PROCESS_SYMBOL: &str = "FILTER_NOT_PROCESS";
/// The symbol of a thread, a `u32` (its `pid`).
pub const FILTER_THREAD_SYMBOL: &str = "FILTER_THREAD";
/// The symbol of a thread's name: [`COMM_BYTES`], NULs behind it.
pub const FILTER_COMM_SYMBOL: &str = "FILTER_COMM";
/// The symbol of a cgroup of version 2, a `u64`: the inode of its folder.
pub const FILTER_CGROUP_SYMBOL: &str = "FILTER_CGROUP";
/// The symbol of how deep that lies, a `u32`; the root is at 0.
pub const FILTER_CGROUP_LEVEL_SYMBOL: &str = "FILTER_CGROUP_LEVEL";
/// The symbol of a set of CPUs, a bit each in [`CPU_WORDS`] words.
pub const FILTER_CPUS_SYMBOL: &str = "FILTER_CPUS";

/// Only hits of one process.
pub const FILTER_BY_PROCESS: u32 = 1;
/// No hits of one process.
pub const FILTER_NOT_PROCESS: u32 = 1 << 1;
/// Only hits of one thread.
pub const FILTER_BY_THREAD: u32 = 1 << 2;
/// Only hits of threads with one name.
pub const FILTER_BY_COMM: u32 = 1 << 3;
/// Only hits of what runs in one cgroup or below it. Minimum kernel: 5.8.
pub const FILTER_BY_CGROUP: u32 = 1 << 4;
/// Only hits on some CPUs.
pub const FILTER_BY_CPU: u32 = 1 << 5;

/// Bytes of a thread's name in the kernel, the NUL included (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;
/// Words of the set of CPUs.
pub const CPU_WORDS: usize = 128;
