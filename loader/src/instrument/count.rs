//! Counts calls.

use std::sync::atomic::{AtomicU64, Ordering};

use probe_ebpf::{COUNT_PROGRAM, COUNT_SINGLE_PROGRAM, FIRST_SLOT, HITS_MAP, LOST_SLOT};

use super::{Extent, Instrument, Needs, Step, map_memory, object};
use crate::{
    attach::Backend,
    error::{Error, ErrorKind, Result},
    program::Programs,
    session::Session,
    sys::{Kernel, Mapping, Moment},
};

/// The object that `cargo xtask ebpf` builds from `probe-ebpf/src/bin/count.rs`.
pub const OBJECT: &[u8] = object!("count");

/// The instrument that counts calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counter;

/// A session that counts.
pub type Counting<'k> = Session<'k, Counter>;

/// A counter for each slot and CPU, in memory that the program shares: reading it is no system call.
#[derive(Debug)]
pub struct Counters {
    hits: Mapping,
    slots_per_cpu: usize,
}

impl Instrument for Counter {
    type Data = Counters;

    fn object(&self) -> &'static [u8] {
        OBJECT
    }

    fn steps(&self, backend: Backend) -> Vec<Step> {
        let program = match backend {
            Backend::Multi => COUNT_PROGRAM,
            Backend::Single => COUNT_SINGLE_PROGRAM,
        };
        vec![Step { program, moment: Moment::Entry }]
    }

    fn needs(&self, extent: Extent) -> Result<Needs> {
        Ok(Needs { max_entries: vec![(HITS_MAP, counters(extent)?)], ..Needs::default() })
    }

    fn data(&self, kernel: &dyn Kernel, programs: &Programs, extent: Extent) -> Result<Counters> {
        let bytes = counters(extent)? as usize * size_of::<u64>();
        let hits = map_memory(kernel, programs, HITS_MAP, bytes)?;
        Ok(Counters { hits, slots_per_cpu: extent.slots })
    }

    fn lost(data: &Counters) -> u64 {
        data.cpus().map(|cpu| cpu[LOST_SLOT as usize].load(Ordering::Relaxed)).sum()
    }
}

/// How many counters it takes.
fn counters(Extent { slots, cpus }: Extent) -> Result<u32> {
    slots.checked_mul(cpus).and_then(|counters| u32::try_from(counters).ok()).ok_or_else(|| {
        let message = format!("too many counters: {slots} on each of {cpus} CPUs");
        Error::new(ErrorKind::Kernel, message).with_hint("set --max-functions lower")
    })
}

impl Counters {
    /// The counters of each CPU.
    fn cpus(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.hits.words().chunks_exact(self.slots_per_cpu)
    }

    /// All hits of all functions, those without a slot included.
    pub fn total(&self) -> u64 {
        self.hits.words().iter().map(|hits| hits.load(Ordering::Relaxed)).sum()
    }
}

impl Session<'_, Counter> {
    /// The hits so far of each target that is attached to, in the targets' order.
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.places().len()];
        for cpu in self.data().cpus() {
            let slots = &cpu[FIRST_SLOT as usize..];
            for (count, place) in counts.iter_mut().zip(self.places()) {
                *count += slots[*place].load(Ordering::Relaxed);
            }
        }
        counts
    }
}
