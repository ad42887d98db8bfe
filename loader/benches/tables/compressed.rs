//! The core kernel's symbols as the kernel itself reads them (`kernel/kallsyms.c`, 6.1 to 7.3): lengths, codes, tokens,
//! and the two tables that its own search uses.

use std::cmp::Ordering;

use fastprobe::{
    Result,
    tables::{kcore::CompressedSymbols, tokens::Expander},
};

/// `KSYM_NAME_LEN`
const NAME_BYTES: usize = 512;

/// Symbols from one whose place is in `kallsyms_markers` to the next.
pub const MARKER_STEP: usize = 256;

/// The tables.
pub struct Compressed {
    names: Vec<u8>,
    /// `kallsyms_token_table`
    token_table: Vec<u8>,
    /// `kallsyms_token_index`, and the tokens' lengths, which the kernel learns from the zeros behind them.
    token_index: [(u16, u16); 256],
    /// `kallsyms_offsets`, as addresses.
    addresses: Vec<u64>,
    /// `kallsyms_markers`
    pub markers: Vec<u32>,
    /// `kallsyms_seqs_of_names`
    pub order: Vec<[u8; 3]>,
}

impl Compressed {
    /// Those of `symbols`; what the kernel's build makes of them is made here, too.
    pub fn of(symbols: &CompressedSymbols) -> Result<Self> {
        let (memory, parts) = symbols.parts();
        let token_table = memory[parts.token_table.clone()].to_vec();
        let index = memory[parts.token_index.clone()].as_chunks::<2>().0;
        let mut token_index = [(0, 0); 256];
        for (token, start) in token_index.iter_mut().zip(index) {
            let start = u16::from_ne_bytes(*start);
            let text = token_table[usize::from(start)..].iter().take_while(|&&byte| byte != 0);
            *token = (start, text.count() as u16);
        }
        let mut compressed = Self {
            names: symbols.names().to_vec(),
            token_table,
            token_index,
            addresses: (0..symbols.count()).map(|number| symbols.address(number)).collect(),
            markers: Vec::new(),
            order: Vec::new(),
        };
        let (mut at, mut plain, mut expander) = (0, Vec::new(), Expander::new());
        for number in 0..symbols.count() {
            if number.is_multiple_of(MARKER_STEP) {
                compressed.markers.push(at as u32);
            }
            let (codes, next) = compressed.codes(at);
            plain.push(symbols.expand(&mut expander, number, codes)?.1.to_vec());
            at = next;
        }
        let mut numbers: Vec<u32> = (0..symbols.count() as u32).collect();
        numbers.sort_by_key(|&number| &plain[number as usize]);
        compressed.order =
            numbers.iter().map(|number| number.to_be_bytes()).map(|[_, a, b, c]| [a, b, c]).collect();
        Ok(compressed)
    }

    /// How many symbols there are.
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// How many bytes the names take, and the tables that lead to them.
    pub fn name_bytes(&self) -> usize {
        self.names.len() + 4 * self.markers.len()
    }

    /// `kallsyms_sym_address`
    pub fn address(&self, number: usize) -> u64 {
        self.addresses[number]
    }

    /// `get_symbol_seq`: the number of the symbol at a place in the order of the names.
    #[inline]
    pub fn number(&self, place: usize) -> usize {
        let [a, b, c] = self.order[place];
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    /// The codes of the name at `at`, and where the next name is.
    #[inline]
    pub fn codes(&self, at: usize) -> (&[u8], usize) {
        codes(&self.names, at)
    }

    /// `get_symbol_offset`: where the name of a symbol is, by way of the marker before it.
    #[inline]
    pub fn place_of(&self, number: usize) -> usize {
        let mut at = self.markers[number / MARKER_STEP] as usize;
        for _ in 0..number % MARKER_STEP {
            at = self.codes(at).1;
        }
        at
    }

    #[inline]
    fn token(&self, code: u8) -> &[u8] {
        let (start, length) = self.token_index[code as usize];
        &self.token_table[usize::from(start)..usize::from(start) + usize::from(length)]
    }

    /// `kallsyms_expand_symbol`: the name without its type letter, byte by byte as the kernel does it.
    #[inline]
    pub fn expand<'b>(&self, codes: &[u8], buffer: &'b mut [u8; NAME_BYTES]) -> &'b [u8] {
        let (mut length, mut skipped) = (0, false);
        for &code in codes {
            for &byte in self.token(code) {
                if skipped {
                    buffer[length] = byte;
                    length += 1;
                } else {
                    skipped = true;
                }
            }
        }
        &buffer[..length]
    }

    /// How the name with these codes compares with `name`, looking at no more codes than it takes to tell.
    #[inline]
    pub fn compare(&self, codes: &[u8], name: &[u8]) -> Ordering {
        let (mut rest, mut type_letter) = (name, 1);
        for &code in codes {
            let token = &self.token(code)[type_letter..];
            type_letter = 0;
            let common = token.len().min(rest.len());
            match token[..common].cmp(&rest[..common]) {
                Ordering::Equal if token.len() > rest.len() => return Ordering::Greater,
                Ordering::Equal => rest = &rest[common..],
                different => return different,
            }
        }
        if rest.is_empty() { Ordering::Equal } else { Ordering::Less }
    }
}

/// A buffer for [`Compressed::expand`].
pub fn buffer() -> [u8; NAME_BYTES] {
    [0; NAME_BYTES]
}

/// The codes of the name at `at` among `names`, and where the next name is.
#[inline]
pub fn codes(names: &[u8], at: usize) -> (&[u8], usize) {
    let first = names[at] as usize;
    let (start, length) = if first & 0x80 == 0 {
        (at + 1, first)
    } else {
        (at + 2, first & 0x7f | usize::from(names[at + 1]) << 7)
    };
    (&names[start..start + length], start + length)
}
