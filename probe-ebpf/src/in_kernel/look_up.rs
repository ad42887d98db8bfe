//! From a hit to its slot.

use aya_ebpf::{Global, bindings::BPF_F_MMAPABLE, btf_maps::Array, macros::btf_map, programs::ProbeContext};
use aya_log_ebpf::error;

use crate::{LOST_SLOT, Layout, MAX_PROBES, Site};

/// Set by the loader, like the sizes of the maps.
#[unsafe(no_mangle)]
pub static LAYOUT: Global<Layout> = Global::new(Layout { multiplier: 0, shift: 0, slots_per_cpu: 0 });

#[btf_map]
static SITES: Array<Site, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// The slot of the function that is hit at `address`; [`LOST_SLOT`], and a word about it, where it has none.
#[inline(always)]
pub fn slot_of(ctx: &ProbeContext, address: u64) -> u32 {
    match look_up(address) {
        Some(slot) => slot,
        None => {
            error!(ctx, "no slot for the function at 0x{:x}", address);
            LOST_SLOT
        }
    }
}

/// Looks `address` up in the table that the loader laid out: see the crate's documentation.
#[inline(always)]
fn look_up(address: u64) -> Option<u32> {
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

/// The address of the kprobe that was hit. `bpf_get_func_ip` tells of none that is not on a function's first
/// instruction; but whatever a kprobe is made of on x86, its handlers find the address behind a breakpoint of one byte
/// in the registers (`kprobe_ftrace_handler` and `optimized_callback` in `arch/x86/kernel/kprobes/`, 6.1 to 7.3).
#[inline(always)]
pub fn behind_breakpoint(ctx: &ProbeContext) -> u64 {
    // SAFETY: the context of a kprobe program is the registers.
    let behind = unsafe { (*ctx.regs).rip };
    behind - 1
}
