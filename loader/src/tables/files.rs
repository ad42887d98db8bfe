//! Where a kernel's tables lie, and what it means when one can't be opened.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::text::Columns;
use crate::error::{Error, ErrorKind, Result};

/// Where tracefs is found: its own mount point (4.1 and later), then the one that debugfs makes.
const TRACEFS: [&str; 2] = ["sys/kernel/tracing", "sys/kernel/debug/tracing"];

const KALLSYMS: &str = "proc/kallsyms";
const MODULES: &str = "proc/modules";
const BLACKLIST: &str = "sys/kernel/debug/kprobes/blacklist";
const LOCKDOWN: &str = "sys/kernel/security/lockdown";

/// An opened file and its name for messages.
pub type Opened = (PathBuf, File);

/// Opens a file that is one: a pipe would keep us waiting for ever, a device could go on without an end.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// The folder that `proc` and `sys` are read below: `/`, or a saved copy of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// This machine.
    pub fn machine() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A saved copy: `dir/proc/kallsyms`, `dir/sys/kernel/tracing/…`.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self(dir.into())
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The kernel's release, as `uname -r` prints it.
    ///
    /// # Errors
    ///
    /// `Io` where it can't be read.
    pub fn release(&self) -> Result<String> {
        let path = self.0.join("proc/sys/kernel/osrelease");
        let mut release = String::new();
        let read = open_regular(&path).and_then(|file| file.take(4096).read_to_string(&mut release));
        read.map_err(|e| {
            Error::new(ErrorKind::Io, format!("can't read the kernel's release in {}", path.display()))
                .with_hint("uname -r prints what belongs there")
                .with_source(e)
        })?;
        Ok(release.trim_end().to_owned())
    }

    /// The kernel's memory.
    pub fn kcore(&self) -> PathBuf {
        self.0.join("proc/kcore")
    }

    /// The types of the core kernel's structures.
    pub fn btf(&self) -> PathBuf {
        self.0.join("sys/kernel/btf/vmlinux")
    }

    /// Opens `/proc/kallsyms`.
    ///
    /// # Errors
    ///
    /// `Unsupported` where it isn't there, `Permission` where it may not be read.
    pub fn kallsyms(&self) -> Result<Opened> {
        self.open(KALLSYMS).map_err(|e| {
            self.cant_open(
                e,
                &self.0.join(KALLSYMS),
                "mount -t proc proc /proc, or a kernel with CONFIG_KALLSYMS",
            )
        })
    }

    /// The folder of tracefs, by `file` in it; the first place where it belongs, if it is nowhere.
    pub fn tracefs(&self, file: &str) -> PathBuf {
        let [first, second] = TRACEFS.map(|dir| self.0.join(dir));
        if !first.join(file).exists() && second.join(file).exists() { second } else { first }
    }

    /// Opens the list of traceable functions: the one with addresses where the kernel has it.
    ///
    /// A mount point can be there with nothing mounted on it, so what counts is the file inside.
    ///
    /// # Errors
    ///
    /// `Unsupported` with the mount command where no tracefs has the file, `Permission` where it may not be
    /// read.
    pub fn filter_functions(&self) -> Result<(Opened, Columns)> {
        let mut refused = None;
        for dir in TRACEFS {
            for (name, columns) in [
                ("available_filter_functions_addrs", Columns::AddressAndName),
                ("available_filter_functions", Columns::Name),
            ] {
                match self.open(&format!("{dir}/{name}")) {
                    Ok(opened) => return Ok((opened, columns)),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => refused = refused.or(Some((e, self.0.join(dir).join(name)))),
                }
            }
        }
        if let Some((e, path)) = refused {
            return Err(self.cant_open(e, &path, ""));
        }
        let [first, second] = TRACEFS.map(|dir| self.0.join(dir).display().to_string());
        Err(Error::new(
            ErrorKind::Unsupported,
            format!("no list of traceable functions: available_filter_functions is neither in {first} nor in {second}"),
        )
        .with_hint(
            "mount -t tracefs tracefs /sys/kernel/tracing (or mount -t debugfs debugfs /sys/kernel/debug); \
             if it is mounted, this kernel was built without CONFIG_DYNAMIC_FTRACE",
        ))
    }

    /// Opens the kprobe blacklist.
    ///
    /// # Errors
    ///
    /// `Unsupported` where it isn't there, `Permission` where it may not be read; both are survivable.
    pub fn blacklist(&self) -> Result<Opened> {
        self.open(BLACKLIST).map_err(|e| {
            self.cant_open(e, &self.0.join(BLACKLIST), "mount -t debugfs debugfs /sys/kernel/debug")
        })
    }

    /// Opens the list of loaded modules; none on a kernel without modules.
    ///
    /// # Errors
    ///
    /// `Permission` where it may not be read.
    pub fn modules(&self) -> Result<Option<Opened>> {
        match self.open(MODULES) {
            Ok(opened) => Ok(Some(opened)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.cant_open(e, &self.0.join(MODULES), "")),
        }
    }

    fn open(&self, relative: &str) -> io::Result<Opened> {
        let path = self.0.join(relative);
        let file = open_regular(&path)?;
        Ok((path, file))
    }

    /// Says what a failed `open` means and, for a file that isn't there, what brings it: `remedy`.
    fn cant_open(&self, cause: io::Error, path: &Path, remedy: &str) -> Error {
        let message = format!("can't open {}", path.display());
        let error = match cause.kind() {
            io::ErrorKind::NotFound => Error::new(ErrorKind::Unsupported, message).with_hint(remedy),
            io::ErrorKind::PermissionDenied => {
                Error::new(ErrorKind::Permission, message).with_hint(self.permission_remedy())
            }
            _ => Error::new(ErrorKind::Io, message),
        };
        error.with_source(cause)
    }

    /// Lockdown refuses even root, with the same errno as for everybody else.
    fn permission_remedy(&self) -> &'static str {
        let lockdown = std::fs::read_to_string(self.0.join(LOCKDOWN)).unwrap_or_default();
        if lockdown.contains("[confidentiality]") {
            "this kernel is locked down (confidentiality): boot with lockdown=integrity or without secure boot"
        } else {
            "run it as root: sudo fastprobe …; what else would do: fastprobe doctor"
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn root_with(files: &[&str]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let root = Root::at(dir.path());
        (dir, root)
    }

    #[test]
    fn the_list_with_addresses_comes_first_and_both_places_are_looked_at() {
        let addrs = "sys/kernel/tracing/available_filter_functions_addrs";
        let (_dir, root) = root_with(&[addrs, "sys/kernel/tracing/available_filter_functions"]);
        assert_eq!(root.filter_functions().unwrap().1, Columns::AddressAndName);
        let (_dir, root) = root_with(&["sys/kernel/debug/tracing/available_filter_functions"]);
        assert_eq!(root.filter_functions().unwrap().1, Columns::Name);
    }

    #[test]
    fn an_empty_mount_point_is_not_tracefs() {
        let (dir, root) = root_with(&[]);
        fs::create_dir_all(dir.path().join("sys/kernel/tracing")).unwrap();
        let error = root.filter_functions().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("sys/kernel/tracing nor in "), "{error}");
        assert!(error.hint().unwrap().starts_with("mount -t tracefs tracefs /sys/kernel/tracing"));
    }

    #[test]
    fn a_missing_blacklist_names_the_mount_and_missing_modules_are_none() {
        let (_dir, root) = root_with(&[]);
        assert_eq!(root.blacklist().unwrap_err().hint(), Some("mount -t debugfs debugfs /sys/kernel/debug"));
        assert!(root.modules().unwrap().is_none());
        assert_eq!(root.kallsyms().unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn lockdown_is_told_from_a_missing_root() {
        let (dir, root) = root_with(&["sys/kernel/security/lockdown"]);
        assert!(root.permission_remedy().contains("sudo"));
        fs::write(dir.path().join(LOCKDOWN), "none integrity [confidentiality]\n").unwrap();
        assert!(root.permission_remedy().contains("locked down"));
    }
}
