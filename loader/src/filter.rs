//! Which hits count: tests in the eBPF program, of which those that nobody asks for are not in it.

use probe_ebpf::{
    COMM_BYTES, CPU_WORDS, FILTER_BY_CGROUP, FILTER_BY_COMM, FILTER_BY_CPU, FILTER_BY_PROCESS,
    FILTER_BY_THREAD, FILTER_CGROUP_LEVEL_SYMBOL, FILTER_CGROUP_SYMBOL, FILTER_COMM_SYMBOL,
    FILTER_CPUS_SYMBOL, FILTER_NOT_PROCESS, FILTER_NOT_PROCESS_SYMBOL, FILTER_PROCESS_SYMBOL,
    FILTER_TESTS_SYMBOL, FILTER_THREAD_SYMBOL,
};

use crate::instrument::Global;

/// What a hit has to be to count: all that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this process, by the number that it has outside of all containers.
    pub process: Option<u32>,
    /// Not in this process.
    pub not_process: Option<u32>,
    /// In this thread.
    pub thread: Option<u32>,
    /// In threads with this name. The kernel keeps 15 bytes of it.
    pub comm: Option<[u8; COMM_BYTES]>,
    /// In this cgroup or below it. Minimum kernel: 5.8.
    pub cgroup: Option<Cgroup>,
    /// On these CPUs, each below [`MAX_CPUS`].
    pub cpus: Vec<u32>,
}

/// A cgroup of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cgroup {
    /// The inode of its folder.
    pub id: u64,
    /// How deep that lies; the root is at 0.
    pub level: u32,
}

/// More CPUs than these can't be told apart.
pub const MAX_CPUS: u32 = 64 * CPU_WORDS as u32;

impl Filter {
    /// Whether every hit counts.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The values of the programs' constants.
    pub(crate) fn globals(&self) -> Vec<Global> {
        let mut tests = 0_u32;
        let mut globals = Vec::new();
        let mut set = |test: u32, symbol, value: Vec<u8>| {
            tests |= test;
            globals.push((symbol, value));
        };
        if let Some(process) = self.process {
            set(FILTER_BY_PROCESS, FILTER_PROCESS_SYMBOL, process.to_ne_bytes().into());
        }
        if let Some(process) = self.not_process {
            set(FILTER_NOT_PROCESS, FILTER_NOT_PROCESS_SYMBOL, process.to_ne_bytes().into());
        }
        if let Some(thread) = self.thread {
            set(FILTER_BY_THREAD, FILTER_THREAD_SYMBOL, thread.to_ne_bytes().into());
        }
        if let Some(comm) = self.comm {
            set(FILTER_BY_COMM, FILTER_COMM_SYMBOL, comm.into());
        }
        if let Some(Cgroup { id, level }) = self.cgroup {
            set(FILTER_BY_CGROUP, FILTER_CGROUP_SYMBOL, id.to_ne_bytes().into());
            set(FILTER_BY_CGROUP, FILTER_CGROUP_LEVEL_SYMBOL, level.to_ne_bytes().into());
        }
        if !self.cpus.is_empty() {
            let mut words = [0_u64; CPU_WORDS];
            for cpu in self.cpus.iter().map(|cpu| *cpu as usize) {
                words[cpu / 64 % CPU_WORDS] |= 1 << (cpu % 64);
            }
            set(
                FILTER_BY_CPU,
                FILTER_CPUS_SYMBOL,
                words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            );
        }
        globals.push((FILTER_TESTS_SYMBOL, tests.to_ne_bytes().into()));
        globals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_tested() {
        assert_eq!(Filter::default().globals(), [(FILTER_TESTS_SYMBOL, vec![0; 4])]);
        assert!(Filter::default().is_empty());
        let filter = Filter {
            process: Some(7),
            cpus: vec![0, 65],
            cgroup: Some(Cgroup { id: 9, level: 2 }),
            ..Filter::default()
        };
        assert!(!filter.is_empty());
        let globals = filter.globals();
        let value = |symbol| globals.iter().find(|(name, _)| *name == symbol).map(|(_, value)| value.clone());
        let tests = FILTER_BY_PROCESS | FILTER_BY_CPU | FILTER_BY_CGROUP;
        assert_eq!(value(FILTER_TESTS_SYMBOL), Some(tests.to_ne_bytes().into()));
        assert_eq!(value(FILTER_PROCESS_SYMBOL), Some(7_u32.to_ne_bytes().into()));
        assert_eq!(value(FILTER_CGROUP_LEVEL_SYMBOL), Some(2_u32.to_ne_bytes().into()));
        assert_eq!(
            value(FILTER_CPUS_SYMBOL).unwrap()[..16],
            [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(value(FILTER_THREAD_SYMBOL), None);
    }
}
