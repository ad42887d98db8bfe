//! Where the cache is, and who may have written it.

use std::{
    fs::{self, DirBuilder, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    error::{Error, ErrorKind, Result},
    tables::{index::Bytes, odd},
};

const FOLDER: &str = "fastprobe";
const FILE: &str = "tables";

/// How the names of files begin that are being written.
const UNFINISHED: &str = ".tables-";

/// One that is as old has been abandoned: writing takes a second.
const ABANDONED: Duration = Duration::from_secs(60);

/// More than any kernel's tables: 20 MB with all modules that there are.
const MAX_BYTES: u64 = 256 << 20;

/// What whoever isn't root can do for a cache.
const OWN_FOLDER: &str = "set XDG_RUNTIME_DIR to a folder of your own";

/// The folder that holds the cache: nobody but its owner may look into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Folder {
    /// `$XDG_RUNTIME_DIR/fastprobe` where that belongs to who runs this (`sudo -E` brings somebody else's), else
    /// `/run/fastprobe`. Both are gone at the next boot.
    pub fn of_this_user() -> Self {
        let own = |folder: &PathBuf| fs::metadata(folder).is_ok_and(|m| m.is_dir() && m.uid() == user());
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(own);
        Self(runtime.unwrap_or_else(|| "/run".into()).join(FOLDER))
    }

    /// A folder below `path`.
    pub fn at(path: &Path) -> Self {
        Self(path.join(FOLDER))
    }

    /// The cache's file.
    pub fn file(&self) -> PathBuf {
        self.0.join(FILE)
    }

    /// Opens the file and maps it, or copies it where it isn't root's; nothing where there is none.
    ///
    /// # Errors
    ///
    /// `Malformed` where anybody else could have written it, or its size can't be right; `Io` where it can't be
    /// read.
    pub fn open(&self) -> Result<Option<Bytes>> {
        match fs::symlink_metadata(&self.0) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(fault(&self.0, e)),
            Ok(folder) => self.check("folder", &self.0, folder.is_dir(), &folder, 0o700)?,
        }
        let path = self.file();
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path);
        let file = match file {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| fault(&path, e))?,
        };
        let metadata = file.metadata().map_err(|e| fault(&path, e))?;
        self.check("file", &path, metadata.is_file(), &metadata, 0o600)?;
        if metadata.len() > MAX_BYTES {
            return Err(odd(format!("{} has {} bytes", path.display(), metadata.len())));
        }
        let bytes = if metadata.uid() == 0 { Bytes::map(&file) } else { Bytes::copy(&file, metadata.len()) };
        bytes.map(Some).map_err(|e| fault(&path, e))
    }

    /// What is wrong with the file, and that it is this file.
    pub fn unusable(&self, error: Error) -> Error {
        odd(format!("can't use the cache {}", self.file().display())).with_source(error)
    }

    fn check(&self, what: &str, path: &Path, kind: bool, metadata: &fs::Metadata, mode: u32) -> Result<()> {
        let remove = format!("rm -r {}", self.0.display());
        let (fault, hint) = if !kind {
            ("it is something else", &*remove)
        } else if metadata.uid() != user() {
            ("it belongs to somebody else", OWN_FOLDER)
        } else if metadata.mode() & 0o7777 != mode {
            ("others could have changed it", &*remove)
        } else {
            return Ok(());
        };
        let message = format!("{} is not a {what} of mode {mode:04o} of our own: {fault}", path.display());
        Err(odd(message).with_hint(hint))
    }

    /// Writes the file anew: whoever opens it sees the old one or the new one, whole.
    ///
    /// # Errors
    ///
    /// `Io` where the folder or the file can't be made.
    pub fn replace(&self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        self.make()?;
        self.sweep(ABANDONED);
        let mut file = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(&self.0)
            .map_err(|e| fault(&self.0, e))?;
        let written = write(&mut io::BufWriter::with_capacity(1 << 20, file.as_file_mut()));
        written.map_err(|e| fault(file.path(), e))?;
        file.persist(self.file()).map_err(|e| fault(&self.file(), e.error))?;
        Ok(())
    }

    /// Whether tables could be kept here: writes to a file without a name, which leaves nothing behind.
    ///
    /// # Errors
    ///
    /// `Malformed` where the folder, or the one that it would be made in, is somebody else's; `Io` where neither can
    /// be written to.
    pub fn try_out(&self) -> Result<()> {
        let folder = if self.is_there()? { &self.0 } else { self.above() };
        let written = tempfile::tempfile_in(folder).and_then(|mut file| file.write_all(b"tables"));
        written.map_err(|e| fault(&self.0, e))
    }

    fn make(&self) -> Result<()> {
        if self.is_there()? {
            return Ok(());
        }
        match DirBuilder::new().mode(0o700).create(&self.0) {
            // Another run was faster.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.is_there().map(drop),
            made => made.map_err(|e| fault(&self.0, e)),
        }
    }

    /// Whether there is the folder, of our own, or else one of our own to make it in: with CAP_DAC_OVERRIDE anybody
    /// could make one in `/run`, and bar root from its cache.
    fn is_there(&self) -> Result<bool> {
        match fs::symlink_metadata(&self.0) {
            Ok(folder) => {
                return self.check("folder", &self.0, folder.is_dir(), &folder, 0o700).map(|()| true);
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fault(&self.0, e)),
            Err(_) => {}
        }
        let owner = fs::metadata(self.above()).map_err(|e| fault(&self.0, e))?.uid();
        if owner == user() {
            return Ok(false);
        }
        let message =
            format!("no cache is kept in {}, which belongs to somebody else", self.above().display());
        Err(odd(message).with_hint(OWN_FOLDER))
    }

    fn above(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    /// Removes what runs that were killed while they wrote have left, if it is of that age.
    fn sweep(&self, age: Duration) {
        let Ok(entries) = fs::read_dir(&self.0) else { return };
        for entry in entries.flatten() {
            let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let old = changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|passed| passed >= age);
            if old && entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                // What can't be removed does no harm.
                let _left = fs::remove_file(entry.path());
            }
        }
    }

    /// Removes the file; whether there was one.
    ///
    /// # Errors
    ///
    /// `Io` where it can't be removed.
    pub fn clear(&self) -> Result<bool> {
        self.sweep(Duration::ZERO);
        match fs::remove_file(self.file()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(fault(&self.file(), e)),
        }
    }
}

