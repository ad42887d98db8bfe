//! The programs that count calls.
#![no_std]
#![no_main]
#![allow(missing_docs, reason = "the kprobe macro makes a function of its own, without our comment")]

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_F_MMAPABLE,
    btf_maps::Array,
    helpers::bpf_get_func_ip,
    macros::{btf_map, kprobe},
    programs::ProbeContext,
};
use probe_ebpf::in_kernel::{LAYOUT, behind_breakpoint, counts, cpu, slot_of};

#[btf_map]
static HITS: Array<u64, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Counts the call of the function that it was entered for.
#[kprobe]
pub fn count(ctx: ProbeContext) -> u32 {
    // SAFETY: the helper takes the context of a kprobe program, which this is.
    let address = unsafe { bpf_get_func_ip(ctx.as_ptr()) };
    count_call(&ctx, address);
    0
}

/// Counts the call of the function whose kprobe was hit.
#[kprobe]
pub fn count_single(ctx: ProbeContext) -> u32 {
    count_call(&ctx, behind_breakpoint(&ctx));
    0
}

#[inline(always)]
fn count_call(ctx: &ProbeContext, address: u64) {
    if !counts() {
        return;
    }
    let slot = slot_of(ctx, address);
    if let Some(hits) = HITS.get_ptr_mut(cpu() * LAYOUT.load().slots_per_cpu + slot) {
        // SAFETY: the pointer was bounds-checked by the look-up. Nobody else writes to this CPU's counters:
        // the kernel keeps the program on its CPU and turns a nested or preempting hit into a miss.
        unsafe { *hits += 1 };
    }
}

/// `Dual MIT/GPL` is what the kernel takes as compatible: the helpers used here ask for it.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
