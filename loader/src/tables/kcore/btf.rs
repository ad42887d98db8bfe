//! Where members are in the kernel's structures, from BTF (`/sys/kernel/btf/vmlinux`,
//! `Documentation/bpf/btf.rst`; Linux 5.4 and later with `CONFIG_DEBUG_INFO_BTF`).
//!
//! A kernel's BTF has some 150,000 types in 6 MB, of which a handful of structures are wanted. So the types are
//! walked, not collected, and no further than the last one that is wanted.

use std::ops::Range;

use crate::{error::Result, tables::odd};

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;

/// `BTF_KIND_STRUCT`
const KIND_STRUCT: u32 = 4;

/// A structure and the members whose offsets are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The structure's name.
    pub name: &'static str,
    /// Names of its members.
    pub members: &'static [&'static str],
}

/// A structure that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// `sizeof`, in bytes.
    pub size: usize,
    /// The offset of each wanted member, in bytes and in the order in which they were wanted.
    pub offsets: Vec<usize>,
}

/// How much of the types is looked at in one go.
const WINDOW_BYTES: usize = 32 << 10;

/// Finds the structures in BTF; the first with all the members where several have the name.
///
/// # Errors
///
/// `Malformed` where the bytes are no BTF, or a structure isn't there or has no such member.
pub fn layouts(btf: &mut impl Bytes, wanted: &[Wanted]) -> Result<Vec<Layout>> {
    let sections = sections(btf).ok_or_else(|| odd("BTF with an unknown header"))?;
    let fewest = wanted.iter().map(|structure| structure.members.len()).min().unwrap_or(0);
    let mut found: Vec<Option<Layout>> = vec![None; wanted.len()];
    let mut at = sections.types.start;
    while found.iter().any(Option::is_none)
        && let Some(head) = next_struct(btf, &mut at, sections.types.end, fewest)?
    {
        for (structure, layout) in wanted.iter().zip(&mut found).filter(|(_, layout)| layout.is_none()) {
            if head.members >= structure.members.len() && is_named(btf, &sections, head.name, structure.name)
            {
                let body = btf.get(at, head.members * MEMBER_BYTES);
                let body = body.ok_or_else(|| odd("BTF that ends within a type"))?.to_vec();
                *layout = layout_of(structure, &head, &body, btf, &sections);
            }
        }
        at += head.members * MEMBER_BYTES;
    }
    let missing = |index: usize| odd(format!("BTF without struct {} as it is known", wanted[index].name));
    found.into_iter().enumerate().map(|(index, layout)| layout.ok_or_else(|| missing(index))).collect()
}

/// The head of a structure.
struct Head {
    name: u32,
    size: usize,
    members: usize,
    bit_fields: bool,
}

/// The first structure from `at` on that has enough members; `at` is then where its members are. This walks over
/// a hundred thousand types, and so does nothing else.
fn next_struct(btf: &mut impl Bytes, at: &mut usize, end: usize, fewest: usize) -> Result<Option<Head>> {
    while *at < end {
        let window = btf.get(*at, WINDOW_BYTES.min(end - *at));
        let window = window.ok_or_else(|| odd("BTF that ends within a type"))?;
        let mut place = 0;
        while let Some(head) = window.get(place..place + TYPE_BYTES) {
            let [name, info, size] = words(head);
            let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
            place += TYPE_BYTES;
            if kind == KIND_STRUCT && count >= fewest {
                *at += place;
                let bit_fields = info >> 31 == 1;
                return Ok(Some(Head { name, size: size as usize, members: count, bit_fields }));
            }
            let (fixed, each) = BYTES_AFTER[kind as usize];
            if fixed == UNKNOWN {
                return Err(odd(format!("a BTF type of kind {kind}")));
            }
            place += fixed as usize + count * each as usize;
        }
        if place == 0 {
            return Err(odd("BTF that ends within a type"));
        }
        *at += place;
    }
    Ok(None)
}

/// A file that is looked at here and there.
pub trait Bytes {
    /// `length` bytes from `at` on; nothing where there are fewer.
    fn get(&mut self, at: usize, length: usize) -> Option<&[u8]>;
}

impl Bytes for &[u8] {
    fn get(&mut self, at: usize, length: usize) -> Option<&[u8]> {
        <[u8]>::get(self, at..at.checked_add(length)?)
    }
}

/// Where types and strings are in the file.
struct Sections {
    types: Range<usize>,
    strings: Range<usize>,
}

fn sections(btf: &mut impl Bytes) -> Option<Sections> {
    let header: [u8; HEADER_BYTES] = *btf.get(0, HEADER_BYTES)?.first_chunk()?;
    if u16::from_ne_bytes([header[0], header[1]]) != MAGIC {
        return None;
    }
    let [start, types_at, types_bytes, strings_at, strings_bytes]: [u32; 5] = words(&header[4..]);
    let section = |at: u32, bytes: u32| {
        let first = (start as usize).checked_add(at as usize)?;
        Some(first..first.checked_add(bytes as usize)?)
    };
    Some(Sections { types: section(types_at, types_bytes)?, strings: section(strings_at, strings_bytes)? })
}

