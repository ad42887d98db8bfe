//! One pattern, compiled: the cheapest way to decide whether a name matches it.

use globset::GlobBuilder;
use memchr::memmem::Finder;
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind, Look, literal};

use super::text::PatternText;
use crate::error::Result;

/// Compiled patterns larger than this are refused: a few characters can ask for gigabytes (`(a{999}){999}`).
const MAX_COMPILED_BYTES: usize = 8 << 20;

/// How the text of a pattern is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// `*`, `?`, `[a-z]`, `[!a-z]`, `{a,b}`, and `\` before one of these for the character itself.
    Glob,
    /// Regular expressions of the `regex` crate; they match the whole name.
    Regex,
}

/// What a pattern compiles to. The first three are nearly all that people write, and cost next to nothing.
#[derive(Debug, Clone)]
pub enum NamePattern {
    /// Every name.
    Any,
    /// This name.
    Exact(Box<[u8]>),
    /// Names that begin so.
    Prefix(Box<[u8]>),
    /// Everything else.
    General(Box<General>),
}

/// A regular expression, and what can be told of a name without it.
#[derive(Debug, Clone)]
pub struct General {
    /// The name begins with one of these; nothing is known where there are none.
    heads: Vec<Box<[u8]>>,
    /// The name has this in it. Looking for it takes a tenth of the time that the expression takes.
    required: Option<Finder<'static>>,
    regex: Regex,
}

impl NamePattern {
    /// Compiles `function`, the part of `whole` after the module.
    ///
    /// # Errors
    ///
    /// `Usage`, with the place of the fault in the pattern and a way out.
    pub fn compile(syntax: Syntax, whole: &PatternText, function: &str) -> Result<Self> {
        let start = whole.as_str().len() - function.len();
        if function.is_empty() {
            let fix = match syntax {
                Syntax::Glob => "to match every function, write '*'",
                Syntax::Regex => "to match every function, write '.*'",
            };
            return Err(whole.fault(start, "it is empty", fix));
        }
        if let Some(at) = function.find(char::is_whitespace) {
            let fix = "names of functions have no white space; for one module write module:function, and quote \
                       each pattern by itself";
            return Err(whole.fault(start + at, "white space", fix));
        }
        match syntax {
            Syntax::Glob => Self::from_glob(whole, function, start),
            Syntax::Regex => Self::from_regex(whole, function, start),
        }
    }

    /// Whether `name` matches.
    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => **exact == *name,
            Self::Prefix(prefix) => name.starts_with(prefix),
            Self::General(general) => general.matches(name),
        }
    }

    /// What names that match begin with: one of several, or nothing in particular where there are none.
    pub fn heads(&self) -> Vec<&[u8]> {
        match self {
            Self::Any => Vec::new(),
            Self::Exact(head) | Self::Prefix(head) => vec![head],
            Self::General(general) => general.heads.iter().map(|head| &**head).collect(),
        }
    }

    /// Texts, one of which is in every name that matches; nothing is known where there are none.
    pub fn texts(&self) -> Vec<&[u8]> {
        match self {
            Self::General(general) if general.heads.is_empty() => {
                general.required.iter().map(Finder::needle).collect()
            }
            _ => self.heads(),
        }
    }

    fn from_glob(whole: &PatternText, function: &str, start: usize) -> Result<Self> {
        let head = function.trim_end_matches('*');
        if !head.contains(is_special) {
            return Ok(match (head.len(), function.len()) {
                (0, _) => Self::Any,
                (head_len, len) if head_len == len => Self::Exact(head.as_bytes().into()),
                _ => Self::Prefix(head.as_bytes().into()),
            });
        }
        // globset gives `**` a meaning of its own, in paths.
        let collapsed = collapse_stars(function);
        let glob = GlobBuilder::new(&collapsed)
            .literal_separator(false)
            .backslash_escape(true)
            .empty_alternates(true)
            .build()
            .map_err(|error| glob_fault(whole, function, start, error.kind()))?;
        let hir = parse(glob.regex()).map_err(|error| {
            let (_, what) = regex_fault(&error);
            whole.fault(start, &what, "split it into several")
        })?;
        Ok(Self::General(Box::new(General::compile(whole, start, hir)?)))
    }

    fn from_regex(whole: &PatternText, function: &str, start: usize) -> Result<Self> {
        let hir = parse(function).map_err(|error| {
            let (at, what) = regex_fault(&error);
            let fix = r"to match a character that is special in regular expressions, put a \ before it";
            whole.fault(start + at, &what, fix)
        })?;
        Ok(Self::General(Box::new(General::compile(whole, start, hir)?)))
    }
}

