//! What a kernel has: its functions, where ftrace can hook them, and where a probe is forbidden.
//!
//! [`Tables::read`] reads each of the kernel's tables once; [`Tables::matching`] chooses from them in memory.

mod blacklist;
pub mod cache;
mod files;
pub mod index;
pub mod kcore;
mod matches;
pub mod snapshot;
mod source;
mod symbols;
mod text;
pub mod tokens;

pub use blacklist::Blacklist;
use cache::{CachedTables, Counts, Folder, Kept, Key};
pub use files::Root;
pub(crate) use files::open_regular;
use kcore::KcoreTables;
pub use matches::{Facts, Match, Matches};
pub use source::{Source, Wish};
pub use symbols::{CORE_MODULE, Function, ModuleId};
use text::TextTables;

use crate::{
    error::{Error, ErrorKind, Result},
    pattern::{Matcher, PatternSet},
};

/// How far an ftrace record may lie behind the symbol that it belongs to, in bytes: 0, or on x86-64 with
/// indirect branch tracking the 4 bytes of `endbr64` (`FTRACE_MCOUNT_MAX_OFFSET`,
/// `arch/x86/include/asm/ftrace.h`, 6.1 to 7.3). A record further away belongs to a function that the linker
/// removed.
pub const MAX_ENTRY_OFFSET: u64 = 4;

/// Whether symbols of this type are functions: `t`, `T`, `w`, `W`.
pub fn is_function_type(kind: u8) -> bool {
    matches!(kind, b't' | b'T' | b'w' | b'W')
}

/// What in a kernel's tables is not as it is known: the reason to take them from elsewhere.
fn odd(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, what)
}

/// A kernel's tables, in memory.
#[derive(Debug)]
pub struct Tables {
    tables: Held,
    source: Source,
    /// What the cache would be good for, where one can be.
    key: Option<Key>,
    warnings: Vec<Error>,
    fallbacks: Vec<Error>,
}

#[derive(Debug)]
enum Held {
    Kcore(Box<KcoreTables>),
    Cached(Box<CachedTables>, Folder),
    Text(Box<TextTables>),
}

impl Tables {
    /// Reads the tables below `root` from the fastest source that works and that `wish` allows: the cache in
    /// `cache` (none for a saved copy), the kernel's memory, its text files. Where it is known which `patterns` they
    /// are for, what helps to find many names is read too.
    ///
    /// # Errors
    ///
    /// `Unsupported` and `Permission` where a file isn't there or may not be read, or all addresses are
    /// hidden; `Malformed` for what can't be understood. A blacklist that can't be opened is a
    /// [warning](Self::warnings).
    pub fn read(
        root: &Root,
        cache: Option<&Folder>,
        wish: Wish,
        patterns: Option<&PatternSet>,
    ) -> Result<Self> {
        let allows = |source| wish == Wish::Auto || wish == Wish::Only(source);
        let mut tables = Self {
            tables: Held::Text(Box::default()),
            source: Source::Text,
            key: None,
            warnings: Vec::new(),
            fallbacks: Vec::new(),
        };
        if wish == Wish::Only(Source::Cache) && cache.is_none() {
            return Err(Error::new(ErrorKind::Usage, "there is no cache of a saved copy")
                .with_hint("--source kcore or text, with --root"));
        }
        if let Some(cache) = cache.filter(|_| allows(Source::Cache)) {
            match tables.load(root, cache, wish == Wish::Auto) {
                Ok(()) => return Ok(tables),
                Err(error) if wish != Wish::Auto => return Err(error),
                Err(error) => tables.fallbacks.push(error),
            }
        }
        if allows(Source::Kcore) {
            match tables.read_kcore(root, patterns) {
                Ok(()) => return Ok(tables),
                Err(error) if wish != Wish::Auto => return Err(error),
                Err(error) => tables.fallbacks.push(error),
            }
        }
        tables.read_text(root)?;
        Ok(tables)
    }

    fn read_kcore(&mut self, root: &Root, patterns: Option<&PatternSet>) -> Result<()> {
        let many = patterns.is_some_and(|patterns| patterns.len() > kcore::MAX_COMPARED);
        let tables = kcore::read(root, many).map_err(|e| kcore::unusable(root, e))?;
        (self.tables, self.source) = (Held::Kcore(Box::new(tables)), Source::Kcore);
        Ok(())
    }

