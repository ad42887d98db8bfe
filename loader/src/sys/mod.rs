//! The one door to the kernel: every system call that this crate makes for itself, as a trait, so that each
//! answer the kernel can give is a unit test with `Fake` behind the door.
//!
//! Reading the kernel's text tables goes through [`std::fs`] and is not here.

#[cfg(test)]
mod fake;
mod live;
mod mapping;

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use aya_obj::generated::bpf_insn;
#[cfg(test)]
pub use fake::Fake;
pub use live::Live;
pub use mapping::Mapping;

/// `include/uapi/linux/bpf.h`
const BPF_TRACE_KPROBE_MULTI: u32 = 42;
const BPF_TRACE_KPROBE_SESSION: u32 = 56;
const BPF_F_KPROBE_MULTI_RETURN: u32 = 1;

/// When the program of a kprobe-multi link runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// When a function is called. Minimum kernel: 5.18.
    Entry,
    /// When it returns. Minimum kernel: 5.18.
    Return,
    /// At both; what it returns the first time says whether it is to run again. Minimum kernel: 6.10.
    Session,
}

impl Moment {
    /// The attach type that the program is loaded with and the link is made with.
    pub fn attach_type(self) -> u32 {
        match self {
            Self::Entry | Self::Return => BPF_TRACE_KPROBE_MULTI,
            Self::Session => BPF_TRACE_KPROBE_SESSION,
        }
    }

    /// The flags of the link.
    fn flags(self) -> u32 {
        if self == Self::Return { BPF_F_KPROBE_MULTI_RETURN } else { 0 }
    }
}

/// A program of type `BPF_PROG_TYPE_KPROBE`, relocated and ready to load.
#[derive(Debug)]
pub struct ProgramImage<'a> {
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: &'a str,
    /// What it was written under, as in the object's `license` section.
    pub license: &'a std::ffi::CStr,
    /// The instructions.
    pub instructions: &'a [bpf_insn],
    /// The attach type that the link will be made with: the kernel compares the two.
    pub expected_attach_type: u32,
}

/// A map to create: `bpf(2)`, `BPF_MAP_CREATE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapShape<'a> {
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: &'a str,
    /// `BPF_MAP_TYPE_…`
    pub map_type: u32,
    /// Bytes of a key.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// How many entries it holds; for a ring buffer its bytes.
    pub max_entries: u32,
    /// `BPF_F_…`
    pub flags: u32,
}

/// What fastprobe asks of the kernel. Each call is one system call; the error is its errno.
pub trait Kernel {
    /// Creates a map.
    fn create_map(&self, shape: MapShape<'_>) -> io::Result<OwnedFd>;

    /// Sets the entry `key` of an array map.
    fn update_map(&self, map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()>;

    /// Makes a map read-only for user space, for good. Minimum kernel: 5.2.
    fn freeze_map(&self, map: BorrowedFd<'_>) -> io::Result<()>;

    /// Maps the first `bytes` of an array map made with `BPF_F_MMAPABLE`. Minimum kernel: 5.5.
    fn map_memory(&self, map: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping>;

    /// Loads a program. `log` receives the verifier's words; an empty one asks for none.
    fn load_program(&self, image: &ProgramImage<'_>, log: &mut [u8]) -> io::Result<OwnedFd>;

    /// Attaches `program` to the functions whose ftrace records have these addresses, all or none.
    /// Minimum kernel: 5.18, built with `CONFIG_FPROBE` (`bpf_kprobe_multi_link_attach` in
    /// `kernel/trace/bpf_trace.c`).
    fn link_kprobe_multi(
        &self,
        program: BorrowedFd<'_>,
        moment: Moment,
        addresses: &[u64],
    ) -> io::Result<OwnedFd>;

    /// Sets a kprobe at `address`, through the perf unit of that number (`/sys/bus/event_source/devices/kprobe/type`);
    /// it is gone with the descriptor. Minimum kernel: 4.17 (`perf_kprobe_event_init` in `kernel/events/core.c`).
    fn open_kprobe(&self, unit: u32, address: u64) -> io::Result<OwnedFd>;

    /// Writes a line to a file of tracefs that takes commands, in one call: the errno is about that line.
    fn trace_command(&self, file: BorrowedFd<'_>, line: &str) -> io::Result<()>;

    /// Opens the event of tracefs that has this number, which arms its kprobes, with `program` to run at each hit,
    /// on all CPUs. The event itself stays disabled: perf records nothing.
    fn open_event(&self, id: u64, program: BorrowedFd<'_>) -> io::Result<OwnedFd>;

    /// How many hits the link dropped; none where the kernel keeps no count (before 6.7).
    fn link_missed(&self, link: BorrowedFd<'_>) -> io::Result<Option<u64>>;

    /// Has the kernel measure how long programs run, as long as the result is held. Minimum kernel: 5.8.
    fn enable_run_stats(&self) -> io::Result<OwnedFd>;

    /// The program's number, and how many runs the kernel dropped because one was under way on the CPU
    /// (`recursion_misses`, 5.12).
    fn program_info(&self, program: BorrowedFd<'_>) -> io::Result<ProgramInfo>;
}

/// What the kernel tells of a loaded program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgramInfo {
    /// The kernel's number for it.
    pub id: u32,
    /// Runs dropped because a program was already running on that CPU.
    pub recursion_misses: u64,
    /// Runs while they were [measured](Kernel::enable_run_stats).
    pub runs: u64,
    /// The nanoseconds that those took, without the way into the program and back.
    pub run_ns: u64,
}
