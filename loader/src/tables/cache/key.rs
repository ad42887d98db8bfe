//! What a cache is good for: one boot of one kernel with these modules.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    fs,
    io::Read,
    os::unix::{ffi::OsStrExt, fs::DirEntryExt},
    path::Path,
};

use twox_hash::XxHash3_64;

use crate::{
    error::{Error, ErrorKind, Result},
    tables::{
        files::{Root, open_regular},
        odd,
    },
};

/// `NT_GNU_BUILD_ID`
const BUILD_ID_NOTE: u32 = 3;

/// More than any of these files has: a line for each module.
const MAX_BYTES: u64 = 16 << 20;

/// One boot of one kernel, and the modules that are loaded now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// `/proc/sys/kernel/random/boot_id`, new at each boot.
    pub boot_id: [u8; 36],
    /// The kernel's build id, from `/sys/kernel/notes`: zeros behind its 20 bytes.
    pub build_id: [u8; 32],
    /// All loaded modules, by name.
    pub modules: BTreeMap<Box<[u8]>, Identity>,
}

/// One loading of one module: its size, its address, and the number of its folder in sysfs, hashed. That number
/// is new each time, so a module that was built anew and fits into the same place is another one.
pub type Identity = u64;

impl Key {
    /// The key of the kernel below `root`, as it is now.
    ///
    /// # Errors
    ///
    /// `Io` where a file can't be read; `Permission` where the addresses of modules are hidden; `Malformed` for a
    /// file of unknown form.
    pub fn of(root: &Root) -> Result<Self> {
        let boot_id = read(&root.path().join("proc/sys/kernel/random/boot_id"))?;
        let boot_id = boot_id.first_chunk().ok_or_else(|| odd("a boot id of less than 36 characters"))?;
        let notes = read(&root.path().join("sys/kernel/notes"))?;
        let build_id = build_id(&notes).ok_or_else(|| odd("no build id in /sys/kernel/notes"))?;
        let modules = match root.modules()? {
            Some((path, _)) => identities(&read(&path)?, &root.path().join("sys/module"))?,
            None => BTreeMap::new(),
        };
        Ok(Self { boot_id: *boot_id, build_id, modules })
    }

