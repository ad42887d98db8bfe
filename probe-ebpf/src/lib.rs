//! What the eBPF programs and the loader have in common: the names in the object and the layout of every
//! record that crosses the border between them. Both sides compile this file, so neither can drift.
//!
//! # How a hit finds its counter
//!
//! A program that sits on thousands of functions learns from `bpf_get_func_ip` which one was called: the
//! address of the function's symbol. Since the loader knows all those addresses beforehand, it lays them out
//! in an open hash table, the array [`SITES_MAP`], and chooses the multiplier so that no address lies further
//! than [`MAX_PROBES`] places from [`Layout::first_position`]. A look-up is one multiplication and, nearly
//! always, one read of 16 bytes. The slot found there is the function's place in the counters of the CPU that
//! runs the program: array [`HITS_MAP`], `cpu * slots_per_cpu + slot`.
#![no_std]

mod filter;
#[cfg(feature = "ebpf")]
pub mod in_kernel;

pub use filter::*;

/// The program that counts calls: section `kprobe`, to be loaded with attach type `BPF_TRACE_KPROBE_MULTI`.
pub const COUNT_PROGRAM: &str = "count";
/// The same where each function has a kprobe of its own: section `kprobe`, no attach type. What it looks up is the
/// address of the probe.
pub const COUNT_SINGLE_PROGRAM: &str = "count_single";
/// The hash table from a function's address to its slot: an array of [`Site`].
pub const SITES_MAP: &str = "SITES";
/// The counters: an array of `u64`, [`Layout::slots_per_cpu`] for each possible CPU, mapped by the loader.
pub const HITS_MAP: &str = "HITS";
/// The section that holds [`Layout`] and aya-log's level; frozen before the program is loaded, so that the
/// verifier treats both as constants.
pub const CONSTANTS_MAP: &str = ".rodata";
/// The symbol of the [`Layout`] in [`CONSTANTS_MAP`].
pub const LAYOUT_SYMBOL: &str = "LAYOUT";
/// aya-log's ring buffer.
pub const LOGS_MAP: &str = "AYA_LOGS";

/// The slot that counts hits of functions that have none: 0 in a run without faults.
pub const LOST_SLOT: u32 = 0;
/// The slot of the first function.
pub const FIRST_SLOT: u32 = 1;
/// How many places of [`SITES_MAP`] a look-up reads at most.
pub const MAX_PROBES: u32 = 16;

/// One place of the hash table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The address that `bpf_get_func_ip` gives, the function's symbol; or that of its kprobe. 0: nobody lives here.
    pub address: u64,
    /// The function's counter.
    pub slot: u32,
    /// Always 0.
    pub padding: u32,
}

/// How the two arrays are laid out in this run.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// An odd number that spreads the addresses of this run.
    pub multiplier: u64,
    /// 64 less the table's size in bits: what remains of the product is a place.
    pub shift: u32,
    /// Counters of one CPU, a multiple of a cache line so that CPUs don't share one.
    pub slots_per_cpu: u32,
}

impl Layout {
    /// The place where the search for `address` starts; it goes on upwards, without wrapping.
    #[inline(always)]
    pub const fn first_position(&self, address: u64) -> u32 {
        address.wrapping_mul(self.multiplier).wrapping_shr(self.shift) as u32
    }
}

const _: () = assert!(size_of::<Site>() == 16 && align_of::<Site>() == 8);
const _: () = assert!(size_of::<Layout>() == 16 && align_of::<Layout>() == 8);
