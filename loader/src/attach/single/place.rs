//! Where in a function its kprobe goes.
//!
//! The first instruction is ftrace's, and costs most: see [the module above](super). The one behind it is run once
//! for each call as well, unless a branch of the function goes back to it: the head of a loop that starts the
//! function. So its machine code is searched for what could be such a branch.

use crate::{
    error::Result,
    plan::Target,
    tables::{
        Root, Tables,
        kcore::{Kcore, Memory},
    },
};

/// Bytes that ftrace rewrites: a call.
const CALL_BYTES: u64 = 5;

/// Longer functions are not read.
const MAX_FUNCTION_BYTES: u64 = 64 << 10;

/// The addresses at which a kprobe counts the calls of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// The function.
    pub entry: u64,
    /// Its ftrace record.
    pub site: u64,
    /// The instruction behind the call that is recorded there, where that is certain to run once for each call.
    pub behind: Option<u64>,
}

impl Places {
    /// The places of each target. Without the kernel's memory below `root` there is none but the sites.
    ///
    /// # Errors
    ///
    /// Those of [`Tables::for_each_function`].
    pub fn of(targets: &[Target<'_>], tables: &Tables, root: &Root) -> Result<Vec<Self>> {
        let memory = Kcore::open(&root.kcore()).ok();
        let ends = match &memory {
            Some(_) => ends(targets, tables)?,
            None => Vec::new(),
        };
        let with_end = targets.iter().zip(ends.into_iter().map(Some).chain(std::iter::repeat(None)));
        let places = with_end.map(|(target, end)| {
            let behind = target.site + CALL_BYTES;
            let is_safe = memory.as_ref().zip(end).is_some_and(|(memory, end)| is_safe(memory, behind, end));
            Self { entry: target.function.address, site: target.site, behind: is_safe.then_some(behind) }
        });
        Ok(places.collect())
    }
}

/// Where the next function starts, for each target; they come in the order of their addresses.
fn ends(targets: &[Target<'_>], tables: &Tables) -> Result<Vec<u64>> {
    let mut ends = vec![u64::MAX; targets.len()];
    tables.for_each_function(|function| {
        let before = targets.partition_point(|target| target.function.address < function.address);
        if let Some(last) = before.checked_sub(1) {
            ends[last] = ends[last].min(function.address);
        }
        Ok(())
    })?;
    Ok(ends)
}

/// Whether the instruction at `behind` is run only by going on from the call before it.
fn is_safe(memory: &dyn Memory, behind: u64, end: u64) -> bool {
    match end.checked_sub(behind) {
        Some(bytes @ 1..=MAX_FUNCTION_BYTES) => {
            memory.bytes(behind, bytes as usize).is_ok_and(|code| !may_branch_to_start(&code))
        }
        _ => false,
    }
}

/// Whether `code` has bytes that could be a branch to its start: an opcode with the right distance behind it, whether
/// or not an instruction starts there. A function with a conditional branch out of `code` has a part elsewhere
/// (`.cold`), which could come back: unless its first instruction pushes a register, as no loop's does, that may be one,
/// too.
fn may_branch_to_start(code: &[u8]) -> bool {
    let pushes = matches!(code, [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..]);
    (1..code.len()).any(|at| {
        let short = matches!(code[at - 1], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
            .then(|| at as i64 + 1 + i64::from(code[at] as i8));
        let opcode = code[at - 1];
        let conditional = at >= 2 && code[at - 2] == 0x0f && matches!(opcode, 0x80..=0x8f);
        let near = code.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_le_bytes);
        let near = near
            .filter(|_| conditional || matches!(opcode, 0xe8 | 0xe9))
            .map(|distance| at as i64 + 4 + i64::from(distance));
        let leaves = |target: i64| conditional && !(0..code.len() as i64).contains(&target);
        short == Some(0) || near == Some(0) || (!pushes && near.is_some_and(leaves))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `code` with `bytes` before its end, their last four or one being the distance to `target`.
    fn with_branch(first: u8, opcode: &[u8], wide: bool, target: i64) -> Vec<u8> {
        let mut code = vec![0x90; 100];
        code[0] = first;
        let at = 60 + opcode.len();
        code[60..at].copy_from_slice(opcode);
        if wide {
            code[at..at + 4].copy_from_slice(&((target - at as i64 - 4) as i32).to_le_bytes());
        } else {
            code[at] = (target - at as i64 - 1) as i8 as u8;
        }
        code
    }

    #[test]
    fn every_branch_to_the_start_is_found() {
        for (opcode, wide) in [
            (&[0xeb][..], false),
            (&[0x75], false),
            (&[0xe3], false),
            (&[0xe9], true),
            (&[0x0f, 0x84], true),
            (&[0xe8], true),
        ] {
            for first in [0x90, 0x55] {
                assert!(may_branch_to_start(&with_branch(first, opcode, wide, 0)), "{opcode:x?}");
                assert!(!may_branch_to_start(&with_branch(first, opcode, wide, 1)), "{opcode:x?}");
            }
        }
        assert!(may_branch_to_start(&[0xeb, 0xfe]));
        assert!(!may_branch_to_start(&[0xc3]));
        assert!(!may_branch_to_start(&[]));
    }

    #[test]
    fn a_part_elsewhere_may_come_back_unless_the_function_starts_with_a_push() {
        assert!(may_branch_to_start(&with_branch(0x90, &[0x0f, 0x84], true, 5000)));
        assert!(!may_branch_to_start(&with_branch(0x55, &[0x0f, 0x84], true, 5000)));
        // A tail call.
        assert!(!may_branch_to_start(&with_branch(0x90, &[0xe9], true, 5000)));
    }
}
