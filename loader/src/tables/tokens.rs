//! The kernel's token table: each byte of a compressed name stands for a piece of text
//! (`kallsyms_expand_symbol` in `kernel/kallsyms.c`; `scripts/kallsyms.c` makes the table).

use std::cmp::Ordering;

use super::odd;
use crate::error::Result;

/// The longest expanded name, its type letter included: `KSYM_NAME_LEN` is 512 since 6.1.
pub const MAX_NAME_BYTES: usize = 512;

/// Nearly all tokens are shorter; a copy of so many bytes is one instruction.
const SHORT_BYTES: usize = 16;

/// The 256 tokens, expanded.
#[derive(Debug, Clone)]
pub struct Tokens {
    /// The first bytes of each token, for a copy without a loop.
    short: Box<[[u8; SHORT_BYTES]; 256]>,
    /// Where each token is in `all`.
    places: [(u16, u16); 256],
    all: Vec<u8>,
}

impl Tokens {
    /// Reads the table and its index: 256 places in the table, each the start of a NUL-terminated text.
    ///
    /// # Errors
    ///
    /// `Malformed` where a token starts or ends outside the table or is longer than a name.
    pub fn parse(table: &[u8], index: &[u8]) -> Result<Self> {
        let short = Box::new([[0; SHORT_BYTES]; 256]);
        let mut tokens = Self { short, places: [(0, 0); 256], all: table.to_vec() };
        let (places, rest) = index.as_chunks::<2>();
        if places.len() != 256 || !rest.is_empty() {
            return Err(odd(format!("a token index of {} bytes", index.len())));
        }
        for (code, place) in places.iter().enumerate() {
            let start = u16::from_ne_bytes(*place) as usize;
            let text = table.get(start..).and_then(|text| Some(&text[..memchr::memchr(0, text)?]));
            let text = text
                .filter(|text| text.len() < MAX_NAME_BYTES)
                .ok_or_else(|| odd(format!("token {code} does not end within its table")))?;
            let short = text.len().min(SHORT_BYTES);
            tokens.short[code][..short].copy_from_slice(&text[..short]);
            tokens.places[code] = (start as u16, text.len() as u16);
        }
        Ok(tokens)
    }

    /// The table and its index, for [`Self::parse`].
    pub fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let index = self.places.iter().flat_map(|(start, _)| start.to_ne_bytes()).collect();
        (self.all.clone(), index)
    }

    /// What `code` stands for.
    pub fn text(&self, code: u8) -> &[u8] {
        let (start, length) = self.places[code as usize];
        &self.all[start as usize..start as usize + length as usize]
    }

    /// How a name compares with `wanted` of which `codes` are what follows what was seen `before`; no more codes are
    /// looked at than it takes to tell.
    #[inline]
    pub fn see(&self, before: Seen, codes: &[u8], wanted: &Wanted<'_>) -> Seen {
        let mut seen = before;
        for &code in codes {
            seen = self.see_one(seen, code, wanted);
            if seen.next.is_some() {
                break;
            }
        }
        seen
    }

    /// A loop over bytes would end where the CPU doesn't expect it: short tokens are compared in one go.
    #[inline]
    fn see_one(&self, before: Seen, code: u8, wanted: &Wanted<'_>) -> Seen {
        let length = self.places[code as usize].1 as usize;
        if length > size_of::<u64>() {
            return before.and_text(self.text(code), wanted);
        }
        let token = self.short[code as usize].first_chunk().map_or(0, |token| u64::from_le_bytes(*token));
        // No token has a byte 0, which is what follows the end of either: they differ there unless both end.
        let differing = token ^ wanted.window(before.shared);
        let common = (differing.trailing_zeros() as usize / 8).min(length);
        let next = (common < length).then(|| (token >> (8 * common)) as u8);
        Seen { shared: before.shared + common, next }
    }
}

/// A name that is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'n> {
    name: &'n [u8],
    /// Its last bytes, the very last one on top.
    tail: u64,
}

impl<'n> Wanted<'n> {
    /// This name, made ready to be compared.
    #[inline]
    pub fn new(name: &'n [u8]) -> Self {
        let tail = match name.last_chunk() {
            Some(tail) => u64::from_le_bytes(*tail),
            None => name.iter().fold(0, |tail, &byte| tail >> 8 | u64::from(byte) << 56),
        };
        Self { name, tail }
    }

    /// Its bytes from `at` on, as many as there are in one go, and zeros behind its end.
    #[inline]
    fn window(&self, at: usize) -> u64 {
        match self.name.get(at..).and_then(|rest| rest.first_chunk()) {
            Some(window) => u64::from_le_bytes(*window),
            None => {
                let beyond = size_of::<u64>() - self.name.len().saturating_sub(at);
                self.tail.checked_shr(8 * beyond as u32).unwrap_or(0)
            }
        }
    }

    /// The name.
    pub fn name(&self) -> &'n [u8] {
        self.name
    }
}

/// How a name in tokens compares with one that is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// So many bytes are the same.
    pub shared: usize,
    /// What the name in tokens has behind them; nothing where it ends there.
    pub next: Option<u8>,
}

impl Seen {
    /// Before anything was looked at.
    pub const NOTHING: Self = Self { shared: 0, next: None };

    /// The same once `text` follows what was seen, which was all of it the same.
    #[inline]
    pub fn and_text(self, text: &[u8], wanted: &Wanted<'_>) -> Self {
        let common = common_bytes(text, wanted.name.get(self.shared..).unwrap_or_default());
        Self { shared: self.shared + common, next: text.get(common).copied() }
    }

