//! Names in their order, each stored as what it does not share with the one before it, and that in the kernel's own
//! tokens. Every eighth is stored whole, so that a look-up reads eight at most.
//!
//! ```text
//! name     shared bytes (u8), length and form (u8, or two from 128 on), then codes or plain bytes
//! block    its number and its length (u32), the records of eight names (see `record.rs`), then the names
//! blocks   where each block begins (u32)
//! ```

use std::cmp::Reverse;

use super::record::Packed;
use crate::tables::tokens::{Expander, MAX_NAME_BYTES, Seen, Tokens, Wanted, common_bytes};

/// Names from one that is stored whole to the next.
pub const BLOCK: usize = 8;

/// Blocks begin at multiples of it.
pub const ALIGNMENT: usize = 4;

/// A block's length, in units of [`ALIGNMENT`], has so many bits: enough for eight of the longest names.
const LENGTH_BITS: u32 = 11;

/// What a block begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// How many blocks come before it.
    pub number: usize,
    /// Its bytes, these included.
    pub length: usize,
}

impl Head {
    /// The bytes of one.
    pub const BYTES: usize = 4;

    /// Reads it.
    #[inline]
    pub fn unpack(bytes: [u8; Self::BYTES]) -> Self {
        let word = u32::from_ne_bytes(bytes);
        let length = (word & ((1 << LENGTH_BITS) - 1)) as usize * ALIGNMENT;
        Self { number: (word >> LENGTH_BITS) as usize, length }
    }

    fn pack(self) -> [u8; Self::BYTES] {
        (((self.number << LENGTH_BITS) | (self.length / ALIGNMENT)) as u32).to_ne_bytes()
    }
}

/// A length with this bit has a second byte.
const LONG: usize = 0x80;

/// A name as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct Name<'n> {
    /// So many bytes are those of the name before.
    pub shared: usize,
    /// The others, as text; or as codes of tokens.
    plain: bool,
    rest: &'n [u8],
}

impl<'n> Name<'n> {
    /// One without a byte.
    pub const EMPTY: Self = Self { shared: 0, plain: true, rest: &[] };

    /// The first name in `bytes`, and what follows it; nothing where it does not end.
    #[inline]
    pub fn split(bytes: &'n [u8]) -> Option<(Self, &'n [u8])> {
        let (&[shared, first], rest) = bytes.split_first_chunk()?;
        let (mut form, mut rest) = (first as usize, rest);
        if form & LONG != 0 {
            let (&second, behind) = rest.split_first()?;
            form = form & !LONG | (second as usize) << 7;
            rest = behind;
        }
        let (text, rest) = rest.split_at_checked(form >> 1)?;
        Some((Self { shared: shared as usize, plain: form & 1 != 0, rest: text }, rest))
    }

    /// The whole name; `expander` has the one before it. Nothing where there is no such name.
    #[inline]
    pub fn expand<'e>(&self, tokens: &Tokens, expander: &'e mut Expander) -> Option<&'e [u8]> {
        if self.plain {
            return expander.append(self.shared, self.rest);
        }
        expander.expand_behind(self.shared, tokens, self.rest)
    }

    /// Compares with `wanted`, of which `before` tells how it compares with the name before this one.
    #[inline]
    pub fn see(&self, tokens: &Tokens, wanted: &Wanted<'_>, before: Seen) -> Seen {
        // Where the one before departs from it within what both share, this one does so too.
        if self.shared > before.shared { before } else { self.see_rest(tokens, wanted) }
    }

    /// The same where all that is shared is known to be the same.
    #[inline]
    pub fn see_rest(&self, tokens: &Tokens, wanted: &Wanted<'_>) -> Seen {
        let before = Seen { shared: self.shared, next: None };
        if self.plain { before.and_text(self.rest, wanted) } else { tokens.see(before, self.rest, wanted) }
    }
}

/// Stores names.
#[derive(Debug)]
pub struct Encoder<'t> {
    tokens: &'t Tokens,
    /// For each first byte the tokens that begin with it, the longest first.
    by_first: Box<[Vec<Candidate>; 256]>,
    bytes: Vec<u8>,
    blocks: Vec<u32>,
    /// The name before in the same block.
    last: Vec<u8>,
}

