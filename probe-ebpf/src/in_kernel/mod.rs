//! What the eBPF programs have in common; built for the BPF target alone.

mod filter;
mod look_up;

use aya_ebpf::helpers::bpf_get_smp_processor_id;
pub use filter::counts;
pub use look_up::{LAYOUT, behind_breakpoint, slot_of};

/// The CPU that runs the program.
#[inline(always)]
pub fn cpu() -> u32 {
    // SAFETY: the helper takes nothing and only reads the CPU's own number.
    unsafe { bpf_get_smp_processor_id() }
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