/// Who runs this.
fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn fault(path: &Path, e: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("can't use the cache {}", path.display())).with_source(e)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn written(dir: &Path) -> Folder {
        let folder = Folder::at(dir);
        folder.replace(|out| out.write_all(b"tables")).unwrap();
        folder
    }

    #[test]
    fn what_killed_runs_left_is_swept_away() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder(dir.path().join("fastprobe"));
        folder.replace(|out| out.write_all(b"x")).unwrap();
        let left = folder.0.join(".tables-left");
        fs::write(&left, "").unwrap();
        // Somebody may be at it.
        folder.replace(|out| out.write_all(b"x")).unwrap();
        assert!(left.exists());
        let an_hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        fs::File::options().write(true).open(&left).unwrap().set_modified(an_hour_ago).unwrap();
        folder.replace(|out| out.write_all(b"x")).unwrap();
        assert!(!left.exists() && folder.file().exists());
        fs::write(&left, "").unwrap();
        assert!(folder.clear().unwrap());
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    #[test]
    fn what_was_written_is_mapped_and_cleared() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Folder::at(dir.path()).open().unwrap().is_none());
        let folder = written(dir.path());
        assert_eq!(folder.open().unwrap().unwrap()[..], *b"tables");
        assert_eq!(fs::metadata(folder.file()).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 1);
        assert!(folder.clear().unwrap() && !folder.clear().unwrap());
        assert!(folder.open().unwrap().is_none());
    }

    #[test]
    fn what_others_could_have_written_is_refused() {
        let refused = |change: &dyn Fn(&Path, &Folder)| {
            let dir = tempfile::tempdir().unwrap();
            let folder = written(dir.path());
            change(&dir.path().join(FOLDER), &folder);
            folder.open().unwrap_err().to_string()
        };
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        assert!(refused(&|path, _| mode(path, 0o755)).contains("others could have changed it"));
        assert!(refused(&|_, folder| mode(&folder.file(), 0o644)).contains("others could have changed it"));
        let linked = refused(&|path, folder| {
            fs::rename(folder.file(), path.join("other")).unwrap();
            symlink(path.join("other"), folder.file()).unwrap();
        });
        assert!(linked.contains("can't use the cache"), "{linked}");
        let not_a_file = refused(&|_, folder| {
            fs::remove_file(folder.file()).unwrap();
            fs::create_dir(folder.file()).unwrap();
        });
        assert!(not_a_file.contains("something else"), "{not_a_file}");
    }

    #[test]
    fn trying_out_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        Folder::at(dir.path()).try_out().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let folder = written(dir.path());
        folder.try_out().unwrap();
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
        let error = folder.try_out().unwrap_err();
        assert!(error.to_string().contains("others could have changed it"), "{error}");
        assert_eq!(error.hint(), Some(&*format!("rm -r {}", folder.0.display())));
        assert_eq!(Folder::at(Path::new("/nowhere")).try_out().unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn none_is_made_in_somebody_elses_folder() {
        let dir = tempfile::tempdir().unwrap();
        // Where this runs without root the folders of this machine are somebody else's already.
        let above = if user() == 0 { dir.path() } else { Path::new("/") };
        if user() == 0 {
            std::os::unix::fs::chown(above, Some(65_534), None).unwrap();
        }
        for result in [Folder::at(above).replace(|_| Ok(())), Folder::at(above).try_out()] {
            assert!(result.unwrap_err().to_string().contains("belongs to somebody else"));
        }
        assert!(!above.join(FOLDER).exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::at(&dir.path().join("missing"));
        assert_eq!(folder.replace(|_| Ok(())).unwrap_err().kind(), ErrorKind::Io);
        // A write that fails leaves the old one in place.
        let folder = written(dir.path());
        folder.replace(|_| Err(io::Error::other("disk full"))).unwrap_err();
        assert_eq!(folder.open().unwrap().unwrap()[..], *b"tables");
        assert_eq!(fs::read_dir(dir.path().join(FOLDER)).unwrap().count(), 1);
    }
}
