//! Which compressed names can match at all, told by their first tokens: what people look for is nearly always a
//! prefix, and most names are done with after one look at one byte.

use crate::tables::tokens::Tokens;

/// With more heads than this, comparing them one by one would take longer than expanding the name.
pub const MAX_COMPARED: usize = 32;

/// What stands before the names of the padding before functions. There are as many as functions.
const PADDING: [&[u8]; 2] = [b"__pfx_", b"__cfi_"];

/// A filter for symbols whose names begin with one of some heads.
#[derive(Debug)]
pub struct HeadFilter<'p> {
    first: [Verdict; 256],
    /// None: too many to compare, or no head at all.
    compared: Option<Vec<&'p [u8]>>,
}

/// What the first token of a name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    No,
    /// The name goes on as one of the heads might.
    Maybe,
    Yes,
}

impl<'p> HeadFilter<'p> {
    /// A filter for names that begin with one of `heads`, or with none for all names, of symbols whose type
    /// `is_wanted`.
    pub fn new(tokens: &Tokens, heads: Option<&[&'p [u8]]>, is_wanted: impl Fn(u8) -> bool) -> Self {
        let mut first = [Verdict::No; 256];
        for (code, verdict) in (0..=255).zip(&mut first) {
            *verdict = match tokens.text(code) {
                [kind, head @ ..] if is_wanted(*kind) => verdict_of(head, heads),
                _ => Verdict::No,
            };
        }
        let compared = heads.filter(|heads| heads.len() <= MAX_COMPARED).map(<[_]>::to_vec);
        Self { first, compared }
    }

    /// Whether the name with these codes may match. It is sure of a no.
    #[inline(always)]
    pub fn admits(&self, tokens: &Tokens, codes: &[u8]) -> bool {
        let Some(&code) = codes.first() else { return false };
        match self.first[code as usize] {
            Verdict::No => false,
            Verdict::Yes => true,
            Verdict::Maybe => self.may_go_on(tokens, codes),
        }
    }

    #[cold]
    fn may_go_on(&self, tokens: &Tokens, codes: &[u8]) -> bool {
        match &self.compared {
            Some(heads) => heads.iter().any(|head| begins_with(tokens, codes, head)),
            None => true,
        }
    }
}

/// `start` is how a name starts: all that its first token says of it.
fn verdict_of(start: &[u8], heads: Option<&[&[u8]]>) -> Verdict {
    let Some(heads) = heads else {
        let padding = PADDING.iter().any(|padding| start.starts_with(padding));
        return if padding { Verdict::No } else { Verdict::Yes };
    };
    if heads.iter().any(|head| start.starts_with(head)) {
        Verdict::Yes
    } else if heads.iter().any(|head| head.starts_with(start)) {
        Verdict::Maybe
    } else {
        Verdict::No
    }
}

/// Whether the name, without its type letter, begins with `head`.
fn begins_with(tokens: &Tokens, codes: &[u8], head: &[u8]) -> bool {
    let mut rest = head;
    let mut type_letter = 1;
    for &code in codes {
        let text = tokens.text(code);
        let text = &text[type_letter.min(text.len())..];
        if text.len() >= rest.len() {
            return text.starts_with(rest);
        }
        match rest.strip_prefix(text) {
            Some(left) => rest = left,
            None => return false,
        }
        type_letter = 0;
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{is_function_type, tokens::tests::table};

    fn tokens() -> Tokens {
        let (table, index) = table(&[(1, "tk"), (2, "T__pfx_"), (3, "vm_x"), (4, "dk")]);
        Tokens::parse(&table, &index).unwrap()
    }

    #[test]
    fn heads_are_found_across_tokens() {
        let tokens = tokens();
        let filter = HeadFilter::new(&tokens, Some(&[b"kvm_", b"vfs"]), is_function_type);
        for (codes, expected) in [
            (&b"\x01\x03"[..], true),
            (b"\x01vm_", true),
            (b"tkvm_a", true),
            (b"\x01vm", false),
            (b"\x01v", false),
            (b"\x04\x03", false),
            (b"Tvfs_read", true),
            (b"Tvf", false),
            (b"dvfs", false),
            (b"", false),
        ] {
            assert_eq!(filter.admits(&tokens, codes), expected, "{codes:?}");
        }
    }

    #[test]
    fn without_heads_all_functions_but_padding() {
        let tokens = tokens();
        let filter = HeadFilter::new(&tokens, None, is_function_type);
        assert!(filter.admits(&tokens, b"tx") && filter.admits(&tokens, b"\x01"));
        assert!(!filter.admits(&tokens, b"\x02x") && !filter.admits(&tokens, b"Dx"));
        let padding = HeadFilter::new(&tokens, Some(&[b"__pfx_kvm"]), is_function_type);
        assert!(padding.admits(&tokens, b"\x02kvm_x"));
    }

    #[test]
    fn many_heads_are_left_to_the_matcher() {
        let tokens = tokens();
        let heads: Vec<&[u8]> = vec![b"kvm_abc"; MAX_COMPARED + 1];
        let filter = HeadFilter::new(&tokens, Some(&heads), is_function_type);
        assert!(filter.admits(&tokens, b"\x01q") && !filter.admits(&tokens, b"\x04"));
    }
}
