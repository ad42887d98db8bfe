//! Functions that the kernel allows to probe and that are better left alone.
//!
//! The kernel's own list of what its tests of kprobe-multi leave out is in
//! `tools/testing/selftests/bpf/trace_helpers.c` (6.12: `skip_entry`, and `recursive` in
//! `prog_tests/kprobe_multi_test.c`); the second list holds what a kprobe-multi program itself runs through on
//! each hit, where a probe can only ever count misses.

use crate::pattern::variant::base_name;

/// What the kernel's own tests leave out.
const BY_THE_KERNELS_TESTS: &[&str] = &[
    "arch_cpu_idle",
    "default_idle",
    "rcu_*",
    "bpf_dispatcher_xdp_func",
    "migrate_disable",
    "migrate_enable",
    "___migrate_enable",
    "preempt_count_add",
    "preempt_count_sub",
    "__rcu_read_lock",
    "__rcu_read_unlock",
    "bpf_get_numa_node_id",
];

/// What runs around every eBPF program.
const AROUND_A_PROGRAM: &[&str] = &[
    "bpf_get_smp_processor_id",
    "bpf_spin_lock",
    "bpf_spin_unlock",
    "__bpf_prog_enter*",
    "__bpf_prog_exit*",
    "__bpf_tramp_enter*",
    "__bpf_tramp_exit*",
    "update_prog_stats",
    "inc_misses_counter",
    "bpf_prog_start_time",
];

/// Not for return probes: soft lockups were reported, or the function never comes back.
const NO_RETURN: &[&str] = &[
    "_raw_spin_*lock*",
    "queued_spin_lock_slowpath",
    "do_exit",
    "do_group_exit",
    "make_task_dead",
    "kthread_complete_and_exit",
    "__x64_sys_exit",
    "__x64_sys_exit_group",
    "__switch_to",
];

/// Whether probing `name`, or what it is a compiler's variant of, is asking for trouble.
pub fn denies(name: &[u8]) -> bool {
    listed(name, BY_THE_KERNELS_TESTS) || listed(name, AROUND_A_PROGRAM)
}

/// Whether a probe on the return of `name` is.
pub fn denies_return(name: &[u8]) -> bool {
    listed(name, NO_RETURN)
}

fn listed(name: &[u8], list: &[&str]) -> bool {
    let name = base_name(name);
    list.iter().any(|entry| covers(entry.as_bytes(), name))
}

/// `*` stands for any bytes; nothing else is special.
fn covers(entry: &[u8], name: &[u8]) -> bool {
    match entry.split_first() {
        None => name.is_empty(),
        Some((b'*', rest)) => (0..=name.len()).any(|skipped| covers(rest, &name[skipped..])),
        Some((byte, rest)) => name.split_first().is_some_and(|(n, after)| n == byte && covers(rest, after)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_prefixes_and_variants_are_denied() {
        for name in
            ["rcu_note_context_switch", "migrate_disable", "__bpf_prog_enter_recur", "default_idle.isra.0"]
        {
            assert!(denies(name.as_bytes()), "{name}");
        }
        for name in ["vfs_read", "srcu_read_lock", "migrate_disable2", "do_exit"] {
            assert!(!denies(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn returns_have_a_stricter_list() {
        for name in [
            "_raw_spin_lock_irqsave",
            "_raw_spin_unlock",
            "_raw_spin_trylock",
            "do_exit",
            "__x64_sys_exit_group",
        ] {
            assert!(denies_return(name.as_bytes()), "{name}");
        }
        for name in ["_raw_read_lock", "__x64_sys_exits", "vfs_read"] {
            assert!(!denies_return(name.as_bytes()), "{name}");
        }
    }
}
