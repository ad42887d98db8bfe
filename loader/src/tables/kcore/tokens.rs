//! The kernel's token table: each byte of a compressed name stands for a piece of text
//! (`kallsyms_expand_symbol` in `kernel/kallsyms.c`; `scripts/kallsyms.c` makes the table).

use super::memory::odd;
use crate::error::Result;

/// The longest expanded name, its type letter included: `KSYM_NAME_LEN` is 512 since 6.1.
pub const MAX_NAME_BYTES: usize = 512;

/// Nearly all tokens are shorter; a copy of so many bytes is one instruction.
const SHORT_BYTES: usize = 16;

/// The 256 tokens, expanded.
#[derive(Debug)]
pub struct Tokens {
    /// The first bytes of each token, for a copy without a loop.
    short: Box<[[u8; SHORT_BYTES]; 256]>,
    lengths: [u16; 256],
    texts: Vec<Box<[u8]>>,
}

impl Tokens {
    /// Reads the table and its index: 256 places in the table, each the start of a NUL-terminated text.
    ///
    /// # Errors
    ///
    /// `Malformed` where a token starts or ends outside the table or is longer than a name.
    pub fn parse(table: &[u8], index: &[u8]) -> Result<Self> {
        let mut tokens =
            Self { short: Box::new([[0; SHORT_BYTES]; 256]), lengths: [0; 256], texts: Vec::new() };
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
            tokens.lengths[code] = text.len() as u16;
            tokens.texts.push(text.into());
        }
        Ok(tokens)
    }

    /// What `code` stands for.
    pub fn text(&self, code: u8) -> &[u8] {
        &self.texts[code as usize]
    }
}

/// A buffer that names are expanded into, one after the other.
#[derive(Debug)]
pub struct Expander {
    // Room for a short copy that starts at the last byte of the longest name.
    buffer: [u8; MAX_NAME_BYTES + SHORT_BYTES],
}

impl Expander {
    /// An empty buffer.
    pub fn new() -> Self {
        Self { buffer: [0; MAX_NAME_BYTES + SHORT_BYTES] }
    }

    /// The type letter and the name that `codes` stand for; nothing where they stand for no name at all, or
    /// one longer than any.
    #[inline]
    pub fn expand(&mut self, tokens: &Tokens, codes: &[u8]) -> Option<(u8, &[u8])> {
        let mut end = 0;
        for &code in codes {
            let length = tokens.lengths[code as usize] as usize;
            if end + length > MAX_NAME_BYTES {
                return None;
            }
            self.buffer[end..end + SHORT_BYTES].copy_from_slice(&tokens.short[code as usize]);
            if length > SHORT_BYTES {
                self.buffer[end..end + length].copy_from_slice(tokens.text(code));
            }
            end += length;
        }
        let (kind, name) = self.buffer[..end].split_first()?;
        Some((*kind, name))
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
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
