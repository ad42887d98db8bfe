//! Patterns as the user wrote them, and the files that hold many.

use std::{fmt, path::Path};

use crate::error::{Error, ErrorKind, Result, quoted};

/// One pattern as written, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternText {
    text: String,
    /// File and line, for patterns that come from one.
    place: Option<String>,
    /// It is a symbol's name, whatever characters are in it, and nobody typed it.
    symbol: bool,
}

impl PatternText {
    /// A pattern from the command line.
    pub fn argument(text: impl Into<String>) -> Self {
        Self { text: text.into(), place: None, symbol: false }
    }

    /// The name of a symbol, of `module` alone if there is one: what a module's file says. That it may be data,
    /// and match no function, is no cause for concern.
    pub fn symbol(module: Option<&str>, name: &str) -> Self {
        let text = module.map_or_else(|| name.to_owned(), |module| format!("{module}:{name}"));
        Self { text, place: None, symbol: true }
    }

    /// Whether it was made by [`Self::symbol`].
    pub fn is_symbol(&self) -> bool {
        self.symbol
    }

    /// The pattern itself.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The module that it names before a `:`, and the pattern for the function.
    pub fn parts(&self) -> (Option<&str>, &str) {
        split_module(&self.text)
    }

    /// What every name that the pattern matches begins with, as far as that is plain.
    pub fn literal_head(&self) -> &str {
        let (_, function) = self.parts();
        let end = function.find(super::glob::is_special).unwrap_or(function.len());
        &function[..end]
    }

    /// A fault in this pattern at byte `at`, shown under it; of a long pattern, what is around it.
    pub(super) fn fault(&self, at: usize, what: &str, fix: &str) -> Error {
        const AROUND: usize = 60;
        let place = self.place.as_ref().map_or(String::new(), |place| format!("{place}: "));
        let before = self.text.get(..at).unwrap_or(&self.text);
        let after = &self.text[before.len()..];
        let skipped = before.chars().count().saturating_sub(AROUND);
        let (start, before): (_, String) =
            (if skipped > 0 { "…" } else { "" }, before.chars().skip(skipped).collect());
        let end = if after.chars().nth(AROUND).is_some() { "…" } else { "" };
        let after: String = after.chars().take(AROUND).collect();
        let column = start.chars().count() + before.chars().count();
        let arrow = " ".repeat(column) + "^";
        let message = format!("{place}bad pattern: {what}\n  {start}{before}{after}{end}\n  {arrow}");
        Error::new(ErrorKind::Usage, message).with_hint(fix)
    }
}

/// The pattern in quotes, or as much of it as fits into a line.
impl fmt::Display for PatternText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        match self.text.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "'{}…'", &self.text[..end]),
            None => write!(f, "'{}'", self.text),
        }
    }
}

/// `kvm:kvm_*` → `kvm` and `kvm_*`. Module names are made of few characters, so a `:` after any other, as in
/// `(?:a|b)` or `[[:alpha:]]`, belongs to the pattern.
fn split_module(text: &str) -> (Option<&str>, &str) {
    match text.split_once(':') {
        Some((module, function)) if !module.is_empty() && module.chars().all(in_module_pattern) => {
            (Some(module), function)
        }
        _ => (None, text),
    }
}

/// Whether a pattern for modules may hold the character.
pub(super) fn in_module_pattern(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '*' | '?')
}

/// What some editors put before the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads the patterns in `contents`, the file at `path`: one a line, as on the command line or as the kernel's
/// own lists print functions (`fn`, `fn [module]`, `ADDRESS fn [module]`). Empty lines and lines that start with
/// `#` are let be.
///
/// # Errors
///
/// `Usage` for a file without patterns, and with file, line and text for a line of another form.
pub fn parse_file(path: &Path, contents: &[u8]) -> Result<Vec<PatternText>> {
    let contents = contents.strip_prefix(BYTE_ORDER_MARK).unwrap_or(contents);
    let mut patterns = Vec::new();
    for (number, line) in (1..).zip(contents.split(|&byte| byte == b'\n')) {
        let place = format!("{}:{number}", path.display());
        let bad = |what| {
            Error::new(ErrorKind::Usage, format!("{place}: {what}: {}", quoted(line.trim_ascii())))
                .with_hint("one a line: name, glob, module:glob, or name [module]")
        };
        let line = std::str::from_utf8(line).map_err(|_| bad("not UTF-8"))?.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let text = parse_line(line).ok_or_else(|| bad("not a function or a pattern"))?;
        patterns.push(PatternText { text, place: Some(place), symbol: false });
    }
    if patterns.is_empty() {
        return Err(Error::new(ErrorKind::Usage, format!("{} holds no patterns", path.display()))
            .with_hint("one a line: name, glob, module:glob, or name [module]"));
    }
    Ok(patterns)
}

