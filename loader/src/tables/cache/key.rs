//! What a cache is good for: one boot of one kernel with these modules.

use std::{fs, path::Path};

use twox_hash::XxHash3_64;

use super::odd;
use crate::{
    error::{Error, ErrorKind, Result},
    tables::files::Root,
};

/// `NT_GNU_BUILD_ID`
const BUILD_ID_NOTE: u32 = 3;

/// One boot of one kernel, and the modules that are loaded now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// `/proc/sys/kernel/random/boot_id`, new at each boot.
    pub boot_id: [u8; 36],
    /// The kernel's build id, from `/sys/kernel/notes`: zeros behind its 20 bytes.
    pub build_id: [u8; 32],
    /// The names, sizes and addresses of all loaded modules, hashed.
    pub modules: u64,
    /// The names of those modules, sorted.
    pub names: Vec<Box<[u8]>>,
}

impl Key {
    /// The key of the kernel below `root`, as it is now.
    ///
    /// # Errors
    ///
    /// `Io` where a file can't be read; `Permission` where the addresses of modules are hidden, since one that is
    /// loaded again then looks the same; `Malformed` for a file of unknown form.
    pub fn of(root: &Root) -> Result<Self> {
        let boot_id = read(&root.path().join("proc/sys/kernel/random/boot_id"))?;
        let boot_id = boot_id.first_chunk().ok_or_else(|| odd("a boot id of less than 36 characters"))?;
        let notes = read(&root.path().join("sys/kernel/notes"))?;
        let build_id = build_id(&notes).ok_or_else(|| odd("no build id in /sys/kernel/notes"))?;
        let (modules, names) = match root.modules()? {
            Some((path, _)) => fingerprint(&read(&path)?)?,
            None => (0, Vec::new()),
        };
        Ok(Self { boot_id: *boot_id, build_id, modules, names })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path)
        .map_err(|e| Error::new(ErrorKind::Io, format!("can't read {}", path.display())).with_source(e))
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

/// Hash and names of the modules in the text of `/proc/modules`: name, size and address of each line.
fn fingerprint(text: &[u8]) -> Result<(u64, Vec<Box<[u8]>>)> {
    let mut lines = Vec::new();
    let mut names: Vec<Box<[u8]>> = Vec::new();
    for line in text.split(|&b| b == b'\n').filter(|line| !line.is_empty()) {
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let [name, size, _, _, _, address, ..] = fields[..] else {
            return Err(odd(format!("/proc/modules has a line “{}”", line.escape_ascii())));
        };
        if address.iter().all(|b| matches!(b, b'0' | b'x')) {
            return Err(Error::new(ErrorKind::Permission, "the kernel hides the addresses of its modules"));
        }
        lines.push([name, size, address].join(&b' '));
        names.push(name.into());
    }
    lines.sort_unstable();
    names.sort_unstable();
    Ok((XxHash3_64::oneshot(&lines.join(&b'\n')), names))
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
    fn a_module_at_another_address_is_another_module() {
        let key = |text: &str| fingerprint(text.as_bytes()).unwrap().0;
        let kvm = key("kvm 100 1 amd, Live 0xffffffffc0000000\namd 5 0 - Live 0xffffffffc0100000\n");
        assert_eq!(kvm, key("amd 5 0 - Live 0xffffffffc0100000 (E)\nkvm 100 0 - Live 0xffffffffc0000000\n"));
        assert_ne!(kvm, key("amd 5 0 - Live 0xffffffffc0100000\nkvm 100 0 - Live 0xffffffffc0001000\n"));
        assert_ne!(kvm, key("amd 5 0 - Live 0xffffffffc0100000\n"));
    }

    #[test]
    fn hidden_addresses_and_unknown_lines_make_no_key() {
        let fault = |text: &str| fingerprint(text.as_bytes()).unwrap_err().kind();
        assert_eq!(fault("kvm 100 0 - Live 0x0000000000000000\n"), ErrorKind::Permission);
        assert_eq!(fault("kvm 100\n"), ErrorKind::Malformed);
    }
}
