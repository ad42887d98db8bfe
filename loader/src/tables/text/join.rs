//! Brings the kernel's two lists of functions together: symbols with addresses, and ftrace records with
//! addresses, names, or both.

use std::collections::HashMap;

use crate::{
    error::{Error, ErrorKind, Result},
    tables::{
        MAX_ENTRY_OFFSET,
        symbols::{Function, Symbols},
    },
};

/// Where x86-64 kernels start their functions (`CONFIG_FUNCTION_ALIGNMENT`, 6.2 and later: 16 in all of
/// Debian's).
const FUNCTION_ALIGNMENT: u64 = 16;

/// The same function is known by name and module in both lists.
type Key<'t> = (Option<&'t [u8]>, &'t [u8]);

fn key(function: Function<'_>) -> Key<'_> {
    (function.module, function.name)
}

/// The addresses of all ftrace records, ascending and each once. Where the kernel hides the symbols' addresses
/// but not the records', the symbols get theirs from the records.
///
/// # Errors
///
/// `Permission` where both lists are without addresses.
pub fn sites(functions: &mut Symbols, records: &Symbols) -> Result<Vec<u64>> {
    let shown = |symbols: &Symbols| symbols.iter().any(|function| function.address != 0);
    let mut sites: Vec<u64> = match (shown(functions), shown(records)) {
        (true, true) => records.iter().map(|record| record.address).collect(),
        (true, false) => sites_by_name(functions, records),
        (false, true) => {
            addresses_from_records(functions, records);
            records.iter().map(|record| record.address).collect()
        }
        (false, false) if records.is_empty() => Vec::new(),
        (false, false) => {
            return Err(Error::new(ErrorKind::Permission, "the kernel hides the addresses of its functions")
                .with_hint(
                    "sysctl kernel.kptr_restrict=1 (0 or 1; 2 hides them from root too), and run as root",
                ));
        }
    };
    sites.sort_unstable();
    sites.dedup();
    Ok(sites)
}

/// For kernels that print no addresses of records (before 6.5): the address of the symbol of that name.
///
/// A name that several functions share is settled by its neighbours, since records are in the order of their
/// addresses: the first candidate above the record before and below the next one that is certain.
fn sites_by_name(functions: &Symbols, records: &Symbols) -> Vec<u64> {
    let mut candidates: HashMap<Key<'_>, Vec<u64>> = records.iter().map(|r| (key(r), Vec::new())).collect();
    for function in functions.iter() {
        if let Some(addresses) = candidates.get_mut(&key(function)) {
            addresses.push(function.address);
        }
    }
    for addresses in candidates.values_mut() {
        addresses.sort_unstable();
        addresses.dedup();
    }
    let upper = certain_address_after(records, &candidates);
    let mut sites = Vec::with_capacity(records.len());
    let mut previous: (Option<&[u8]>, u64) = (None, 0);
    for (record, upper) in records.iter().zip(upper) {
        let lower = if previous.0 == record.module { previous.1 } else { 0 };
        let all = &candidates[&key(record)];
        let above = all.iter().copied().filter(|&address| address > lower);
        if let Some(site) = above.clone().find(|&address| address <= upper).or_else(|| all.first().copied()) {
            sites.push(site);
            previous = (record.module, site);
        }
    }
    sites
}

/// For each record the address of the nearest record from it on, in the same module, whose name only one
/// function has.
fn certain_address_after(records: &Symbols, candidates: &HashMap<Key<'_>, Vec<u64>>) -> Vec<u64> {
    let mut upper = vec![u64::MAX; records.len()];
    let mut next: (Option<&[u8]>, u64) = (None, u64::MAX);
    for index in (0..records.len()).rev() {
        let Some(record) = records.get(index) else { continue };
        if record.module != next.0 {
            next = (record.module, u64::MAX);
        }
        if let [only] = candidates[&key(record)][..] {
            next.1 = only;
        }
        upper[index] = next.1;
    }
    upper
}

/// For `kernel.kptr_restrict=2`, which hides symbols even from root while the list of records stays readable.
/// Functions without a record keep address 0: nothing can be done with them anyway.
fn addresses_from_records(functions: &mut Symbols, records: &Symbols) {
    let mut sites: HashMap<Key<'_>, Vec<u64>> = HashMap::with_capacity(records.len());
    for record in records.iter() {
        sites.entry(key(record)).or_default().push(record.address);
    }
    // Last first, so that `pop` hands them out in order.
    sites.values_mut().for_each(|addresses| addresses.reverse());
    let addresses: Vec<u64> = functions
        .iter()
        .map(|function| sites.get_mut(&key(function)).and_then(Vec::pop).map_or(0, symbol_before))
        .collect();
    functions.set_addresses(|index| addresses[index]);
}

/// The symbol that a record belongs to when the symbol's own address is hidden: functions are aligned, so one
/// that starts 4 bytes after a boundary has an `endbr64` before its record.
fn symbol_before(site: u64) -> u64 {
    let past_boundary = site % FUNCTION_ALIGNMENT;
    if past_boundary <= MAX_ENTRY_OFFSET { site - past_boundary } else { site }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(list: &[(u64, &str, Option<&str>)]) -> Symbols {
        let mut symbols = Symbols::default();
        for (address, name, module) in list {
            symbols.push(*address, name.as_bytes(), module.map(str::as_bytes)).unwrap();
        }
        symbols
    }

    #[test]
    fn records_with_addresses_are_taken_as_they_are() {
        let mut functions = symbols(&[(0x100, "a", None), (0x200, "b", None)]);
        let records = symbols(&[(0x204, "b", None), (0x104, "a", None), (0x104, "a", None)]);
        assert_eq!(sites(&mut functions, &records).unwrap(), [0x104, 0x204]);
    }

    #[test]
    fn records_without_addresses_are_found_by_name_and_module() {
        let mut functions = symbols(&[(0x100, "a", None), (0x900, "a", Some("m")), (0x200, "b", None)]);
        let records = symbols(&[(0, "a", Some("m")), (0, "b", None), (0, "gone", None)]);
        assert_eq!(sites(&mut functions, &records).unwrap(), [0x200, 0x900]);
    }

    #[test]
    fn a_shared_name_is_settled_by_its_neighbours() {
        // show: at 0x150 and 0x350 traceable, at 0x250 not.
        let functions = [
            (0x100, "a", None),
            (0x150, "show", None),
            (0x200, "b", None),
            (0x250, "show", None),
            (0x300, "c", None),
            (0x350, "show", None),
            (0x400, "d", None),
        ];
        let records = symbols(&["a", "show", "b", "c", "show", "d"].map(|name| (0, name, None)));
        let found = sites(&mut symbols(&functions), &records).unwrap();
        assert_eq!(found, [0x100, 0x150, 0x200, 0x300, 0x350, 0x400]);
    }

    #[test]
    fn hidden_symbols_get_their_addresses_from_the_records() {
        let mut functions = symbols(&[
            (0, "a", None),
            (0, "inlined", None),
            (0, "twin", None),
            (0, "twin", None),
            (0, "b", Some("m")),
        ]);
        let records = symbols(&[
            (0x104, "a", None),
            (0x200, "twin", None),
            (0x304, "twin", None),
            (0x908, "b", Some("m")),
        ]);
        assert_eq!(sites(&mut functions, &records).unwrap(), [0x104, 0x200, 0x304, 0x908]);
        let addresses: Vec<u64> = functions.iter().map(|f| f.address).collect();
        assert_eq!(addresses, [0x100, 0, 0x200, 0x300, 0x908]);
    }

    #[test]
    fn without_any_address_the_error_names_the_sysctl() {
        let error = sites(&mut symbols(&[(0, "a", None)]), &symbols(&[(0, "a", None)])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Permission);
        assert!(error.hint().unwrap().contains("kptr_restrict"));
    }
}
