//! What a kernel has: its functions, where ftrace can hook them, and where a probe is forbidden.
//!
//! [`Tables::read`] reads each of the kernel's tables once; [`Tables::matching`] chooses from them in memory.

mod blacklist;
mod bytes;
pub mod cache;
mod files;
pub mod kcore;
mod matches;
mod source;
mod symbols;
mod text;

pub use blacklist::Blacklist;
use cache::{Folder, Kept, Key};
pub use files::Root;
use kcore::KcoreTables;
use matches::MatchSink;
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
    Memory(Box<KcoreTables>),
    Text(Box<TextTables>),
}

impl Tables {
    /// Reads the tables below `root` from the fastest source that works and that `wish` allows: the cache in
    /// `cache` (none for a saved copy), the kernel's memory, its text files.
    ///
    /// # Errors
    ///
    /// `Unsupported` and `Permission` where a file isn't there or may not be read, or all addresses are
    /// hidden; `Malformed` for what can't be understood. A blacklist that can't be opened is a
    /// [warning](Self::warnings).
    pub fn read(root: &Root, cache: Option<&Folder>, wish: Wish) -> Result<Self> {
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
            match kcore::read(root) {
                Ok(read) => {
                    (tables.tables, tables.source) = (Held::Memory(Box::new(read)), Source::Kcore);
                    return Ok(tables);
                }
                Err(error) if wish != Wish::Auto => return Err(error),
                Err(error) => tables.fallbacks.push(error),
            }
        }
        tables.read_text(root)?;
        Ok(tables)
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
        let (tables, source) = match kept {
            Kept { tables, complete: true } => (tables, Source::Cache),
            Kept { tables, .. } if refresh => {
                (kcore::refresh(root, tables.core, tables.modules)?, Source::Kcore)
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "modules were loaded or unloaded since the cache was written",
                )
                .with_hint("fastprobe cache warm writes it anew"));
            }
        };
        (self.tables, self.source) = (Held::Memory(Box::new(tables)), source);
        Ok(())
    }

    /// Writes the cache, if these tables come from the kernel's memory; whether they do.
    ///
    /// # Errors
    ///
    /// Those of [`cache::store`].
    pub fn store(&self, root: &Root, cache: &Folder) -> Result<bool> {
        match (&self.tables, self.source, &self.key) {
            (Held::Memory(tables), Source::Kcore, Some(key)) => {
                cache::store(cache, root, key, tables).map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// The functions that match, and what is known about each.
    ///
    /// # Errors
    ///
    /// `Malformed` where the kernel's memory has a name that is none.
    pub fn matching(&self, matcher: &mut Matcher<'_>) -> Result<Matches> {
        let mut sink = MatchSink::new(self.sites(), self.blacklist());
        match &self.tables {
            Held::Memory(tables) => tables.matching(matcher, &mut sink)?,
            Held::Text(tables) => tables.matching(matcher, &mut sink)?,
        }
        Ok(sink.finish())
    }

    /// The same for the patterns of a run. Where a name in memory turns out to be none only now, the text files
    /// are read, if `wish` allows it.
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
        let mut matcher = patterns.matcher();
        let matches = match self.matching(&mut matcher) {
            Err(error) if wish == Wish::Auto && self.source != Source::Text => {
                self.fallbacks.push(error);
                self.read_text(root)?;
                matcher = patterns.matcher();
                self.matching(&mut matcher)
            }
            matches => matches,
        };
        Ok((matches?, matcher))
    }

    /// Calls `each` with every function symbol, aliases and duplicates included.
    ///
    /// # Errors
    ///
    /// `Malformed` where the kernel's memory has a name that is none; what `each` fails with.
    pub fn for_each_function(&self, mut each: impl FnMut(Function<'_>) -> Result<()>) -> Result<()> {
        match &self.tables {
            Held::Memory(tables) => {
                tables.for_each_symbol(
                    |kind, function| {
                        if is_function_type(kind) { each(function) } else { Ok(()) }
                    },
                )
            }
            Held::Text(tables) => tables.functions.iter().try_for_each(each),
        }
    }

    /// The addresses of the ftrace records, ascending.
    pub fn sites(&self) -> &[u64] {
        match &self.tables {
            Held::Memory(tables) => &tables.sites,
            Held::Text(tables) => &tables.sites,
        }
    }

    /// Where probes are forbidden.
    pub fn blacklist(&self) -> &Blacklist {
        match &self.tables {
            Held::Memory(tables) => &tables.blacklist,
            Held::Text(tables) => &tables.blacklist,
        }
    }

    /// The names of the loaded modules.
    pub fn modules(&self) -> Vec<&[u8]> {
        match &self.tables {
            Held::Memory(tables) => tables.modules.iter().map(|module| &*module.name).collect(),
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
            Held::Memory(tables) => &tables.steps,
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
            tables: Held::Memory(Box::new(tables)),
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
    }

    #[test]
    fn a_saved_copy_has_text_and_no_cache() {
        let (_dir, root) = saved();
        let tables = Tables::read(&root, None, Wish::Auto).unwrap();
        assert_eq!((tables.source(), tables.fallbacks().len()), (Source::Text, 1));
        let error = Tables::read(&root, None, Wish::Only(Source::Cache)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(Tables::read(&root, None, Wish::Only(Source::Kcore)).is_err());
    }
}
