//! A machine's tables in one file: a compressed tar archive of the files that tables are read from, at their places.
//! Unpacked it is what [`Root::at`] takes. Kernel addresses are in it, which kernels keep secret.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Component, Path, PathBuf},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};

use super::{cache::Key, files::Root, kcore, odd};
use crate::error::{Error, ErrorKind, Result};

/// More than any of the files: the largest, `/proc/kallsyms`, takes 25 MB with most modules that there are.
const MAX_FILE_BYTES: u64 = 512 << 20;

/// More than all of them.
const MAX_BYTES: u64 = 1 << 30;

/// More files than a snapshot has.
const MAX_FILES: usize = 100;

/// What tells the kernel, its boot and its state.
const IDENTITY: [&str; 5] = [
    "proc/version",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/random/boot_id",
    "sys/kernel/notes",
    "sys/kernel/security/lockdown",
];

/// What was written.
#[derive(Debug, Default)]
pub struct Written {
    /// The files in it.
    pub files: Vec<PathBuf>,
    /// What could not be had, or is of less use than it could be.
    pub missing: Vec<Error>,
}

/// Writes what can be read of the tables below `root` as an archive.
///
/// # Errors
///
/// `Io` where `out` can't be written.
pub fn write(root: &Root, out: impl Write) -> Result<Written> {
    let mut archive = Archive {
        tar: tar::Builder::new(GzEncoder::new(out, Compression::fast())),
        root,
        written: Written::default(),
    };
    let before = Key::of(root).ok();
    for file in IDENTITY {
        // Not every kernel has all of them.
        if root.path().join(file).exists() {
            archive.add_file(Path::new(file))?;
        }
    }
    archive.add_opened(root.modules())?;
    archive.add_opened(root.kallsyms().map(Some))?;
    archive.add_opened(root.filter_functions().map(|(opened, _)| Some(opened)))?;
    archive.add_opened(root.blacklist().map(Some))?;
    archive.add_file(&relative(root, &root.btf()))?;
    archive.add_memory()?;
    if before.is_some() && before != Key::of(root).ok() {
        archive.lacks(odd(
            "modules were loaded or unloaded meanwhile, so that the files may contradict each other",
        ));
    }
    archive.finish()
}

struct Archive<'r, W: Write> {
    tar: tar::Builder<GzEncoder<W>>,
    root: &'r Root,
    written: Written,
}

impl<W: Write> Archive<'_, W> {
    fn lacks(&mut self, error: Error) {
        self.written.missing.push(error);
    }

    /// A file that [`Root`] opened, if there is one.
    fn add_opened(&mut self, opened: Result<Option<(PathBuf, File)>>) -> Result<()> {
        match opened {
            Ok(Some((path, file))) => {
                let path = relative(self.root, &path);
                self.add_contents(&path, file)
            }
            Ok(None) => Ok(()),
            Err(error) => {
                self.lacks(error);
                Ok(())
            }
        }
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        let whole = self.root.path().join(path);
        match File::open(&whole) {
            Ok(file) => self.add_contents(path, file),
            Err(e) => {
                self.lacks(cant_read(&whole, e));
                Ok(())
            }
        }
    }

    /// The kernel's files don't know their length before they are read.
    fn add_contents(&mut self, path: &Path, file: File) -> Result<()> {
        let mut contents = Vec::new();
        match file.take(MAX_FILE_BYTES).read_to_end(&mut contents) {
            Ok(_) => {
                if path.ends_with("kallsyms") && hides_addresses(&contents) {
                    let message =
                        format!("the addresses in {} are hidden", self.root.path().join(path).display());
                    let hint = "sysctl kernel.kptr_restrict=1 (0 or 1), and run as root";
                    self.lacks(Error::new(ErrorKind::Permission, message).with_hint(hint));
                }
                self.add(path, &contents)
            }
            Err(e) => {
                self.lacks(cant_read(&self.root.path().join(path), e));
                Ok(())
            }
        }
    }

    fn add_memory(&mut self) -> Result<()> {
        match kcore::record(self.root) {
            Ok(core) => self.add(&relative(self.root, &self.root.kcore()), &core),
            Err(error) => {
                self.lacks(error);
                Ok(())
            }
        }
    }

    fn add(&mut self, path: &Path, contents: &[u8]) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o600);
        self.tar.append_data(&mut header, path, contents).map_err(cant_write)?;
        self.written.files.push(path.into());
        Ok(())
    }

    fn finish(self) -> Result<Written> {
        let end = || self.tar.into_inner()?.finish()?.flush();
        end().map_err(cant_write)?;
        Ok(self.written)
    }
}

/// Where a file lies below `root`.
fn relative(root: &Root, path: &Path) -> PathBuf {
    path.strip_prefix(root.path()).unwrap_or(path).into()
}

/// Whether every symbol is at 0, as for who may not see where.
fn hides_addresses(kallsyms: &[u8]) -> bool {
    !kallsyms.split(|&b| b == b'\n').any(|line| line.iter().take_while(|&&b| b != b' ').any(|&b| b != b'0'))
}

fn cant_read(path: &Path, e: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("can't read {}", path.display())).with_source(e)
}

