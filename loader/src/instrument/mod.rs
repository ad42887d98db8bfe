//! What is done at each hit: programs of an eBPF object, and what they leave behind to read.

pub mod count;

use crate::{
    attach::Backend,
    error::{Error, ErrorKind, Result},
    program::Programs,
    sys::{Kernel, Mapping, Moment},
};

/// A constant of the programs: its symbol, its value.
pub type Global = (&'static str, Vec<u8>);

/// Reads a checked-in object at compile time, aligned as the ELF parser wants its headers.
macro_rules! object {
    ($name:literal) => {{
        #[repr(C, align(8))]
        struct Aligned<T: ?Sized>(T);
        const OBJECT: &Aligned<[u8]> =
            &Aligned(*include_bytes!(concat!("../../../probe-ebpf/objects/", $name, ".bpf.o")));
        &OBJECT.0
    }};
}
pub(crate) use object;

/// A program of an instrument's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Its name there.
    pub program: &'static str,
    /// When it runs.
    pub moment: Moment,
}

/// How much there is to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Slots: one for each function, and those that are for none.
    pub slots: usize,
    /// CPUs that there may be.
    pub cpus: usize,
}

/// What an instrument's object needs before it is loaded.
#[derive(Debug, Default)]
pub struct Needs {
    /// Sizes of maps that are known only now.
    pub max_entries: Vec<(&'static str, u32)>,
    /// Constants.
    pub globals: Vec<Global>,
    /// See [`Settings::kernel_functions`](crate::program::Settings::kernel_functions).
    pub kernel_functions: Vec<(i32, u32)>,
}

/// What is done at each hit.
pub trait Instrument {
    /// What the programs leave behind.
    type Data;

    /// The eBPF object.
    fn object(&self) -> &'static [u8];

    /// Its programs for a backend, in the order in which they are attached.
    fn steps(&self, backend: Backend) -> Vec<Step>;

    /// What the object needs to measure so much.
    ///
    /// # Errors
    ///
    /// `Kernel` where it is too much.
    fn needs(&self, extent: Extent) -> Result<Needs>;

    /// Opens what the loaded programs leave behind.
    ///
    /// # Errors
    ///
    /// `Kernel` where it can't be mapped.
    fn data(&self, kernel: &dyn Kernel, programs: &Programs, extent: Extent) -> Result<Self::Data>;

    /// Hits that were of no function.
    fn lost(data: &Self::Data) -> u64;
}

/// Maps the first bytes of an array of the programs.
pub(crate) fn map_memory(
    kernel: &dyn Kernel,
    programs: &Programs,
    name: &str,
    bytes: usize,
) -> Result<Mapping> {
    let map = programs
        .map(name)
        .ok_or_else(|| Error::new(ErrorKind::Usage, format!("the eBPF object has no map called {name}")))?;
    kernel
        .map_memory(map, bytes)
        .map_err(|e| Error::new(ErrorKind::Kernel, format!("can't map the memory of {name}")).with_source(e))
}