/// Parses a regular expression for names, which are bytes: `.` is any one of them.
fn parse(text: &str) -> Result<Hir, Box<regex_syntax::Error>> {
    let mut parser = regex_syntax::ParserBuilder::new();
    parser.unicode(false).utf8(false).dot_matches_new_line(true).build().parse(text).map_err(Box::new)
}

/// Whether the character means something in a glob.
pub(super) fn is_special(c: char) -> bool {
    matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\')
}

impl General {
    /// An expression that matches the whole name. What was parsed is printed anew, since around the user's own text
    /// nothing could be put: in `(?x)a#b` a parenthesis behind it would be part of the comment.
    fn compile(whole: &PatternText, start: usize, hir: Hir) -> Result<Self> {
        let hir = Hir::concat(vec![Hir::look(Look::Start), hir, Hir::look(Look::End)]);
        let mut builder = RegexBuilder::new(&hir.to_string());
        builder.unicode(false).size_limit(MAX_COMPILED_BYTES);
        let regex = builder.build().map_err(|_| {
            whole.fault(start, "it is too large when compiled", "repeat less, or split it into several")
        })?;
        let required = longest_literal(&hir).map(|text| Finder::new(text).into_owned());
        Ok(Self { heads: heads_of(&hir), required, regex })
    }

    fn matches(&self, name: &[u8]) -> bool {
        self.required.as_ref().is_none_or(|required| required.find(name).is_some())
            && self.regex.is_match(name)
    }
}

/// The literals that a match begins with, one of them at least; none where that can't be told.
fn heads_of(hir: &Hir) -> Vec<Box<[u8]>> {
    let found = literal::Extractor::new().extract(hir);
    let literals = found.literals().unwrap_or_default();
    if literals.iter().any(literal::Literal::is_empty) {
        return Vec::new();
    }
    literals.iter().map(|literal| literal.as_bytes().into()).collect()
}

/// The longest text that every match has in it, of those in the expression's own sequence.
fn longest_literal(hir: &Hir) -> Option<&[u8]> {
    match hir.kind() {
        HirKind::Literal(literal) => Some(&literal.0),
        HirKind::Capture(capture) => longest_literal(&capture.sub),
        HirKind::Concat(parts) => parts.iter().filter_map(longest_literal).max_by_key(|text| text.len()),
        _ => None,
    }
}

/// Runs of `*` mean the same as one. Those behind a `\` or within `[…]` are characters.
fn collapse_stars(glob: &str) -> String {
    let mut out = String::with_capacity(glob.len());
    let mut in_class = false;
    let mut chars = glob.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        match c {
            '\\' => out.extend(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '*' if !in_class => while chars.next_if_eq(&'*').is_some() {},
            _ => {}
        }
    }
    out
}