fn cant_write(e: io::Error) -> Error {
    Error::new(ErrorKind::Io, "can't write the snapshot").with_source(e)
}

/// Unpacks the snapshot in `file` into `folder`.
///
/// # Errors
///
/// `Malformed` for a file that is no such archive, or holds anything but some files at places within it; `Io` where
/// one can't be read or written.
pub fn unpack(file: &Path, folder: &Path) -> Result<()> {
    let archive = super::files::open_regular(file).map_err(|e| cant_read(file, e))?;
    let bad = |e: io::Error| {
        odd(format!("{} is no snapshot", file.display()))
            .with_source(e)
            .with_hint("fastprobe snapshot -o FILE writes one")
    };
    let mut archive = tar::Archive::new(GzDecoder::new(archive).take(MAX_BYTES));
    let mut files = 0;
    for entry in archive.entries().map_err(bad)? {
        let mut entry = entry.map_err(bad)?;
        let path = entry.path().map_err(bad)?.into_owned();
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let within = path.components().all(|part| matches!(part, Component::Normal(_)));
        if !entry.header().entry_type().is_file() || !within {
            return Err(bad(io::Error::other(format!("it holds {}", path.display()))));
        }
        files += 1;
        if files > MAX_FILES {
            return Err(bad(io::Error::other(format!("it holds more than {MAX_FILES} files"))));
        }
        let to = folder.join(&path);
        let cant_make = |e| Error::new(ErrorKind::Io, format!("can't make {}", to.display())).with_source(e);
        fs::create_dir_all(to.parent().unwrap_or(folder)).map_err(cant_make)?;
        let mut out = File::create(&to).map_err(cant_make)?;
        let size = entry.size();
        // A fault in the archive and one of the disk are told apart by whose they are.
        let copied = io::copy(&mut entry, &mut out).map_err(bad)?;
        if copied != size {
            return Err(bad(io::Error::other(format!("{} is cut short", path.display()))));
        }
    }
    // What is behind the last file has a checksum over all of them.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(bad)?;
    if files == 0 { Err(bad(io::Error::other("it holds no files"))) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without a kernel's memory.
    fn machine() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/version", "Linux"),
            ("proc/modules", ""),
            ("proc/kallsyms", "ffffffff81000000 T vfs_read\n"),
            ("sys/kernel/tracing/available_filter_functions_addrs", "ffffffff81000004 vfs_read\n"),
        ] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    fn unpacked(archive: &[u8]) -> Result<tempfile::TempDir> {
        let (dir, file) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        fs::write(file.path(), archive).unwrap();
        unpack(file.path(), dir.path()).map(|()| dir)
    }

    #[test]
    fn what_can_be_read_comes_back_and_the_rest_is_told() {
        let (machine, root) = machine();
        let mut archive = Vec::new();
        let written = write(&root, &mut archive).unwrap();
        let missing: Vec<_> = written.missing.iter().map(|error| format!("{error:#}")).collect();
        assert_eq!(written.files.len(), 4, "{missing:?}");
        for file in ["kprobes/blacklist", "btf/vmlinux", "proc/kcore"] {
            assert!(missing.iter().any(|error| error.contains(file)), "{file}: {missing:?}");
        }
        let copy = unpacked(&archive).unwrap();
        for file in &written.files {
            let contents = |dir: &tempfile::TempDir| fs::read(dir.path().join(file)).unwrap();
            assert_eq!(contents(&copy), contents(&machine));
        }
    }

    #[test]
    fn hidden_addresses_are_told() {
        let (machine, root) = machine();
        fs::write(machine.path().join("proc/kallsyms"), "0000000000000000 T vfs_read\n").unwrap();
        let written = write(&root, io::sink()).unwrap();
        let hidden = written.missing.iter().find(|error| error.kind() == ErrorKind::Permission).unwrap();
        assert!(hidden.to_string().contains("proc/kallsyms are hidden"), "{hidden}");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(write(&machine().1, full).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn what_is_no_snapshot_is_refused_and_nothing_lands_outside() {
        let archive = |path: &str, kind: tar::EntryType| {
            let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_size(1);
            header.set_cksum();
            tar.append(&header, &b"x"[..]).unwrap();
            tar.into_inner().unwrap().finish().unwrap()
        };
        assert!(unpacked(&archive("proc/kallsyms", tar::EntryType::Regular)).is_ok());
        for (path, kind) in [
            ("../kallsyms", tar::EntryType::Regular),
            ("/tmp/kallsyms", tar::EntryType::Regular),
            ("proc/kallsyms", tar::EntryType::Symlink),
            ("proc/kallsyms", tar::EntryType::Fifo),
        ] {
            let error = unpacked(&archive(path, kind)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed);
            assert!(format!("{error:#}").contains(&format!("it holds {path}")), "{error:#}");
        }
        let mut whole = Vec::new();
        write(&machine().1, &mut whole).unwrap();
        for length in 0..whole.len() - 8 {
            assert_eq!(
                unpacked(&whole[..length]).unwrap_err().kind(),
                ErrorKind::Malformed,
                "{length} bytes"
            );
        }
    }
}
