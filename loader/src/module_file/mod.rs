//! What a kernel module's file (`.ko`) imports and exports.
//!
//! kallsyms knows a loaded module's functions, but neither which functions of others it calls nor which of
//! its own it offers: that is in its file only. The file is found through `modules.dep`, decompressed, and
//! its symbol table read. Nothing is asked of the running kernel, so the module needn't be loaded, nor its
//! kernel booted.

mod decompress;
mod find;
mod symbols;

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use crate::error::{Error, ErrorKind, Result};

/// The largest file that is read, and the largest module after decompression: amdgpu, the largest of Debian's
/// 7.3, takes 48 MiB.
const MAX_BYTES: u64 = 256 << 20;

/// The names that the file of `module` wants from the core kernel and from other modules: distinct, sorted.
///
/// `root` is the folder that `lib/modules` or `usr/lib/modules` is in: `/`, or a saved copy. `release` is
/// what `uname -r` prints. In `module`, `-` and `_` are the same.
///
/// Imports are the undefined symbols, functions and data alike. Weak ones are among them: the kernel loads a
/// module without them. The rule is that of `simplify_symbols` in `kernel/module/main.c` (`kernel/module.c`
/// before 5.18), the same for every kernel since 2.6; compared with `nm` on modules of 6.1, 6.12 and 7.3. The
/// file must be ELF64, little-endian.
///
/// # Errors
///
/// `Usage` for a release that isn't a folder's name and for a module that is built into the kernel; `NoMatch`
/// for one that isn't installed, with near misses; `Unsupported` where the release has no `modules.dep`;
/// `Malformed` for an entry that leads out of the modules' folder, and for a file that is cut short, corrupt,
/// no module, or unpacks to more than 256 MiB; `Permission` and `Io` where it can't be read.
pub fn imports(root: &Path, release: &str, module: &str) -> Result<Vec<Box<[u8]>>> {
    let file = find::find(root, release, module)?;
    symbols::imports(&file, &load(&file)?)
}

/// The names that the file of `module` exports to others (`EXPORT_SYMBOL` and its kin): distinct, sorted.
///
/// The arguments are those of [`imports`]. What a namespace or a list of modules restricts
/// (`EXPORT_SYMBOL_NS`, `EXPORT_SYMBOL_FOR_MODULES`) is exported all the same.
///
/// An export is an entry in one of the sections `__ksymtab` and `__ksymtab_gpl`, labelled `__ksymtab_NAME`;
/// its name is in `__ksymtab_strings`, labelled `__kstrtab_NAME`. Either label counts, since
/// `INSTALL_MOD_STRIP=--strip-unneeded` leaves only the second. `include/linux/export.h` makes them up to
/// 6.4, modpost after that (`include/linux/export-internal.h`). In 7.3 all entries are in `__ksymtab`, and
/// licences in `__kflagstab`; the labels are the same. Kernels since 2.6; compared with `nm` on modules of
/// 6.1, 6.12 and 7.3. The file must be ELF64, little-endian.
///
/// # Errors
///
/// As for [`imports`].
pub fn exports(root: &Path, release: &str, module: &str) -> Result<Vec<Box<[u8]>>> {
    let file = find::find(root, release, module)?;
    symbols::exports(&file, &load(&file)?)
}

/// The module in `file`, decompressed.
fn load(file: &Path) -> Result<Vec<u8>> {
    let bytes = read_whole(file).map_err(|cause| {
        let gone = cause.kind() == io::ErrorKind::NotFound;
        let error = cant_read(file, cause);
        if gone { error.with_hint("modules.dep names it and is out of date: run depmod") } else { error }
    })?;
    decompress::decompress(file, bytes, MAX_BYTES)
}

/// All of a regular file of at most [`MAX_BYTES`]. Anything else, as a pipe, could keep the reader for ever.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::with_capacity(metadata.len().min(MAX_BYTES) as usize);
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("larger than {} MiB", MAX_BYTES >> 20)));
    }
    Ok(bytes)
}

/// The error for a file that can't be read.
fn cant_read(path: &Path, cause: io::Error) -> Error {
    let message = format!("can't read {}", path.display());
    let error = match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            Error::new(ErrorKind::Permission, message).with_hint("run it as root")
        }
        _ => Error::new(ErrorKind::Io, message),
    };
    error.with_source(cause)
}

#[cfg(test)]
mod tests {
    use super::{symbols::tests::Fake, *};

    /// A root with one module, `kernel/a/some-mod.ko`.
    fn root_with(module: &[u8]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("usr/lib/modules/6.1");
        fs::create_dir_all(folder.join("kernel/a")).unwrap();
        fs::write(folder.join("modules.dep"), "kernel/a/some-mod.ko:\n").unwrap();
        fs::write(folder.join("kernel/a/some-mod.ko"), module).unwrap();
        dir
    }

    #[test]
    fn a_module_is_found_and_read_under_either_spelling() {
        let root = root_with(&Fake::example().build());
        for name in ["some-mod", "some_mod"] {
            assert_eq!(
                *imports(root.path(), "6.1", name).unwrap(),
                [Box::from(*b"kfree"), Box::from(*b"printk")]
            );
            assert_eq!(
                *exports(root.path(), "6.1", name).unwrap(),
                [Box::from(*b"api"), Box::from(*b"api_gpl")]
            );
        }
    }

    #[test]
    fn a_file_that_is_gone_blames_modules_dep() {
        let root = root_with(b"");
        let file = root.path().join("usr/lib/modules/6.1/kernel/a/some-mod.ko");
        fs::remove_file(&file).unwrap();
        let error = imports(root.path(), "6.1", "some-mod").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.to_string(), format!("can't read {}", file.display()));
        assert!(error.hint().unwrap().contains("depmod"));
    }

    #[test]
    fn a_folder_where_a_file_should_be_is_an_error() {
        let root = root_with(b"");
        let file = root.path().join("usr/lib/modules/6.1/kernel/a/some-mod.ko");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        let error = exports(root.path(), "6.1", "some-mod").unwrap_err();
        assert_eq!(format!("{error:#}"), format!("can't read {}: not a regular file", file.display()));
    }
}
