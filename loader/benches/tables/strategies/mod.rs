//! Ways to find a kernel symbol by its name: those of published kernels and patches, written anew over one and the same
//! compressed table, and ours. All but ours are for comparison alone.

pub mod batch_index;
pub mod full_expansion;
pub mod name_ordered;
pub mod ours;
pub mod token_compare;
pub mod unindexed;

/// A way to find a symbol.
pub trait Strategy {
    /// The address of the only symbol called `name`.
    fn find(&self, name: &[u8]) -> Option<u64>;

    /// What it holds beyond names, tokens and offsets.
    fn held_bytes(&self) -> usize;
}
