//! Which functions the user means.
//!
//! A pattern is a name, a glob or a regular expression, with a module before a `:` if it is for one module only;
//! `vmlinux` is the core kernel. It matches a function under its own name and under its
//! [base name](variant::base_name), so that `foo` also means `foo.isra.0`. Names are bytes. Pure: no I/O.

mod candidates;
mod glob;
pub mod near;
mod text;
pub mod variant;

use candidates::Candidates;
use glob::NamePattern;
pub use glob::Syntax;
pub use text::{PatternText, parse_file};

use crate::error::Result;

/// What patterns call the core kernel.
pub const CORE: &[u8] = b"vmlinux";

/// What kallsyms shows as modules and is generated code: nothing there can be traced.
const GENERATED: [&[u8]; 3] = [b"bpf", b"__builtin__ftrace", b"__builtin__kprobes"];

/// All patterns of a run, compiled.
#[derive(Debug)]
pub struct PatternSet {
    include: Patterns,
    exclude: Patterns,
    modules: Vec<ModulePattern>,
}

/// Patterns, and which of them may match a name.
#[derive(Debug)]
struct Patterns {
    all: Vec<Pattern>,
    candidates: Candidates,
}

#[derive(Debug)]
struct Pattern {
    text: PatternText,
    module: Option<ModulePattern>,
    name: NamePattern,
}

/// A pattern for module names, in which `-` and `_` are the same.
#[derive(Debug)]
struct ModulePattern {
    text: String,
    name: NamePattern,
}

impl PatternSet {
    /// Compiles what to select, what to leave out, and the modules to stay within (none: all).
    ///
    /// # Errors
    ///
    /// `Usage`, with the pattern, the place of the fault in it and a way out.
    pub fn new(
        syntax: Syntax,
        include: &[PatternText],
        exclude: &[PatternText],
        modules: &[String],
    ) -> Result<Self> {
        let modules = modules
            .iter()
            .map(|m| ModulePattern::compile(&PatternText::argument(m), m))
            .collect::<Result<_>>()?;
        let (include, exclude) = (Patterns::compile(syntax, include)?, Patterns::compile(syntax, exclude)?);
        Ok(Self { include, exclude, modules })
    }

    /// How many patterns say what to select.
    pub fn len(&self) -> usize {
        self.include.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Starts to match.
    pub fn matcher(&self) -> Matcher<'_> {
        Matcher { set: self, used: vec![false; self.include.all.len()], verdict: ModuleVerdict::default() }
    }

    /// Whether a pattern or `-m` spells out what kallsyms shows as a module and is generated code. Nothing there
    /// can be traced, and only the text files have it.
    pub fn names_generated_code(&self) -> bool {
        GENERATED.iter().any(|module| self.names_module(module))
    }

    /// The modules that patterns and `-m` name without a wildcard.
    pub fn named_modules(&self) -> impl Iterator<Item = &str> {
        let in_patterns = self.include.all.iter().filter_map(|pattern| pattern.module.as_ref());
        let exact = |module: &&ModulePattern| matches!(module.name, NamePattern::Exact(_));
        self.modules
            .iter()
            .chain(in_patterns)
            .filter(exact)
            .map(|module| module.text.as_str())
            .filter(|m| m.as_bytes() != CORE)
    }
}

impl Patterns {
    fn compile(syntax: Syntax, texts: &[PatternText]) -> Result<Self> {
        let all: Vec<_> = texts.iter().map(|text| Pattern::compile(syntax, text)).collect::<Result<_>>()?;
        let candidates = Candidates::new(all.iter().map(|pattern| &pattern.name));
        Ok(Self { all, candidates })
    }

    /// Whether any of them matches.
    fn match_any(&self, module: &[u8], name: &[u8], base: &[u8]) -> bool {
        let exact = |name| self.candidates.exact(name).iter().copied();
        let mut all = exact(name).chain(exact(base)).chain(self.candidates.others(name));
        all.any(|number| self.all[number].matches(module, name, base))
    }
}

impl Pattern {
    fn compile(syntax: Syntax, text: &PatternText) -> Result<Self> {
        let (module, function) = text.parts();
        let module = module.map(|module| ModulePattern::compile(text, module)).transpose()?;
        let name = if text.is_symbol() {
            NamePattern::Exact(function.as_bytes().into())
        } else {
            NamePattern::compile(syntax, text, function)?
        };
        Ok(Self { text: text.clone(), module, name })
    }

