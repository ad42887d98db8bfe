//! Whether a hit counts.

use aya_ebpf::{
    Global,
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_comm},
    },
};

use super::cpu;
use crate::{
    COMM_BYTES, CPU_WORDS, FILTER_BY_CGROUP, FILTER_BY_COMM, FILTER_BY_CPU, FILTER_BY_PROCESS,
    FILTER_BY_THREAD,
};

// All set by the loader.
#[unsafe(no_mangle)]
static FILTER_TESTS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILTER_PROCESS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILTER_NOT_PROCESS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILTER_THREAD: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILTER_COMM: Global<[u64; COMM_BYTES / 8]> = Global::new([0; COMM_BYTES / 8]);
#[unsafe(no_mangle)]
static FILTER_CGROUP: Global<u64> = Global::new(0);
#[unsafe(no_mangle)]
static FILTER_CGROUP_LEVEL: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILTER_CPUS: Global<[u64; CPU_WORDS]> = Global::new([0; CPU_WORDS]);

/// Whether the hit that runs this program is one of those that count. Tests that nobody asked for are not in the
/// program that the kernel runs: the verifier knows that they are off.
#[inline(always)]
pub fn counts() -> bool {
    let tests = FILTER_TESTS.load();
    if tests == 0 {
        return true;
    }
    let asked = |test| tests & test != 0;
    (!asked(FILTER_BY_CPU) || is_on_cpu())
        && (!asked(FILTER_BY_PROCESS) || process() == FILTER_PROCESS.load())
        && (!asked(crate::FILTER_NOT_PROCESS) || process() != FILTER_NOT_PROCESS.load())
        && (!asked(FILTER_BY_THREAD) || thread() == FILTER_THREAD.load())
        && (!asked(FILTER_BY_COMM) || has_comm())
        && (!asked(FILTER_BY_CGROUP) || is_in_cgroup())
}

#[inline(always)]
fn process() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

#[inline(always)]
fn thread() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

#[inline(always)]
fn is_on_cpu() -> bool {
    let cpu = cpu() as usize;
    let cpus = (&raw const FILTER_CPUS).cast::<u64>();
    // SAFETY: the index is within the array, and nobody writes to it.
    cpu < CPU_WORDS * 64 && unsafe { cpus.add(cpu / 64).read_volatile() } >> (cpu % 64) & 1 == 1
}

#[inline(always)]
fn has_comm() -> bool {
    comm() == FILTER_COMM.load()
}

/// The name of the thread, padded with NULs.
#[inline(always)]
pub fn comm() -> [u64; COMM_BYTES / 8] {
    let mut comm = [0; COMM_BYTES / 8];
    // SAFETY: the helper writes so many bytes, all of them.
    unsafe { bpf_get_current_comm((&raw mut comm).cast(), COMM_BYTES as u32) };
    comm
}

#[inline(always)]
fn is_in_cgroup() -> bool {
    // SAFETY: the helper takes a number.
    let ancestor = unsafe { bpf_get_current_ancestor_cgroup_id(FILTER_CGROUP_LEVEL.load() as i32) };
    ancestor == FILTER_CGROUP.load()
}
