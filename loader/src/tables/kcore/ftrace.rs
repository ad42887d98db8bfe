//! The records of the functions that ftrace can hook (`struct ftrace_page`, `struct dyn_ftrace` in
//! `kernel/trace/ftrace.c` and `include/linux/ftrace.h`, 6.1 to 7.3).
//!
//! No lock is held while they are read. What is read is checked instead: sizes, and the order that
//! `ftrace_process_locs` puts the records of each group in.

use super::{layout::FtraceLayout, memory::Memory};
use crate::{error::Result, tables::odd};

/// `FTRACE_FL_DISABLED`: the record must not be used. Records of weak functions that the linker removed have it.
const DISABLED: u64 = 1 << 25;

/// More groups and records than any kernel has.
const MAX_GROUPS: usize = 1 << 16;
const MAX_RECORDS: usize = 1 << 22;

/// Reads the addresses of all records that can be used, ascending and each once: two reads for each group of
/// records. `first` is where the variable `ftrace_pages_start` is.
///
/// # Errors
///
/// `Malformed` where the groups run in a circle, are larger than any, or their records are out of order; `Io`
/// where memory can't be read.
pub fn read(memory: &dyn Memory, layout: &FtraceLayout, first: u64) -> Result<Vec<u64>> {
    let mut sites = Vec::new();
    let mut page = memory.word(first)?;
    let (mut groups, mut total) = (0, 0);
    while page != 0 {
        let group = memory.bytes(page, layout.page_size)?;
        let word = |at: usize| group.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        let (Some(next), Some(records), Some(index)) = (
            word(layout.next),
            word(layout.records),
            group.get(layout.index..).and_then(|b| b.first_chunk()),
        ) else {
            return Err(odd("struct ftrace_page is smaller than its members"));
        };
        let count = u32::from_ne_bytes(*index) as usize;
        groups += 1;
        total += count;
        if groups > MAX_GROUPS || total > MAX_RECORDS {
            return Err(odd("more ftrace records than any kernel has"));
        }
        if count > 0 {
            let bytes = memory.bytes(u64::from_ne_bytes(*records), count * layout.record_size)?;
            push_sites(&bytes, layout, &mut sites)?;
        }
        page = u64::from_ne_bytes(*next);
    }
    sites.sort_unstable();
    sites.dedup();
    Ok(sites)
}

fn push_sites(records: &[u8], layout: &FtraceLayout, sites: &mut Vec<u64>) -> Result<()> {
    let mut previous = 0;
    for record in records.chunks_exact(layout.record_size.max(1)) {
        let word = |at: usize| record.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
        let (Some(ip), Some(flags)) = (word(layout.ip), word(layout.flags)) else {
            return Err(odd("struct dyn_ftrace is smaller than its members"));
        };
        let ip = u64::from_ne_bytes(*ip);
        if ip < previous || ip == 0 {
            return Err(odd(format!("ftrace records out of order at {ip:#x}")));
        }
        previous = ip;
        if u64::from_ne_bytes(*flags) & DISABLED == 0 {
            sites.push(ip);
        }
    }
    Ok(())
}