    fn is_for(&self, module: &[u8]) -> bool {
        self.module.as_ref().is_none_or(|pattern| pattern.matches(module))
    }

    /// How the names that match start. Base names begin as the names do, so it holds for both.
    fn starts(&self) -> Vec<Start<'_>> {
        match &self.name {
            NamePattern::Exact(name) => vec![Start::Name(name)],
            name => name.heads().into_iter().map(Start::Head).collect(),
        }
    }

    fn matches(&self, module: &[u8], name: &[u8], base: &[u8]) -> bool {
        self.is_for(module)
            && (self.name.matches(name) || (base.len() < name.len() && self.name.matches(base)))
    }
}

impl ModulePattern {
    fn compile(whole: &PatternText, module: &str) -> Result<Self> {
        if let Some(at) = module.find(|c| !text::in_module_pattern(c)) {
            return Err(whole.fault(
                at,
                "not in a module's name",
                "letters, digits, _ and -, with * and ? as wildcards",
            ));
        }
        let name =
            NamePattern::compile(Syntax::Glob, &PatternText::argument(module), &module.replace('-', "_"))?;
        Ok(Self { text: module.to_owned(), name })
    }

    fn matches(&self, module: &[u8]) -> bool {
        if module.contains(&b'-') {
            let plain: Vec<u8> = module.iter().map(|&b| if b == b'-' { b'_' } else { b }).collect();
            return self.name.matches(&plain);
        }
        self.name.matches(module)
    }

    fn names(&self, module: &[u8]) -> bool {
        matches!(&self.name, NamePattern::Exact(name) if **name == *module)
    }
}

/// Where functions that match can be.
#[derive(Debug, PartialEq, Eq)]
pub struct Reach<'p> {
    /// How their names start, where that is known of all in a module.
    pub starts: Vec<Start<'p>>,
    /// What to do about each module.
    pub modules: Vec<Search>,
}

/// What to do about a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Search {
    /// Nothing in it can match.
    Nowhere,
    /// The names that match start in one of some ways.
    AtStarts,
    /// All of its functions are to be looked at.
    Everywhere,
}

/// How a name starts that matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start<'p> {
    /// It is this name, or a variant of it.
    Name(&'p [u8]),
    /// It begins so.
    Head(&'p [u8]),
}

impl<'p> Start<'p> {
    /// What the name begins with.
    pub fn head(self) -> &'p [u8] {
        match self {
            Self::Name(head) | Self::Head(head) => head,
        }
    }
}

/// Matches functions one after the other and remembers which patterns were of use.
#[derive(Debug)]
pub struct Matcher<'p> {
    set: &'p PatternSet,
    used: Vec<bool>,
    verdict: ModuleVerdict,
}

/// Whether functions of a module are wanted at all. They come in runs, so the last answer is nearly always the
/// next.
#[derive(Debug, Default)]
struct ModuleVerdict {
    module: Option<Vec<u8>>,
    wanted: bool,
}

impl<'p> Matcher<'p> {
    /// Whether the function called `name` in `module` ([`CORE`] for the core kernel) is selected.
    pub fn matches(&mut self, module: &[u8], name: &[u8]) -> bool {
        self.wants_module(module) && self.selects(module, name)
    }

    /// The same in a module that may be searched, as [`Self::reach`] says.
    pub fn selects(&mut self, module: &[u8], name: &[u8]) -> bool {
        let base = variant::base_name(name);
        // Parts and padding of functions can be spelled out, to be told that they can't be traced.
        let function = variant::is_function(name);
        let selected = self.exact_matches(module, name, |_| true)
            | (base.len() < name.len()
                && function
                && self.exact_matches(module, base, |text| !text.is_symbol()))
            | (function && self.general_matches(module, name, base));
        selected && !self.set.exclude.match_any(module, name, base)
    }