/// The pattern in a line: `fn [module]` becomes `module:fn`.
fn parse_line(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // A name of 16 hexadecimal digits could be an address, but only before another word.
    let words = match words[..] {
        [address, ref rest @ ..] if !rest.is_empty() && is_address(address) => rest,
        _ => &words[..],
    };
    match *words {
        [name] => Some(name.to_owned()),
        [name, module] => {
            let module = module.strip_prefix('[')?.strip_suffix(']')?;
            (!module.is_empty() && module.chars().all(in_module_pattern)).then(|| format!("{module}:{name}"))
        }
        _ => None,
    }
}

fn is_address(word: &str) -> bool {
    word.len() == 16 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_pattern_the_faults_surroundings_are_shown() {
        let text = "a".repeat(70_000) + "[" + &"b".repeat(70_000);
        let error = PatternText::argument(text).fault(70_000, "this [ has no ]", "fix").to_string();
        let shown = format!("  …{}[{}…\n  {}^", "a".repeat(60), "b".repeat(59), " ".repeat(61));
        assert_eq!(error, format!("bad pattern: this [ has no ]\n{shown}"));
    }

    #[test]
    fn a_module_stands_before_a_colon() {
        for (text, parts) in [
            ("kvm:kvm_*", (Some("kvm"), "kvm_*")),
            ("vmlinux:*", (Some("vmlinux"), "*")),
            ("nf-*:a", (Some("nf-*"), "a")),
            ("(?:a|b)", (None, "(?:a|b)")),
            ("[[:alpha:]]", (None, "[[:alpha:]]")),
            (":a", (None, ":a")),
            ("a", (None, "a")),
        ] {
            assert_eq!(split_module(text), parts);
        }
    }

    fn read(text: &str) -> Result<Vec<String>> {
        Ok(parse_file(Path::new("f"), text.as_bytes())?.into_iter().map(|p| p.text).collect())
    }

    #[test]
    fn files_hold_what_the_kernel_prints_and_what_users_write() {
        let text = "# mine\nvfs_read\r\n\nkvm_init [kvm]\nxfs_*\t[xfs]\nffffffff81000004 do_one [m]\nkvm:*x\n  a  \n";
        assert_eq!(read(text).unwrap(), ["vfs_read", "kvm:kvm_init", "xfs:xfs_*", "m:do_one", "kvm:*x", "a"]);
        assert_eq!(read("ffffffff81000004").unwrap(), ["ffffffff81000004"]);
        assert_eq!(read("\u{feff}vfs_read\n").unwrap(), ["vfs_read"]);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, message) in [
            ("a\nb c\n", "f:2: not a function or a pattern: “b c”"),
            ("a [m] x", "f:1: not a function or a pattern: “a [m] x”"),
            ("a []", "f:1: not a function or a pattern: “a []”"),
            ("# nothing\n", "f holds no patterns"),
            ("", "f holds no patterns"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (ErrorKind::Usage, message.to_owned()));
        }
        assert!(
            parse_file(Path::new("f"), b"a\n\xff\n").unwrap_err().to_string().starts_with("f:2: not UTF-8")
        );
    }

    #[test]
    fn the_head_is_what_comes_before_anything_special() {
        let head = |text| PatternText::argument(text).literal_head().to_owned();
        assert_eq!(
            [head("kvm_*x"), head("m:kvm?"), head("vfs_read"), head("*")],
            ["kvm_", "kvm", "vfs_read", ""]
        );
    }
}