/// Where in a glob a fault of this kind is, what it is, and the way out.
fn glob_fault(whole: &PatternText, glob: &str, start: usize, kind: &globset::ErrorKind) -> crate::Error {
    use globset::ErrorKind::{
        DanglingEscape, InvalidRange, NestedAlternates, UnclosedAlternates, UnclosedClass, UnopenedAlternates,
    };
    let first = |c| glob.find(c).unwrap_or(0);
    let last = |c| glob.rfind(c).unwrap_or(0);
    let (at, what, fix) = match kind {
        UnclosedClass => (last('['), "this [ has no ]", r"close it, or write \[ for the character"),
        InvalidRange(low, high) => {
            let range = format!("{low}-{high}");
            (glob.find(&range).unwrap_or(0), "a range that runs backwards", "write the smaller end first")
        }
        UnopenedAlternates => (last('}'), "this } has no {", r"open it, or write \} for the character"),
        UnclosedAlternates => (first('{'), "this { has no }", r"close it, or write \{ for the character"),
        NestedAlternates => (first('{'), "alternatives within alternatives", "write each of them out"),
        DanglingEscape => (glob.len() - 1, r"nothing follows this \", r"write \\ for the character"),
        _ => (0, "not a glob", r"*  ?  [a-z]  {a,b} are special; \ takes that away"),
    };
    whole.fault(start + at, what, fix)
}

/// Where in a regular expression the fault is, and what it is.
fn regex_fault(error: &regex_syntax::Error) -> (usize, String) {
    match error {
        regex_syntax::Error::Parse(error) => (error.span().start.offset, error.kind().to_string()),
        regex_syntax::Error::Translate(error) => (error.span().start.offset, error.kind().to_string()),
        other => (0, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn compile(syntax: Syntax, text: &str) -> Result<NamePattern> {
        NamePattern::compile(syntax, &PatternText::argument(text), text)
    }

    fn glob(text: &str) -> NamePattern {
        compile(Syntax::Glob, text).unwrap()
    }

    #[test]
    fn what_people_write_needs_no_regex() {
        assert!(matches!(glob("*"), NamePattern::Any));
        assert!(matches!(glob("***"), NamePattern::Any));
        assert!(matches!(glob("vfs_read"), NamePattern::Exact(_)));
        assert!(matches!(glob("kvm**"), NamePattern::Prefix(p) if *p == *b"kvm"));
        assert!(matches!(glob("k*m"), NamePattern::General(_)));
    }

    #[test]
    fn globs_match_whole_names_of_any_bytes() {
        for (pattern, yes, no) in [
            ("*_read", &b"vfs_read"[..], &b"vfs_reads"[..]),
            ("v?s", b"v\xffs", b"vs"),
            ("[a-c]x", b"bx", b"dx"),
            ("[!a-c]x", b"dx", b"bx"),
            ("{vfs,ext4}_*", b"ext4_a", b"xfs_a"),
            ("a{,b}", b"a", b"ac"),
            (r"a\*", b"a*", b"ab"),
            ("a**b", b"a/x/b", b"a/x/c"),
            ("a[*]**b", b"a*xb", b"axb"),
            ("a*b", b"a\n\xffb", b"a"),
        ] {
            assert!(glob(pattern).matches(yes), "{pattern}");
            assert!(!glob(pattern).matches(no), "{pattern}");
        }
    }

    #[test]
    fn regexes_match_whole_names() {
        let regex = compile(Syntax::Regex, "vfs_(read|write)").unwrap();
        assert!(regex.matches(b"vfs_read") && !regex.matches(b"vfs_readv") && !regex.matches(b"_vfs_read"));
        assert!(compile(Syntax::Regex, "a|b").unwrap().matches(b"b"));
        assert!(compile(Syntax::Regex, "a.*").unwrap().matches(b"a\xff"));
        // What stands in a comment, or is set for the rest of the expression, is the user's alone.
        for text in ["(?x)vfs_read#comment", "(?i)VFS_read", "vfs_read|(?x)b#c", r"\x76fs_read"] {
            let regex = compile(Syntax::Regex, text).unwrap();
            assert!(regex.matches(b"vfs_read") && !regex.matches(b"vfs_readv"), "{text}");
        }
    }

    #[test]
    fn faults_are_pointed_at() {
        for (syntax, text, caret_at, what) in [
            (Syntax::Glob, "kvm[a-", 3, "this [ has no ]"),
            (Syntax::Glob, "kvm_{a,b", 4, "this { has no }"),
            (Syntax::Glob, "kvm}*x", 3, "this } has no {"),
            (Syntax::Glob, "x[z-a]*", 2, "a range that runs backwards"),
            (Syntax::Glob, "x*\\", 2, "nothing follows this \\"),
            (Syntax::Glob, "a b", 1, "white space"),
            (Syntax::Glob, "", 0, "it is empty"),
            (Syntax::Regex, "vfs_(read", 4, "unclosed group"),
            (Syntax::Regex, "*", 0, "repetition operator missing expression"),
            (Syntax::Regex, "(a{999}){999}", 0, "it is too large when compiled"),
        ] {
            let error = compile(syntax, text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
            let message = error.to_string();
            let lines: Vec<&str> = message.lines().collect();
            assert_eq!(
                lines,
                [
                    &format!("bad pattern: {what}"),
                    &format!("  {text}"),
                    &format!("  {}^", " ".repeat(caret_at))
                ]
            );
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn the_caret_stands_under_the_character_after_wide_ones_and_modules() {
        let whole = PatternText::argument("kvm:äö[");
        let error = NamePattern::compile(Syntax::Glob, &whole, "äö[").unwrap_err().to_string();
        assert!(error.ends_with("\n  kvm:äö[\n        ^"), "{error}");
    }

    /// `*` and `?` as anyone would write them down.
    fn naive(glob: &[u8], name: &[u8]) -> bool {
        match glob.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|skipped| naive(rest, &name[skipped..])),
            Some((c, rest)) => {
                name.split_first().is_some_and(|(n, name)| (*c == b'?' || c == n) && naive(rest, name))
            }
        }
    }

    proptest! {
        #[test]
        fn globs_agree_with_the_obvious_matcher(pattern in "[ab*?]{1,8}", name in "[ab]{0,8}") {
            prop_assert_eq!(glob(&pattern).matches(name.as_bytes()), naive(pattern.as_bytes(), name.as_bytes()));
        }

        #[test]
        fn no_text_is_too_strange(text in any::<String>(), name in any::<Vec<u8>>()) {
            for syntax in [Syntax::Glob, Syntax::Regex] {
                if let Ok(pattern) = compile(syntax, &text) {
                    pattern.matches(&name);
                }
            }
        }
    }
}