    /// Where in these modules ([`CORE`] is one) functions that match are to be looked for.
    pub fn reach(&mut self, modules: &[&[u8]]) -> Reach<'p> {
        let wanted: Vec<bool> = modules.iter().map(|module| self.wants_module(module)).collect();
        let mut reach = Reach { starts: Vec::new(), modules: vec![Search::Nowhere; modules.len()] };
        for pattern in &self.set.include.all {
            let starts = pattern.starts();
            let how = if starts.is_empty() { Search::Everywhere } else { Search::AtStarts };
            for (index, module) in modules.iter().enumerate() {
                if wanted[index] && reach.modules[index] < how && pattern.is_for(module) {
                    reach.modules[index] = how;
                }
            }
            reach.starts.extend(starts);
        }
        reach
    }

    /// The patterns that have matched nothing so far.
    pub fn unmatched(&self) -> impl Iterator<Item = &'p PatternText> {
        self.set
            .include
            .all
            .iter()
            .zip(&self.used)
            .filter(|(_, used)| !**used)
            .map(|(pattern, _)| &pattern.text)
    }

    fn wants_module(&mut self, module: &[u8]) -> bool {
        if self.verdict.module.as_deref() != Some(module) {
            let within = self.set.modules.is_empty() || self.set.modules.iter().any(|m| m.matches(module));
            let generated = GENERATED.contains(&module) && !self.set.names_module(module);
            self.verdict = ModuleVerdict { module: Some(module.to_vec()), wanted: within && !generated };
        }
        self.verdict.wanted
    }

    fn exact_matches(&mut self, module: &[u8], name: &[u8], counts: impl Fn(&PatternText) -> bool) -> bool {
        let (set, mut selected) = (self.set, false);
        for &number in set.include.candidates.exact(name) {
            let pattern = &set.include.all[number];
            if counts(&pattern.text) && pattern.is_for(module) {
                self.used[number] = true;
                selected = true;
            }
        }
        selected
    }

    /// Goes on after the first match only for patterns that have not been of use yet.
    fn general_matches(&mut self, module: &[u8], name: &[u8], base: &[u8]) -> bool {
        let mut selected = false;
        let set = self.set;
        let include = &set.include;
        for number in include.candidates.others(name) {
            if !(selected && self.used[number]) && include.all[number].matches(module, name, base) {
                self.used[number] = true;
                selected = true;
            }
        }
        selected
    }
}

