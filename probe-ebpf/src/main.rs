//! The eBPF programs. `cargo xtask ebpf` builds them into the object that is checked in beside this crate.
#![no_std]
#![no_main]
#![allow(missing_docs, reason = "the kprobe macro makes a function of its own, without our comment")]

use aya_ebpf::{
    EbpfContext, Global,
    bindings::BPF_F_MMAPABLE,
    btf_maps::Array,
    helpers::{bpf_get_func_ip, bpf_get_smp_processor_id},
    macros::{btf_map, kprobe},
    programs::ProbeContext,
};
use aya_log_ebpf::error;
use probe_ebpf::{LOST_SLOT, Layout, MAX_PROBES, Site};

/// Set by the loader, like the sizes of the maps.
#[unsafe(no_mangle)]
static LAYOUT: Global<Layout> = Global::new(Layout { multiplier: 0, shift: 0, slots_per_cpu: 0 });

#[btf_map]
static SITES: Array<Site, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

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

/// Counts the call of the function whose kprobe was hit. `bpf_get_func_ip` tells of none that is not on a function's
/// first instruction; but whatever a kprobe is made of on x86, its handlers find the address behind a breakpoint of
/// one byte in the registers (`kprobe_ftrace_handler` and `optimized_callback` in `arch/x86/kernel/kprobes/`, 6.1 to
/// 7.3).
#[kprobe]
pub fn count_single(ctx: ProbeContext) -> u32 {
    // SAFETY: the context of a kprobe program is the registers.
    let behind = unsafe { (*ctx.regs).rip };
    count_call(&ctx, behind - 1);
    0
}

#[inline(always)]
fn count_call(ctx: &ProbeContext, address: u64) {
    let slot = match slot_of(address) {
        Some(slot) => slot,
        None => {
            error!(ctx, "no slot for the function at 0x{:x}", address);
            LOST_SLOT
        }
    };
    // SAFETY: the helper takes nothing and only reads the CPU's own number.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if let Some(hits) = HITS.get_ptr_mut(cpu * LAYOUT.load().slots_per_cpu + slot) {
        // SAFETY: the pointer was bounds-checked by the look-up. Nobody else writes to this CPU's counters:
        // the kernel keeps the program on its CPU and turns a nested or preempting hit into a miss.
        unsafe { *hits += 1 };
    }
}

/// Looks `address` up in the table that the loader laid out: see the crate's documentation.
#[inline(always)]
fn slot_of(address: u64) -> Option<u32> {
    let first = LAYOUT.load().first_position(address);
    for probe in 0..MAX_PROBES {
        let site = SITES.get(first + probe)?;
        if site.address == address {
            return Some(site.slot);
        }
        if site.address == 0 {
            return None;
        }
    }
    None
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// `Dual MIT/GPL` is what the kernel takes as compatible: the helpers used here ask for it.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