/// The first words of `bytes`, which are long enough.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let (words, _) = bytes.as_chunks::<4>();
    std::array::from_fn(|index| words.get(index).map_or(0, |word| u32::from_ne_bytes(*word)))
}

/// What follows the head of a type of each kind: so many bytes, and so many for each of its members.
const BYTES_AFTER: [(u8, u8); 32] = {
    let mut bytes = [(UNKNOWN, 0); 32];
    // 1 INT, 2 PTR, 3 ARRAY, 4 STRUCT, 5 UNION, 6 ENUM, 7 FWD, 8 TYPEDEF, 9 VOLATILE, 10 CONST, 11 RESTRICT,
    // 12 FUNC, 13 FUNC_PROTO, 14 VAR, 15 DATASEC, 16 FLOAT, 17 DECL_TAG, 18 TYPE_TAG, 19 ENUM64
    let known: [(u8, u8); 19] = [
        (4, 0),
        (0, 0),
        (12, 0),
        (0, 12),
        (0, 12),
        (0, 8),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 8),
        (4, 0),
        (0, 12),
        (0, 0),
        (4, 0),
        (0, 0),
        (0, 12),
    ];
    let mut kind = 0;
    while kind < known.len() {
        bytes[kind + 1] = known[kind];
        kind += 1;
    }
    bytes
};

const UNKNOWN: u8 = u8::MAX;

/// Whether the string at `at` of the strings is `name`.
fn is_named(btf: &mut impl Bytes, sections: &Sections, at: u32, name: &str) -> bool {
    let start = sections.strings.start.saturating_add(at as usize);
    let text = btf.get(start, name.len() + 1).unwrap_or_default();
    text.strip_prefix(name.as_bytes()) == Some(b"\0")
}

/// The layout of `structure`, if this body has all its members at whole bytes.
fn layout_of(
    structure: &Wanted,
    head: &Head,
    body: &[u8],
    btf: &mut impl Bytes,
    sections: &Sections,
) -> Option<Layout> {
    let (members, _) = body.as_chunks::<MEMBER_BYTES>();
    let mut offset_of = |name: &&str| {
        let mut members = members.iter().map(|member| words(member));
        let [_, _, bits]: [u32; 3] = members.find(|[at, _, _]| is_named(btf, sections, *at, name))?;
        let bits = if head.bit_fields { bits & 0x00ff_ffff } else { bits };
        (bits % 8 == 0).then_some(bits as usize / 8).filter(|offset| *offset < head.size)
    };
    let offsets = structure.members.iter().map(&mut offset_of).collect::<Option<Vec<_>>>()?;
    Some(Layout { size: head.size, offsets })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const WANTED: [Wanted; 2] =
        [Wanted { name: "pair", members: &["second"] }, Wanted { name: "word", members: &["value"] }];

    /// A structure: name, size, and members with their offsets in bytes.
    pub type Structure<'a> = (&'a str, u32, &'a [(&'a str, u32)]);

    /// BTF with the given structures.
    pub fn btf(structures: &[Structure<'_>]) -> Vec<u8> {
        let mut strings = vec![0];
        let mut string = |text: &str| {
            let at = strings.len() as u32;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        // An integer first, as in any kernel's.
        let mut types: Vec<u32> = vec![string("int"), 1 << 24, 4, 32];
        for (name, size, members) in structures {
            types.extend([string(name), (KIND_STRUCT << 24) | members.len() as u32, *size]);
            for (member, offset) in *members {
                types.extend([string(member), 1, offset * 8]);
            }
        }
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let header = [HEADER_BYTES as u32, 0, types.len() as u32, types.len() as u32, strings.len() as u32];
        let mut btf = [MAGIC.to_ne_bytes(), [1, 0]].concat();
        btf.extend(header.iter().flat_map(|word| word.to_ne_bytes()));
        [btf, types, strings].concat()
    }

    fn example() -> Vec<u8> {
        btf(&[
            ("pair", 8, &[("other", 0), ("one", 4)]),
            ("pair", 16, &[("first", 0), ("second", 8)]),
            ("word", 4, &[("value", 0)]),
        ])
    }

    #[test]
    fn structures_are_found_by_name_and_members() {
        let layouts = layouts(&mut &*example(), &WANTED).unwrap();
        assert_eq!(layouts[0], Layout { size: 16, offsets: vec![8] });
        assert_eq!(layouts[1], Layout { size: 4, offsets: vec![0] });
    }

    #[test]
    fn what_is_missing_is_named() {
        let error = layouts(&mut &*btf(&[("pair", 8, &[("second", 4)])]), &WANTED).unwrap_err().to_string();
        assert!(error.contains("struct word"), "{error}");
        let beyond = btf(&[("pair", 8, &[("second", 8)]), ("word", 4, &[("value", 0)])]);
        assert!(layouts(&mut &*beyond, &WANTED).is_err());
    }

    #[test]
    fn damaged_btf_is_an_error_and_never_a_panic() {
        let good = example();
        for length in 0..good.len() {
            assert!(layouts(&mut &good[..length], &WANTED).is_err(), "{length} bytes");
        }
        for at in 0..good.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                let _whatever = layouts(&mut &*bad, &WANTED);
            }
        }
    }
}