    fn read_text(&mut self, root: &Root) -> Result<()> {
        let mut text = text::read(root)?;
        self.warnings = std::mem::take(&mut text.warnings);
        (self.tables, self.source) = (Held::Text(Box::new(text)), Source::Text);
        Ok(())
    }

    /// Takes the tables from the cache. Where modules came or went, the rest is read anew, if that is allowed.
    fn load(&mut self, root: &Root, cache: &Folder, refresh: bool) -> Result<()> {
        let key = self.key.insert(Key::of(root)?);
        let kept = cache::load(cache, key)?.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("there is no cache in {}", cache.file().display()))
                .with_hint("fastprobe cache warm writes one, as does every run that attaches")
        })?;
        let Kept { mut tables, complete } = kept;
        self.source = Source::Cache;
        if !complete {
            if !refresh {
                let message = "modules were loaded or unloaded since the cache was written";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .with_hint("fastprobe cache warm writes it anew"));
            }
            tables.update(root).map_err(|e| kcore::unusable(root, e))?;
            self.source = Source::Kcore;
        }
        self.tables = Held::Cached(Box::new(tables), cache.clone());
        Ok(())
    }

    /// Writes the cache, if these tables come from the kernel's memory; whether they do. They are taken apart for that:
    /// both forms at a time would need a lot of memory.
    ///
    /// # Errors
    ///
    /// Those of [`cache::store`].
    pub fn store(self, root: &Root, cache: &Folder) -> Result<bool> {
        let (Some(key), Source::Kcore) = (&self.key, self.source) else { return Ok(false) };
        let contents = match self.tables {
            Held::Kcore(tables) => cache::contents(*tables)?,
            Held::Cached(tables, folder) => tables.contents().map_err(|e| folder.unusable(e))?,
            Held::Text(_) => return Ok(false),
        };
        cache::store(cache, root, key, contents).map(|()| true)
    }

    /// The functions that match, and what is known about each.
    ///
    /// # Errors
    ///
    /// `Malformed` where the kernel's memory has a name that is none, or the cache's file is damaged.
    pub fn matching(&self, matcher: &mut Matcher<'_>) -> Result<Matches> {
        match &self.tables {
            Held::Kcore(tables) => tables.matching(matcher),
            Held::Cached(tables, folder) => tables.matching(matcher).map_err(|e| folder.unusable(e)),
            Held::Text(tables) => tables.matching(matcher),
        }
    }

    /// The same for the patterns of a run. Where a page of the cache or a name in memory turns out to be damaged
    /// only now, the tables are read from the next source, if `wish` allows it.
    ///
    /// # Errors
    ///
    /// Those of [`Self::matching`] and [`Self::read`].
    pub fn choose<'p>(
        &mut self,
        root: &Root,
        wish: Wish,
        patterns: &'p PatternSet,
    ) -> Result<(Matches, Matcher<'p>)> {
        loop {
            let mut matcher = patterns.matcher();
            let matches = self.matching(&mut matcher).map_err(|e| match self.source {
                Source::Kcore => kcore::unusable(root, e),
                _ => e,
            });
            match matches {
                Err(error) if wish == Wish::Auto && self.source != Source::Text => {
                    self.fallbacks.push(error);
                    self.read_from_next(root, patterns)?;
                }
                matches => return Ok((matches?, matcher)),
            }
        }
    }

    /// Reads the tables from what comes after the source that failed.
    fn read_from_next(&mut self, root: &Root, patterns: &PatternSet) -> Result<()> {
        if let Held::Cached(..) = self.tables {
            match self.read_kcore(root, Some(patterns)) {
                Ok(()) => return Ok(()),
                Err(error) => self.fallbacks.push(error),
            }
        }
        self.read_text(root)
    }

    /// Calls `each` with every function symbol, aliases and duplicates included.
    ///
    /// # Errors
    ///
    /// `Malformed` where the kernel's memory has a name that is none; what `each` fails with.
    pub fn for_each_function(&self, mut each: impl FnMut(Function<'_>) -> Result<()>) -> Result<()> {
        let mut function = |kind, function: Function<'_>| match is_function_type(kind) {
            true => each(function),
            false => Ok(()),
        };
        match &self.tables {
            Held::Kcore(tables) => tables.for_each_symbol(function),
            Held::Cached(tables, _) => tables.for_each_symbol(function),
            Held::Text(tables) => tables.functions.iter().try_for_each(|f| function(b't', f)),
        }
    }

    /// How much of everything there is.
    pub fn counts(&self) -> Counts {
        match &self.tables {
            Held::Kcore(tables) => Counts::of(&tables.rest.sites, &tables.rest.blacklist),
            Held::Cached(tables, _) => tables.counts(),
            Held::Text(tables) => Counts::of(&tables.sites, &tables.blacklist),
        }
    }

    /// Looks at all of the cache's file. A run looks at no more than it needs.
    ///
    /// # Errors
    ///
    /// `Malformed` where any of it is damaged.
    pub fn check(&self) -> Result<()> {
        match &self.tables {
            Held::Cached(tables, folder) => tables.index().check().map_err(|e| folder.unusable(e)),
            _ => Ok(()),
        }
    }

    /// The names of the loaded modules.
    pub fn modules(&self) -> Vec<&[u8]> {
        match &self.tables {
            Held::Kcore(tables) => tables.rest.modules.iter().map(|module| &*module.name).collect(),
            Held::Cached(tables, _) => tables.modules().collect(),
            Held::Text(tables) => tables.modules.iter().map(|name| &**name).collect(),
        }
    }

    /// Whether `module` is loaded, with `-` and `_` the same.
    pub fn has_module(&self, module: &[u8]) -> bool {
        let plain = |name: &[u8]| name.iter().map(|&b| if b == b'-' { b'_' } else { b }).collect::<Vec<_>>();
        self.modules().iter().any(|loaded| plain(loaded) == plain(module))
    }

    /// Where they come from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Why faster sources were not used.
    pub fn fallbacks(&self) -> &[Error] {
        &self.fallbacks
    }

    /// How the reading went, step by step; nothing for the text files, which are read side by side.
    pub fn steps(&self) -> &[kcore::Step] {
        match &self.tables {
            Held::Kcore(tables) => &tables.rest.steps,
            Held::Cached(tables, _) => tables.changed().map_or(&[], |changed| &changed.steps),
            Held::Text(_) => &[],
        }
    }

    /// What could not be read and was done without.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::pattern::{PatternText, Syntax};

    /// A saved copy with one function.
    fn saved() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/kallsyms", "ffffffff81000000 T vfs_read\n"),
            ("sys/kernel/tracing/available_filter_functions_addrs", "ffffffff81000004 vfs_read\n"),
            ("sys/kernel/debug/kprobes/blacklist", ""),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    fn everything() -> PatternSet {
        PatternSet::new(Syntax::Glob, &[PatternText::argument("*")], &[], &[]).unwrap()
    }

    /// Tables from memory in which a name doesn't expand.
    fn damaged() -> Tables {
        let tables = kcore::FakeKernel::with_an_endless_name().tables();
        Tables {
            tables: Held::Kcore(Box::new(tables)),
            source: Source::Kcore,
            key: None,
            warnings: Vec::new(),
            fallbacks: Vec::new(),
        }
    }

    #[test]
    fn a_name_that_is_none_leads_to_the_text_files() {
        let (_dir, root) = saved();
        let mut tables = damaged();
        let patterns = everything();
        let (matches, _) = tables.choose(&root, Wish::Auto, &patterns).unwrap();
        let sites: Vec<_> = matches.iter().map(|m| m.facts.site).collect();
        assert_eq!(sites, [Some(0xffff_ffff_8100_0004)]);
        assert_eq!((tables.source(), tables.fallbacks().len()), (Source::Text, 1));
        let insisted = damaged().choose(&root, Wish::Only(Source::Kcore), &patterns).map(drop).unwrap_err();
        assert_eq!(insisted.kind(), ErrorKind::Malformed);
        assert!(insisted.to_string().contains("proc/kcore"), "{insisted}");
    }

    #[test]
    fn lists_without_functions_are_named() {
        for (path, name) in [
            ("proc/kallsyms", "proc/kallsyms"),
            ("sys/kernel/tracing/available_filter_functions_addrs", "list of traceable functions"),
        ] {
            let (dir, root) = saved();
            fs::write(dir.path().join(path), "").unwrap();
            let error = Tables::read(&root, None, Wish::Auto, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().ends_with(&format!("{name} holds no functions")), "{error}");
        }
    }

    #[test]
    fn a_saved_copy_has_text_and_no_cache() {
        let (_dir, root) = saved();
        let tables = Tables::read(&root, None, Wish::Auto, None).unwrap();
        assert_eq!((tables.source(), tables.fallbacks().len()), (Source::Text, 1));
        let error = Tables::read(&root, None, Wish::Only(Source::Cache), None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(Tables::read(&root, None, Wish::Only(Source::Kcore), None).is_err());
    }
}
