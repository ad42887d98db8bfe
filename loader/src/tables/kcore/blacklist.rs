//! The kprobe blacklist in memory: a list of `struct kprobe_blacklist_entry` (`kernel/kprobes.c`, 6.1 to 7.3).

use super::{layout::BlacklistLayout, memory::Memory};
use crate::{
    error::Result,
    tables::{Blacklist, odd},
};

const PAGE_BYTES: u64 = 4096;

/// More entries than any kernel has: a list that is longer runs in a circle.
const MAX_ENTRIES: usize = 1 << 18;

/// Reads the list at `head`.
///
/// # Errors
///
/// `Malformed` where the list runs in a circle or a range ends before it starts; `Io` where memory can't be
/// read.
pub fn read(memory: &dyn Memory, layout: &BlacklistLayout, head: u64) -> Result<Blacklist> {
    let mut pages = Pages { memory, page: None };
    let mut ranges = Vec::new();
    let mut next = memory.word(head)?;
    while next != head {
        if ranges.len() == MAX_ENTRIES {
            return Err(odd("a kprobe blacklist without an end"));
        }
        let entry = next.wrapping_sub(layout.list as u64);
        let (start, end) = (
            pages.word(entry.wrapping_add(layout.start_addr as u64))?,
            pages.word(entry.wrapping_add(layout.end_addr as u64))?,
        );
        if end < start {
            return Err(odd(format!("a blacklisted range from {start:#x} to {end:#x}")));
        }
        ranges.push((start, end));
        next = pages.word(next)?;
    }
    Ok(Blacklist::of_ranges(ranges))
}

/// Reads whole pages. The entries were allocated one after the other, so the next is nearly always in the page
/// of the last.
struct Pages<'m> {
    memory: &'m dyn Memory,
    page: Option<(u64, Vec<u8>)>,
}

impl Pages<'_> {
    fn word(&mut self, address: u64) -> Result<u64> {
        let (start, at) = (address & !(PAGE_BYTES - 1), (address % PAGE_BYTES) as usize);
        if self.page.as_ref().is_none_or(|(held, _)| *held != start) {
            self.page = Some((start, self.memory.bytes(start, PAGE_BYTES as usize)?));
        }
        let word = self.page.as_ref().and_then(|(_, bytes)| bytes.get(at..)?.first_chunk::<8>());
        word.map(|word| u64::from_ne_bytes(*word)).ok_or_else(|| odd("a list entry across two pages"))
    }
}
