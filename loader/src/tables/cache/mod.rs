//! The tables of this boot, kept in a file between runs: mapped, checked, and used where they are.
//!
//! The file is written after an attach, never before, and replaced whole. One that is damaged, of another boot or
//! of other modules, or that anybody else could have written, is as good as none.

mod folder;
mod format;
mod key;
mod tables;

pub use folder::Folder;
pub use format::{Contents, Counts, Kept};
pub use key::Key;
pub use tables::{CachedTables, contents};

use super::{files::Root, odd};
use crate::error::Result;

/// The tables in the cache, if it has those of this boot and kernel; nothing where there is no cache.
///
/// # Errors
///
/// What is wrong with it, each a reason to read the kernel's memory.
pub fn load(folder: &Folder, key: &Key) -> Result<Option<Kept>> {
    match folder.open()? {
        Some(file) => format::read(key, file).map(Some).map_err(|e| folder.unusable(e)),
        None => Ok(None),
    }
}

/// Writes tables that were read when the kernel below `root` was as `key` says.
///
/// # Errors
///
/// `Malformed` where the kernel is not that any more; `Io` where the file can't be written.
pub fn store(folder: &Folder, root: &Root, key: &Key, contents: Contents) -> Result<()> {
    let mut names: Vec<&[u8]> = contents.index.modules.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    if *key != Key::of(root)? || !names.iter().copied().eq(key.modules.keys().map(|name| &**name)) {
        return Err(odd("no cache was written: modules were loaded or unloaded meanwhile"));
    }
    folder.replace(|out| format::write(key, contents, out))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::tables::kcore::FakeKernel;

    const MODULES: &str = "kvm 4096 0 - Live 0xffffffffc0100000\n";

    /// What a key is made of.
    fn root(dir: &Path) -> Root {
        let file = |path: &str, text: &[u8]| {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("proc/sys/kernel/random/boot_id", b"6a0bd3bd-2a5f-4a63-a51e-5fa9ba2d9f17\n");
        let note = [4_u32, 20, 3].map(u32::to_ne_bytes).concat();
        file("sys/kernel/notes", &[&note, &b"GNU\0"[..], &[9; 20]].concat());
        file("proc/modules", MODULES.as_bytes());
        Root::at(dir)
    }

    #[test]
    fn what_is_stored_is_loaded_until_a_module_comes_or_goes() {
        let dir = tempfile::tempdir().unwrap();
        let (root, folder) = (root(dir.path()), Folder::at(dir.path()));
        let key = Key::of(&root).unwrap();
        assert!(load(&folder, &key).unwrap().is_none());
        let tables = || FakeKernel::self_relative().tables();
        store(&folder, &root, &key, contents(tables()).unwrap()).unwrap();
        let kept = load(&folder, &key).unwrap().unwrap();
        assert!(kept.complete && kept.tables.modules().eq([b"kvm"]));

        fs::write(dir.path().join("proc/modules"), MODULES.replace("c010", "c020")).unwrap();
        let kept = load(&folder, &Key::of(&root).unwrap()).unwrap().unwrap();
        assert!(!kept.complete && kept.tables.modules().next().is_none());
        // And they are not stored under a key that holds no more.
        assert!(
            store(&folder, &root, &key, contents(tables()).unwrap())
                .unwrap_err()
                .to_string()
                .contains("meanwhile")
        );
    }
}