impl PatternSet {
    fn names_module(&self, module: &[u8]) -> bool {
        let in_patterns = self.include.all.iter().filter_map(|pattern| pattern.module.as_ref());
        self.modules.iter().chain(in_patterns).any(|pattern| pattern.names(module))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Vec<PatternText> {
        list.iter().map(|text| PatternText::argument(*text)).collect()
    }

    fn set(include: &[&str], exclude: &[&str], modules: &[&str]) -> PatternSet {
        let modules: Vec<String> = modules.iter().map(|m| m.to_string()).collect();
        PatternSet::new(Syntax::Glob, &texts(include), &texts(exclude), &modules).unwrap()
    }

    fn selects(set: &PatternSet, module: &str, name: &str) -> bool {
        set.matcher().matches(module.as_bytes(), name.as_bytes())
    }

    #[test]
    fn patterns_are_a_union_and_excludes_win() {
        let set = set(&["kvm*", "vfs_read"], &["*lock*", "kvm:kvm_exit"], &[]);
        assert!(selects(&set, "kvm", "kvm_init") && selects(&set, "vmlinux", "vfs_read"));
        assert!(!selects(&set, "vmlinux", "vfs_write") && !selects(&set, "kvm", "kvm_lock"));
        assert!(!selects(&set, "kvm", "kvm_exit") && selects(&set, "kvm_amd", "kvm_exit"));
    }

    #[test]
    fn modules_restrict_and_dashes_do_not_matter() {
        let in_module = set(&["kvm-amd:*", "vmlinux:v*"], &[], &[]);
        assert!(selects(&in_module, "kvm_amd", "x") && selects(&in_module, "vmlinux", "vfs"));
        assert!(!selects(&in_module, "kvm", "x") && !selects(&in_module, "kvm", "vfs"));
        let restricted = set(&["*"], &[], &["nf*", "xfs"]);
        assert!(selects(&restricted, "nf-x", "a") && selects(&restricted, "xfs", "a"));
        assert!(!selects(&restricted, "vmlinux", "a"));
    }

    #[test]
    fn variants_belong_to_their_base_and_parts_do_not() {
        let exact = set(&["foo"], &[], &[]);
        assert!(selects(&exact, "vmlinux", "foo.isra.0") && selects(&exact, "vmlinux", "foo.llvm.123"));
        assert!(!selects(&exact, "vmlinux", "foo.cold") && !selects(&exact, "vmlinux", "__pfx_foo"));
        let glob = set(&["*oo"], &[], &[]);
        assert!(selects(&glob, "vmlinux", "foo.constprop.0") && !selects(&glob, "vmlinux", "__pfx_foo"));
        assert!(selects(&set(&["foo.cold"], &[], &[]), "vmlinux", "foo.cold"));
        assert!(!selects(&set(&["*"], &["foo"], &[]), "vmlinux", "foo.isra.0"));
    }

    #[test]
    fn the_reach_says_where_to_look() {
        let reach = |include: &[&str], modules: &[&str]| {
            let set = set(include, &[], modules);
            let reach = set.matcher().reach(&[CORE, b"kvm", b"xfs", b"bpf"]);
            let starts = reach.starts.iter().map(|start| match start {
                Start::Name(name) => format!("={}", String::from_utf8_lossy(name)),
                Start::Head(head) => String::from_utf8_lossy(head).into_owned(),
            });
            (starts.collect::<Vec<_>>().join(" "), reach.modules)
        };
        use Search::{AtStarts, Everywhere, Nowhere};
        let told = |starts: &str, modules: [Search; 4]| (starts.to_owned(), modules.to_vec());
        assert_eq!(
            reach(&["kvm*", "vfs_read", "a?c", "{kvm,xfs}_*"], &[]),
            told("kvm =vfs_read a kvm_ xfs_", [AtStarts, AtStarts, AtStarts, Nowhere])
        );
        assert_eq!(reach(&["kvm*", "*read"], &["xfs"]), told("kvm", [Nowhere, Nowhere, Everywhere, Nowhere]));
        assert_eq!(reach(&["kvm*", "xfs:*"], &[]), told("kvm", [AtStarts, AtStarts, Everywhere, Nowhere]));
        assert_eq!(reach(&["kvm:*"], &[]), told("", [Nowhere, Everywhere, Nowhere, Nowhere]));
        assert_eq!(reach(&["bpf:*"], &[]), told("", [Nowhere, Nowhere, Nowhere, Everywhere]));
    }

    #[test]
    fn thousands_of_patterns_select_as_each_would() {
        let texts: Vec<String> = (0..2000).map(|i| format!("fn{i}_*")).collect();
        let include: Vec<&str> = texts.iter().map(String::as_str).chain(["vfs_read", "*_tail"]).collect();
        let set = set(&include, &["fn7_x", "fn1999_*", "*bad*"], &[]);
        assert!(selects(&set, "vmlinux", "fn77_x") && selects(&set, "vmlinux", "a_tail"));
        assert!(selects(&set, "vmlinux", "vfs_read.isra.0") && selects(&set, "vmlinux", "fn1_y.constprop.0"));
        for name in ["fn7_x", "fn7_x.isra.0", "fn1999_a", "fn3_bad", "fn2000_a", "vfs_reads"] {
            assert!(!selects(&set, "vmlinux", name), "{name}");
        }
    }

    #[test]
    fn generated_code_is_only_selected_by_name() {
        assert!(!selects(&set(&["*"], &[], &[]), "bpf", "bpf_prog_1"));
        assert!(selects(&set(&["bpf:*"], &[], &[]), "bpf", "bpf_prog_1"));
    }

    #[test]
    fn symbols_are_names_whatever_the_syntax() {
        let symbols = [PatternText::symbol(Some("kvm"), "a.b*"), PatternText::symbol(None, "vfs_read")];
        let set = PatternSet::new(Syntax::Regex, &symbols, &[], &[]).unwrap();
        assert!(
            selects(&set, "kvm", "a.b*") && !selects(&set, "kvm", "aXb") && !selects(&set, "xfs", "a.b*")
        );
        assert!(selects(&set, "vmlinux", "vfs_read") && !selects(&set, "vmlinux", "vfs_read.part.0"));
    }

    #[test]
    fn patterns_of_no_use_are_known() {
        let set = set(&["a*", "b", "ab*", "kvm:c", "zz"], &[], &[]);
        let mut matcher = set.matcher();
        for (module, name) in [("vmlinux", "abc"), ("vmlinux", "b.isra.0"), ("vmlinux", "c")] {
            matcher.matches(module.as_bytes(), name.as_bytes());
        }
        let unused: Vec<_> = matcher.unmatched().map(PatternText::as_str).collect();
        assert_eq!(unused, ["kvm:c", "zz"]);
        assert_eq!(set.named_modules().collect::<Vec<_>>(), ["kvm"]);
    }

    #[test]
    fn a_bad_module_is_pointed_at() {
        let error = PatternSet::new(Syntax::Glob, &texts(&["*"]), &[], &["a/b".into()]).unwrap_err();
        assert!(error.to_string().ends_with("\n  a/b\n   ^"), "{error}");
    }
}
