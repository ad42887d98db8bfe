//! Lines out of a reader, without ever holding the whole file: `/proc/kallsyms` has 14 MB of them.

use std::{io::Read, path::Path};

use crate::error::{Error, ErrorKind, Result, quoted};

/// How much is asked of the kernel at once. It answers a page at a time, but a large buffer costs nothing.
const CHUNK_BYTES: usize = 256 << 10;

/// No line of a kernel table is as long: a name has at most 511 bytes.
const MAX_LINE_BYTES: usize = 4096;

const TOO_LONG: &str = "a line of more than 4096 bytes";

/// Calls `each` with every line of `reader` and its number, from 1; line ends are left out, as are empty
/// lines. `path` is for error messages.
///
/// # Errors
///
/// What reading or `each` fails with; `Malformed` for a line of more than 4096 bytes.
pub fn for_each_line(
    path: &Path,
    mut reader: impl Read,
    mut each: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES + MAX_LINE_BYTES];
    let mut held = 0;
    let mut number = 0;
    loop {
        let read = read_some(&mut reader, &mut buffer[held..]).map_err(|e| {
            Error::new(ErrorKind::Io, format!("can't read {}", path.display())).with_source(e)
        })?;
        let end = held + read;
        let mut start = 0;
        for newline in memchr::memchr_iter(b'\n', &buffer[..end]) {
            number += 1;
            if newline - start > MAX_LINE_BYTES {
                return Err(malformed(path, number, &buffer[start..newline], TOO_LONG));
            }
            if newline > start {
                each(number, &buffer[start..newline])?;
            }
            start = newline + 1;
        }
        if read == 0 {
            return if end > start { each(number + 1, &buffer[start..end]) } else { Ok(()) };
        }
        held = end - start;
        if held > MAX_LINE_BYTES {
            return Err(malformed(path, number + 1, &buffer[start..end], TOO_LONG));
        }
        buffer.copy_within(start..end, 0);
    }
}

/// One read, again when a signal came in between.
fn read_some(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match reader.read(buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The error for a line that a parser can't read: file, line, what was expected, and the text itself.
pub fn malformed(path: &Path, number: usize, line: &[u8], expected: &str) -> Error {
    let message = format!("{}:{number}: {expected}: {}", path.display(), quoted(line));
    Error::new(ErrorKind::Malformed, message).with_hint(format!(
        "if `uname -r` is a kernel with a new format, report this line; else check what wrote {}",
        path.display()
    ))
}

/// Reads `0x`-less hexadecimal digits up to the first other byte; none where there are 0 or more than 16.
pub fn hexadecimal(text: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    let mut digits = 0;
    for &byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => break,
        };
        value = (value << 4) | u64::from(digit);
        digits += 1;
        if digits > 16 {
            return None;
        }
    }
    (digits > 0).then(|| (value, &text[digits..]))
}

/// The text up to the first space or tab, and what follows behind those.
pub fn word(text: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr2(b' ', b'\t', text) {
        Some(at) => (&text[..at], text[at + 1..].trim_ascii_start()),
        None => (text, &[]),
    }
}

/// Whether the word can be a symbol's name: no NUL in it, and no white space of another kind than between fields.
pub fn is_name(word: &[u8]) -> bool {
    memchr::memchr3(0, b'\r', b'\x0b', word).is_none() && !word.is_empty()
}

/// `[kvm]` or `[kvm] whatever follows` → `kvm`.
pub fn bracketed(text: &[u8]) -> Option<&[u8]> {
    let inner = text.strip_prefix(b"[")?;
    let end = memchr::memchr(b']', inner)?;
    (end > 0).then(|| &inner[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that gives one byte at a time, as a slow pipe would.
    struct Drip<'a>(&'a [u8]);

    impl Read for Drip<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            buffer[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    fn lines(text: &[u8]) -> Vec<(usize, Vec<u8>)> {
        let mut seen = Vec::new();
        let reader = Drip(text);
        for_each_line(Path::new("t"), reader, |n, l| {
            seen.push((n, l.to_vec()));
            Ok(())
        })
        .unwrap();
        seen
    }

    #[test]
    fn a_last_line_needs_no_newline_and_empty_ones_still_count() {
        assert_eq!(lines(b"a\n\nbc"), [(1, b"a".to_vec()), (3, b"bc".to_vec())]);
        assert_eq!(lines(b""), []);
    }

    #[test]
    fn lines_that_straddle_chunks_come_whole() {
        let text: Vec<u8> = (0..100_000).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        let mut next = 0;
        for_each_line(Path::new("t"), &text[..], |number, line| {
            assert_eq!(line, format!("line {next}").as_bytes());
            next += 1;
            assert_eq!(number, next);
            Ok(())
        })
        .unwrap();
        assert_eq!(next, 100_000);
    }

    #[test]
    fn an_endless_line_is_an_error_that_names_its_place() {
        let mut text = b"ok\n".to_vec();
        text.extend(std::iter::repeat_n(b'x', 1 << 20));
        let error = for_each_line(Path::new("/proc/kallsyms"), &text[..], |_, _| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert!(error.to_string().starts_with("/proc/kallsyms:2: a line of more than"), "{error}");
    }

    #[test]
    fn hexadecimal_stops_at_the_first_other_byte() {
        assert_eq!(hexadecimal(b"ff t"), Some((255, &b" t"[..])));
        assert_eq!(hexadecimal(b"ffffffffffffffff"), Some((u64::MAX, &b""[..])));
        assert_eq!(hexadecimal(b"10000000000000000"), None);
        assert_eq!(hexadecimal(b"x"), None);
    }

    #[test]
    fn brackets_hold_a_module() {
        assert_eq!(bracketed(b"[kvm]"), Some(&b"kvm"[..]));
        assert_eq!(bracketed(b"[kvm] later field"), Some(&b"kvm"[..]));
        assert_eq!(bracketed(b"[]"), None);
        assert_eq!(bracketed(b"[kvm"), None);
        assert_eq!(bracketed(b"kvm]"), None);
    }
}