    /// All modules in one number.
    pub fn fingerprint(&self) -> u64 {
        let mut all = Vec::new();
        for (name, identity) in &self.modules {
            all.extend_from_slice(name);
            all.extend_from_slice(&[0]);
            all.extend_from_slice(&identity.to_ne_bytes());
        }
        XxHash3_64::oneshot(&all)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
    read.map_err(|e| Error::new(ErrorKind::Io, format!("can't read {}", path.display())).with_source(e))?;
    Ok(bytes)
}

/// The build id among the notes (`Elf64_Nhdr` and padded name and content, one after the other).
fn build_id(mut notes: &[u8]) -> Option<[u8; 32]> {
    loop {
        let (head, rest) = notes.split_first_chunk::<12>()?;
        let word = |at: usize| head[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let (name, content, kind) = (word(0) as usize, word(4) as usize, word(8));
        let content_at = name.checked_next_multiple_of(4)?;
        let text = rest.get(content_at..content_at.checked_add(content)?)?;
        if kind == BUILD_ID_NOTE && rest.starts_with(b"GNU\0") {
            let mut build_id = [0; 32];
            build_id.get_mut(..content)?.copy_from_slice(text);
            return Some(build_id);
        }
        notes = rest.get(content_at.checked_add(content.checked_next_multiple_of(4)?)?..)?;
    }
}

/// The modules in the text of `/proc/modules`, with their folders in `sysfs`.
fn identities(text: &[u8], sysfs: &Path) -> Result<BTreeMap<Box<[u8]>, Identity>> {
    let folders = folder_numbers(sysfs);
    let (mut modules, mut any_address) = (BTreeMap::new(), false);
    for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let [name, size, _, _, _, address, ..] = fields[..] else {
            return Err(odd(format!("/proc/modules has a line “{}”", line.escape_ascii())));
        };
        any_address |= address.iter().any(|b| !matches!(b, b'0' | b'x'));
        let folder = folders.get(OsStr::from_bytes(name)).copied().unwrap_or(0);
        let identity = XxHash3_64::oneshot(&[size, address, &folder.to_ne_bytes()].join(&b' '));
        modules.insert(name.into(), identity);
    }
    // A module without code is at 0 (`m_show` in kernel/module/procfs.c, 6.4 and later); where all are, it hides them.
    if !modules.is_empty() && !any_address {
        return Err(Error::new(ErrorKind::Permission, "the kernel hides the addresses of its modules"));
    }
    Ok(modules)
}

/// The number of each folder in `sysfs`: listed at once, which takes a third of asking for one after the other.
fn folder_numbers(sysfs: &Path) -> HashMap<OsString, u64> {
    let entries = fs::read_dir(sysfs).into_iter().flatten().flatten();
    entries.map(|entry| (entry.file_name(), entry.ino())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_are_found_among_other_notes() {
        let note = |name: &[u8], kind: u32, content: &[u8]| {
            let padded = |b: &[u8]| [b, &vec![0; b.len().next_multiple_of(4) - b.len()]].concat();
            let head = [name.len() as u32, content.len() as u32, kind].map(u32::to_ne_bytes).concat();
            [head, padded(name), padded(content)].concat()
        };
        let notes = [note(b"Xen\0", 3, b"abc"), note(b"GNU\0", 3, &[7; 20])].concat();
        assert_eq!(build_id(&notes).unwrap()[..21], [&[7; 20][..], &[0]].concat());
        for length in 0..notes.len() {
            assert_eq!(build_id(&notes[..length]), None);
        }
        assert_eq!(build_id(&note(b"GNU\0", 3, &[7; 33])), None);
    }

    #[test]
    fn a_module_that_was_loaded_again_is_another_one() {
        let sysfs = tempfile::tempdir().unwrap();
        let modules = |text: &str| identities(text.as_bytes(), sysfs.path()).unwrap();
        let two = "kvm 100 1 amd, Live 0xffffffffc0000000\namd 5 0 - Live 0xffffffffc0100000\n";
        let before = modules(two);
        assert_eq!(
            before,
            modules("amd 5 0 - Live 0xffffffffc0100000 (E)\nkvm 100 0 - Live 0xffffffffc0000000\n")
        );
        assert_ne!(
            before,
            modules("kvm 100 1 amd, Live 0xffffffffc0001000\namd 5 0 - Live 0xffffffffc0100000\n")
        );
        assert_ne!(before, modules("amd 5 0 - Live 0xffffffffc0100000\n"));
        fs::create_dir(sysfs.path().join("kvm")).unwrap();
        let again = modules(two);
        assert_ne!(before[&b"kvm"[..]], again[&b"kvm"[..]]);
        assert_eq!(before[&b"amd"[..]], again[&b"amd"[..]]);
    }

    #[test]
    fn a_module_without_code_hides_nothing() {
        let text = "libie 8192 2 ice, Live 0x0000000000000000\nice 5 0 - Live 0xffffffffc0100000\n";
        let modules = identities(text.as_bytes(), Path::new("/nowhere")).unwrap();
        assert!(modules.keys().map(|name| &**name).eq([&b"ice"[..], b"libie"]));
    }

    #[test]
    fn hidden_addresses_and_unknown_lines_make_no_key() {
        let fault = |text: &str| identities(text.as_bytes(), Path::new("/nowhere")).unwrap_err().kind();
        assert_eq!(fault("kvm 100 0 - Live 0x0000000000000000\n"), ErrorKind::Permission);
        assert_eq!(fault("kvm 100\n"), ErrorKind::Malformed);
    }
}