    /// Whether the name is `wanted`, or what a compiler may have made of it.
    pub fn is_variant_of(self, wanted: &Wanted<'_>) -> bool {
        self.shared == wanted.name.len() && matches!(self.next, None | Some(b'.'))
    }

    /// Whether it is that, or in their order such may come after it.
    pub fn may_be_variant_of(self, wanted: &Wanted<'_>) -> bool {
        self.begins_with(wanted) && self.next <= Some(b'.')
    }

    /// Whether `wanted` is what it begins with.
    pub fn begins_with(self, wanted: &Wanted<'_>) -> bool {
        self.shared == wanted.name.len()
    }

    /// Whether the name comes before `wanted`, is the same, or comes after it.
    pub fn order(self, wanted: &Wanted<'_>) -> Ordering {
        // An end comes before any byte.
        self.next.cmp(&wanted.name.get(self.shared).copied())
    }
}

/// How many bytes `a` and `b` begin with in common.
#[inline]
pub fn common_bytes(a: &[u8], b: &[u8]) -> usize {
    let words = a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0);
    let mut common = 0;
    for (a, b) in words {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return common + differing.trailing_zeros() as usize / 8;
        }
        common += 8;
    }
    common + a[common..].iter().zip(&b[common..]).take_while(|(a, b)| a == b).count()
}

/// A buffer that names are expanded into, one after the other.
#[derive(Debug)]
pub struct Expander {
    // Room for a short copy that starts at the last byte of the longest name.
    buffer: [u8; MAX_NAME_BYTES + SHORT_BYTES],
    end: usize,
}

impl Default for Expander {
    fn default() -> Self {
        Self::new()
    }
}

impl Expander {
    /// An empty buffer.
    pub fn new() -> Self {
        Self { buffer: [0; MAX_NAME_BYTES + SHORT_BYTES], end: 0 }
    }

    /// The type letter and the name that `codes` stand for; nothing where they stand for no name at all, or
    /// one longer than any.
    #[inline]
    pub fn expand(&mut self, tokens: &Tokens, codes: &[u8]) -> Option<(u8, &[u8])> {
        let (kind, name) = self.expand_behind(0, tokens, codes)?.split_first()?;
        Some((*kind, name))
    }

    /// What `codes` stand for behind the first `kept` bytes of the last text; nothing where that was shorter, or
    /// this one is longer than any name.
    #[inline]
    pub fn expand_behind(&mut self, kept: usize, tokens: &Tokens, codes: &[u8]) -> Option<&[u8]> {
        let mut end = (kept <= self.end).then_some(kept)?;
        for &code in codes {
            let length = tokens.places[code as usize].1 as usize;
            if end + length > MAX_NAME_BYTES {
                return None;
            }
            self.buffer[end..end + SHORT_BYTES].copy_from_slice(&tokens.short[code as usize]);
            if length > SHORT_BYTES {
                self.buffer[end..end + length].copy_from_slice(tokens.text(code));
            }
            end += length;
        }
        self.end = end;
        Some(&self.buffer[..end])
    }

    /// The same for plain text.
    #[inline]
    pub fn append(&mut self, kept: usize, text: &[u8]) -> Option<&[u8]> {
        let start = (kept <= self.end).then_some(kept)?;
        let end = start.checked_add(text.len()).filter(|&end| end <= MAX_NAME_BYTES)?;
        self.buffer[start..end].copy_from_slice(text);
        self.end = end;
        Some(&self.buffer[..end])
    }
}

#[cfg(test)]
pub(in crate::tables) mod tests {
    use super::*;

    /// A table in which every code is itself but those given.
    pub fn table(tokens: &[(u8, &str)]) -> (Vec<u8>, Vec<u8>) {
        let (mut table, mut index) = (Vec::new(), Vec::new());
        for code in 0..=255 {
            index.extend_from_slice(&(table.len() as u16).to_ne_bytes());
            match tokens.iter().find(|(token, _)| *token == code) {
                Some((_, text)) => table.extend_from_slice(text.as_bytes()),
                None if code != 0 => table.push(code),
                None => {}
            }
            table.push(0);
        }
        (table, index)
    }

    #[test]
    fn codes_expand_to_their_texts() {
        let (table, index) = table(&[(1, "tkvm_"), (2, "a_rather_long_token_of_30_bytes")]);
        let tokens = Tokens::parse(&table, &index).unwrap();
        let mut expander = Expander::new();
        assert_eq!(
            expander.expand(&tokens, b"\x01\x02x"),
            Some((b't', &b"kvm_a_rather_long_token_of_30_bytesx"[..]))
        );
        assert_eq!(expander.expand(&tokens, b"T"), Some((b'T', &b""[..])));
        assert_eq!(expander.expand(&tokens, b""), None);
        assert_eq!(expander.expand(&tokens, b"\0\0"), None);
        assert_eq!(expander.expand(&tokens, &[2; 16]).unwrap().1.len(), 16 * 31 - 1);
        assert_eq!(expander.expand(&tokens, &[2; 17]), None);
    }

    #[test]
    fn tokens_outside_their_table_are_odd() {
        let (table, index) = table(&[]);
        assert!(Tokens::parse(&table[..table.len() - 1], &index).is_err());
        assert!(Tokens::parse(&table, &index[..510]).is_err());
        assert!(Tokens::parse(&table, &[0xff; 512]).is_err());
        assert!(Tokens::parse(&[], &index).is_err());
        let long = [vec![b'x'; MAX_NAME_BYTES], vec![0]].concat();
        assert!(Tokens::parse(&long, &[0; 512]).is_err());
    }
}