/// A token that may be the next of a name.
#[derive(Debug)]
struct Candidate {
    code: u8,
    length: usize,
    /// Its first bytes, and which of them count: nearly always all of them, compared at once.
    head: u64,
    mask: u64,
}

impl Candidate {
    fn new(code: u8, text: &[u8]) -> Self {
        let mask = if text.len() < 8 { (1 << (8 * text.len())) - 1 } else { u64::MAX };
        Self { code, length: text.len(), head: head(text), mask }
    }
}

/// The first eight bytes of `text`, with zeros behind it.
#[inline]
fn head(text: &[u8]) -> u64 {
    if let Some(head) = text.first_chunk() {
        return u64::from_le_bytes(*head);
    }
    text.iter().rev().fold(0, |head, &byte| head << 8 | u64::from(byte))
}

impl<'t> Encoder<'t> {
    /// Stores names in these tokens; they and the records take so many bytes at most, or nearly.
    pub fn with_room(tokens: &'t Tokens, bytes: usize) -> Self {
        let mut by_first = Box::new([const { Vec::new() }; 256]);
        for code in 0..=255 {
            let text = tokens.text(code);
            if let Some(&first) = text.first() {
                by_first[first as usize].push(Candidate::new(code, text));
            }
        }
        for candidates in by_first.iter_mut() {
            candidates.sort_by_key(|candidate| Reverse(candidate.length));
        }
        Self { tokens, by_first, bytes: Vec::with_capacity(bytes), blocks: Vec::new(), last: Vec::new() }
    }

    /// Begins a block with the records of those whose names are stored next.
    pub fn begin(&mut self, records: impl Iterator<Item = Packed>) {
        self.end();
        self.blocks.push(self.bytes.len() as u32);
        self.bytes.extend_from_slice(&[0; Head::BYTES]);
        records.for_each(|record| self.bytes.extend_from_slice(&record.0));
        self.last.clear();
    }

    /// Ends the last block, if there is one: now its length is known.
    fn end(&mut self) {
        let Some(start) = self.blocks.last().map(|&start| start as usize) else { return };
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let head = Head { number: self.blocks.len() - 1, length: self.bytes.len() - start };
        self.bytes[start..start + Head::BYTES].copy_from_slice(&head.pack());
    }

    /// Stores `name`, which doesn't come before the last one; whether it is short enough for a name.
    pub fn push(&mut self, name: &[u8]) -> bool {
        if name.len() >= MAX_NAME_BYTES {
            return false;
        }
        let shared = common_bytes(&self.last, name).min(u8::MAX as usize);
        self.bytes.push(shared as u8);
        self.push_codes(&name[shared..]);
        self.last.clear();
        self.last.extend_from_slice(name);
        true
    }

    /// The rest of a name with its length before it, in plain bytes where a byte is in no token.
    fn push_codes(&mut self, rest: &[u8]) {
        let length_at = self.bytes.len();
        self.bytes.push(0);
        let mut at = 0;
        while let Some((code, length)) = self.longest(&rest[at..]) {
            self.bytes.push(code);
            at += length;
        }
        let plain = at < rest.len();
        if plain {
            self.bytes.truncate(length_at + 1);
            self.bytes.extend_from_slice(rest);
        }
        let form = (self.bytes.len() - length_at - 1) << 1 | usize::from(plain);
        self.bytes[length_at] = form as u8;
        if form >= LONG {
            self.bytes[length_at] = (form & !LONG) as u8 | LONG as u8;
            self.bytes.insert(length_at + 1, (form >> 7) as u8);
        }
    }

    /// The longest token that `text` begins with, and its length.
    #[inline]
    fn longest(&self, text: &[u8]) -> Option<(u8, usize)> {
        let start = head(text);
        let begins = |candidate: &&Candidate| {
            (start ^ candidate.head) & candidate.mask == 0
                && (candidate.length <= 8 || text.starts_with(self.tokens.text(candidate.code)))
        };
        let candidates = &self.by_first[*text.first()? as usize];
        candidates.iter().find(begins).map(|found| (found.code, found.length))
    }

