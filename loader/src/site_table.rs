//! Lays out the hash table in which the eBPF program finds a function's counter: see [`probe_ebpf`].

use probe_ebpf::{FIRST_SLOT, Layout, MAX_PROBES, Site};

use crate::error::{Error, ErrorKind, Result};

/// Counters that share a cache line of 64 bytes.
const SLOTS_PER_LINE: usize = 8;

/// Places for each function. At 4, nearly every look-up ends at the first place it reads.
const PLACES_PER_FUNCTION: usize = 4;

/// Multipliers tried before the table grows. Each fails only when some address finds [`MAX_PROBES`] places in
/// a row taken.
const TRIES: u64 = 16;

/// The table's largest size in bits: 1 GiB of it, for 16 million functions.
const MAX_BITS: u32 = 26;

/// A table in which every address lies within reach of where the program starts to look.
#[derive(Debug)]
pub struct SiteTable {
    /// How it and the counters are laid out.
    pub layout: Layout,
    /// The places, [`MAX_PROBES`] more than the hash can name, so that no search wraps.
    pub places: Vec<Site>,
}

impl SiteTable {
    /// Gives function number `i` of `functions` the slot `FIRST_SLOT + i`; each item of `addresses` names one by its
    /// number. Addresses are distinct and not 0.
    ///
    /// # Errors
    ///
    /// `Kernel` for more functions than such a table holds, or two at one address.
    pub fn new(functions: usize, addresses: &[(usize, u64)]) -> Result<Self> {
        let slots = (functions + FIRST_SLOT as usize).next_multiple_of(SLOTS_PER_LINE);
        let smallest = (addresses.len() * PLACES_PER_FUNCTION).next_power_of_two().max(64).ilog2();
        for bits in smallest..=MAX_BITS {
            for seed in 0..TRIES {
                let layout = Layout {
                    multiplier: odd_multiplier(seed),
                    shift: 64 - bits,
                    slots_per_cpu: slots as u32,
                };
                if let Some(places) = place_all(addresses, &layout, 1 << bits)? {
                    return Ok(Self { layout, places });
                }
            }
        }
        Err(Error::new(ErrorKind::Kernel, format!("too many functions for one table: {}", addresses.len())))
    }
}

/// Puts every address into the first free place from its own on; none when one has to go too far.
fn place_all(addresses: &[(usize, u64)], layout: &Layout, size: usize) -> Result<Option<Vec<Site>>> {
    let mut places = vec![Site::default(); size + MAX_PROBES as usize];
    for &(function, address) in addresses {
        let slot = FIRST_SLOT + function as u32;
        let first = layout.first_position(address) as usize;
        let reach = &mut places[first..first + MAX_PROBES as usize];
        match reach.iter_mut().find(|place| place.address == 0 || place.address == address) {
            None => return Ok(None),
            Some(place) if place.address == 0 => *place = Site { address, slot, padding: 0 },
            Some(_) => {
                let message = format!("two functions with counters of their own at {address:#x}");
                return Err(Error::new(ErrorKind::Kernel, message));
            }
        }
    }
    Ok(Some(places))
}

/// Well-mixed odd numbers, the same in every run: splitmix64 (Steele, Lea and Flood, 2014).
fn odd_multiplier(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the eBPF program does.
    fn look_up(table: &SiteTable, address: u64) -> Option<u32> {
        let first = table.layout.first_position(address) as usize;
        for site in &table.places[first..first + MAX_PROBES as usize] {
            if site.address == address {
                return Some(site.slot);
            }
            if site.address == 0 {
                return None;
            }
        }
        None
    }

    fn table(addresses: &[u64]) -> Result<SiteTable> {
        let numbered: Vec<_> = addresses.iter().copied().enumerate().collect();
        SiteTable::new(addresses.len(), &numbered)
    }

    fn check(addresses: &[u64]) {
        let table = table(addresses).unwrap();
        for (slot, &address) in (FIRST_SLOT..).zip(addresses) {
            assert_eq!(look_up(&table, address), Some(slot));
        }
        assert_eq!(look_up(&table, 0xffff_ffff_0000_0008), None);
        assert!(table.layout.slots_per_cpu as usize > addresses.len());
    }

    #[test]
    fn functions_sixteen_bytes_apart_all_find_their_slot() {
        for count in [0, 1, 15, 16, 800, 60_000] {
            check(&(0..count).map(|n| 0xffff_ffff_8100_0000 + n * 16).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_function_may_have_several_addresses() {
        let table = SiteTable::new(2, &[(0, 0x1000), (1, 0x2000), (0, 0x1005)]).unwrap();
        assert_eq!([0x1000, 0x2000, 0x1005].map(|a| look_up(&table, a)), [Some(1), Some(2), Some(1)]);
        assert_eq!(table.layout.slots_per_cpu, 8);
    }

    #[test]
    fn two_functions_at_one_address_are_an_error_and_not_a_lost_counter() {
        assert_eq!(table(&[0x1000, 0x1000]).unwrap_err().kind(), ErrorKind::Kernel);
    }

    proptest! {
        #[test]
        fn any_set_of_addresses_finds_its_slots(
            addresses in prop::collection::hash_set(1_u64..0xffff_ffff_0000_0000, 0..500)
        ) {
            check(&addresses.into_iter().collect::<Vec<_>>());
        }
    }
}