    /// All blocks, and where they begin.
    pub fn finish(mut self) -> (Vec<u8>, Vec<u32>) {
        self.end();
        (self.bytes, self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tables::tokens::tests::table;

    /// No token has a `~`, as code 126 is another text.
    fn tokens() -> Tokens {
        let (table, index) = table(&[(1, "kvm_"), (2, "vm_x"), (126, "__pfx_")]);
        Tokens::parse(&table, &index).unwrap()
    }

    /// The blocks, and where they begin.
    fn stored(names: &[Vec<u8>]) -> (Tokens, Vec<u8>, Vec<u32>) {
        let tokens = tokens();
        let mut encoder = Encoder::with_room(&tokens, 0);
        for block in names.chunks(BLOCK) {
            encoder.begin(std::iter::empty());
            assert!(block.iter().all(|name| encoder.push(name)));
        }
        let (bytes, blocks) = encoder.finish();
        assert_eq!(blocks.len(), names.len().div_ceil(BLOCK));
        (tokens, bytes, blocks)
    }

    #[test]
    fn heads_come_back_as_they_were() {
        for (number, length) in [(0, Head::BYTES), (1, 8), ((1 << 21) - 1, 4 * ((1 << LENGTH_BITS) - 1))] {
            let head = Head { number, length };
            assert_eq!(Head::unpack(head.pack()), head);
        }
        // Eight of the longest names, none of which fits a token.
        let longest = Head::BYTES + BLOCK * (size_of::<Packed>() + 3 + MAX_NAME_BYTES);
        assert!(longest < 4 << LENGTH_BITS);
    }

    proptest! {
        #[test]
        fn names_come_back_and_compare_as_they_are(
            mut names in prop::collection::vec("(kvm_)?[abmvx~_]{0,6}(_x{0,300})?", 1..40),
            wanted in "(kvm_)?[abmvx~_]{0,6}",
        ) {
            names.sort();
            let names: Vec<Vec<u8>> = names.into_iter().map(String::into_bytes).collect();
            let (tokens, bytes, blocks) = stored(&names);
            let (mut rest, mut expander, mut seen) = (&bytes[..0], Expander::new(), Seen::NOTHING);
            let wanted = Wanted::new(wanted.as_bytes());
            for (index, name) in names.iter().enumerate() {
                if index.is_multiple_of(BLOCK) {
                    let start = blocks[index / BLOCK] as usize;
                    let head = Head::unpack(*bytes[start..].first_chunk().unwrap());
                    prop_assert_eq!(head.number, index / BLOCK);
                    prop_assert!(start.is_multiple_of(ALIGNMENT) && rest.iter().all(|&byte| byte == 0));
                    rest = &bytes[start + Head::BYTES..start + head.length];
                    seen = Seen::NOTHING;
                }
                let (stored, behind) = Name::split(rest).unwrap();
                prop_assert_eq!(stored.expand(&tokens, &mut expander), Some(&name[..]));
                seen = stored.see(&tokens, &wanted, seen);
                let shared = common_bytes(name, wanted.name());
                prop_assert_eq!(seen, Seen { shared, next: name.get(shared).copied() });
                prop_assert_eq!(seen.order(&wanted), name[..].cmp(wanted.name()));
                rest = behind;
            }
            prop_assert!(rest.len() < ALIGNMENT);
        }

        #[test]
        fn any_bytes_are_names_or_none(bytes in any::<Vec<u8>>(), wanted in any::<Vec<u8>>()) {
            let (tokens, mut expander, mut seen) = (tokens(), Expander::new(), Seen::NOTHING);
            let mut rest = &bytes[..];
            while let Some((stored, behind)) = Name::split(rest) {
                let _whatever = stored.expand(&tokens, &mut expander);
                seen = stored.see(&tokens, &Wanted::new(&wanted), seen);
                rest = behind;
            }
        }
    }

    #[test]
    fn what_is_longer_than_any_name_is_not_stored() {
        let tokens = tokens();
        let mut encoder = Encoder::with_room(&tokens, 0);
        assert!(encoder.push(&[b'x'; MAX_NAME_BYTES - 1]) && !encoder.push(&[b'x'; MAX_NAME_BYTES]));
    }
}
