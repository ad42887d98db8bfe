//! Where a module's file lies: `modules.dep` knows.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use crate::{
    error::{Error, ErrorKind, Result},
    pattern::{PatternText, near::near_misses},
};

/// Where modules are installed: since /usr was merged, a package may own either of these names for the one
/// folder, and a saved copy may have only one of them.
const PLACES: [&str; 2] = ["lib/modules", "usr/lib/modules"];

/// The module files that `depmod` found, each with what it needs. Only the one that modprobe would load is
/// listed, so that `updates/` wins over `kernel/`.
const FILES: &str = "modules.dep";

/// The modules that are part of the core kernel.
const BUILT_IN: &str = "modules.builtin";

/// Near misses shown.
const SUGGESTIONS: usize = 3;

/// The file of `module` for the kernel `release`.
///
/// `modules.dep` is read in `lib/modules`, then in `usr/lib/modules`. Its entries stay within their folder; a
/// symbolic link on the way is followed, since weak-updates are made of them.
pub fn find(root: &Path, release: &str, module: &str) -> Result<PathBuf> {
    if release.is_empty() || release.contains('/') || matches!(release, "." | "..") {
        return Err(Error::new(ErrorKind::Usage, format!("“{release}” is no kernel release"))
            .with_hint("uname -r prints one, ls /lib/modules all"));
    }
    let wanted = module.replace('-', "_");
    let folders = PLACES.map(|place| root.join(place).join(release));
    let (mut read, mut known, mut built_in) = (Vec::new(), BTreeSet::new(), false);
    for folder in &folders {
        if let Some((path, text)) = lines_of(folder, FILES)? {
            for (line, number) in text.split(|&byte| byte == b'\n').zip(1..) {
                let entry = line.split(|&byte| byte == b':').next().unwrap_or_default();
                match module_in(entry) {
                    Some(name) if name == wanted.as_bytes() => {
                        let within = within(folder, release, entry);
                        return within.ok_or_else(|| leads_out(&path, number, entry));
                    }
                    name => known.extend(name.map(Cow::into_owned)),
                }
            }
            read.push(path.display().to_string());
        }
        if let Some((_, text)) = lines_of(folder, BUILT_IN)? {
            known.extend(text.split(|&byte| byte == b'\n').filter_map(module_in).map(Cow::into_owned));
            built_in |= known.contains(wanted.as_bytes());
        }
    }
    Err(if built_in {
        Error::new(ErrorKind::Usage, format!("{module} is built into kernel {release} and has no file"))
            .with_hint("its functions are among the core kernel's: 'vmlinux:…'")
    } else if read.is_empty() {
        let [first, second] = folders.map(|folder| folder.display().to_string());
        let message =
            format!("no modules of kernel {release}: modules.dep is neither in {first} nor in {second}");
        Error::new(ErrorKind::Unsupported, message)
            .with_hint(format!("install that kernel's modules, or if they are there, run depmod {release}"))
    } else {
        Error::new(ErrorKind::NoMatch, format!("no module {module} in {}", read.join(" nor in ")))
            .with_hint(remedy(&wanted, &known))
    })
}

/// What to do about a module that isn't installed.
fn remedy(wanted: &str, known: &BTreeSet<Vec<u8>>) -> String {
    let names = known.iter().map(Vec::as_slice);
    let near: Vec<_> = near_misses(&PatternText::argument(wanted), names, SUGGESTIONS)
        .iter()
        .map(ToString::to_string)
        .collect();
    if near.is_empty() {
        "install the package it comes in; if it is installed, run depmod".to_owned()
    } else {
        format!("did you mean {}?", near.join(" or "))
    }
}

/// A list in `folder`, with its path; none where it isn't there.
fn lines_of(folder: &Path, name: &str) -> Result<Option<(PathBuf, Vec<u8>)>> {
    let path = folder.join(name);
    match super::read_whole(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(super::cant_read(&path, e)),
    }
}

/// `kernel/arch/x86/kvm/kvm-amd.ko.xz` → `kvm_amd`
fn module_in(entry: &[u8]) -> Option<Cow<'_, [u8]>> {
    let file = entry.rsplit(|&byte| byte == b'/').next()?;
    let name = &file[..memchr::memmem::find(file, b".ko")?];
    Some(match memchr::memchr(b'-', name) {
        None => Cow::Borrowed(name),
        Some(_) => name.iter().map(|&byte| if byte == b'-' { b'_' } else { byte }).collect(),
    })
}

/// The path of an entry, if it stays below `folder`. Old versions of `depmod` wrote absolute paths.
fn within(folder: &Path, release: &str, entry: &[u8]) -> Option<PathBuf> {
    let entry = Path::new(OsStr::from_bytes(entry));
    let below = if entry.is_absolute() {
        let installed = PLACES.iter().map(|place| Path::new("/").join(place).join(release));
        installed.chain([folder.to_owned()]).find_map(|place| entry.strip_prefix(place).ok())?
    } else {
        entry
    };
    let stays = below.components().all(|component| matches!(component, Component::Normal(_)));
    stays.then(|| folder.join(below))
}

fn leads_out(path: &Path, number: usize, entry: &[u8]) -> Error {
    let shown = entry.escape_ascii();
    let message = format!("{}:{number}: a path out of the modules' folder: “{shown}”", path.display());
    Error::new(ErrorKind::Malformed, message).with_hint("depmod doesn't write that; see what did")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn root_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    /// What is found, relative to the root.
    fn found(root: &tempfile::TempDir, module: &str) -> PathBuf {
        find(root.path(), "6.1", module).unwrap().strip_prefix(root.path()).unwrap().to_owned()
    }

    #[test]
    fn dashes_and_underscores_are_the_same_on_both_sides() {
        let root = root_with(&[(
            "lib/modules/6.1/modules.dep",
            "kernel/kvm.ko:\nkernel/kvm-amd.ko.xz: kernel/kvm.ko\nkernel/nf_tables.ko.zst:\n",
        )]);
        for name in ["kvm-amd", "kvm_amd"] {
            assert_eq!(found(&root, name), Path::new("lib/modules/6.1/kernel/kvm-amd.ko.xz"));
        }
        assert_eq!(found(&root, "nf-tables"), Path::new("lib/modules/6.1/kernel/nf_tables.ko.zst"));
        assert_eq!(found(&root, "kvm"), Path::new("lib/modules/6.1/kernel/kvm.ko"));
    }

    #[test]
    fn the_second_place_has_what_the_first_lacks() {
        let root = root_with(&[
            ("lib/modules/6.1/modules.dep", "kernel/a.ko:\n"),
            ("usr/lib/modules/6.1/modules.dep", "kernel/a.ko:\nupdates/dkms/b.ko.gz:"),
        ]);
        assert_eq!(found(&root, "a"), Path::new("lib/modules/6.1/kernel/a.ko"));
        assert_eq!(found(&root, "b"), Path::new("usr/lib/modules/6.1/updates/dkms/b.ko.gz"));
    }

    #[test]
    fn a_built_in_module_is_told_from_a_missing_one() {
        let root = root_with(&[
            ("lib/modules/6.1/modules.dep", "kernel/dummy-hcd.ko:\n"),
            ("usr/lib/modules/6.1/modules.dep", "kernel/dummy-hcd.ko:\n"),
            ("lib/modules/6.1/modules.builtin", "kernel/fs/ext-4.ko\nkernel/fs/iosf_mbi.ko\n"),
        ]);
        let error = find(root.path(), "6.1", "ext_4").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string(), "ext_4 is built into kernel 6.1 and has no file");
        assert!(error.hint().unwrap().contains("vmlinux:"));

        let error = find(root.path(), "6.1", "dumy_hcd").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoMatch);
        assert!(error.to_string().contains("lib/modules/6.1/modules.dep nor in "), "{error}");
        assert_eq!(error.hint(), Some("did you mean 'dummy_hcd'?"));
        let error = find(root.path(), "6.1", "iosf-mib").unwrap_err();
        assert_eq!(error.hint(), Some("did you mean 'iosf_mbi'?"));
        let error = find(root.path(), "6.1", "").unwrap_err();
        assert!(error.hint().unwrap().contains("depmod"), "{error}");
    }

    #[test]
    fn a_release_without_modules_names_both_places() {
        let root = root_with(&[]);
        let error = find(root.path(), "6.1", "kvm").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        for place in PLACES {
            let place = root.path().join(place).join("6.1").display().to_string();
            assert!(error.to_string().contains(&place), "{error}");
        }
        for release in ["", ".", "..", "../6.1", "/etc"] {
            assert_eq!(find(root.path(), release, "kvm").unwrap_err().kind(), ErrorKind::Usage, "{release}");
        }
    }

    #[test]
    fn entries_stay_within_their_folder() {
        let list = "/etc/a.ko:\n../../b.ko:\nkernel/../../c.ko:\n/lib/modules/6.1/../d.ko:\n\
                    /lib/modules/6.1/kernel/e.ko:\n/usr/lib/modules/6.1/f.ko:\n/lib/modules/6.10/g.ko:\n";
        let root = root_with(&[("lib/modules/6.1/modules.dep", list)]);
        for (module, line) in [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("g", 7)] {
            let error = find(root.path(), "6.1", module).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{module}");
            assert!(error.to_string().contains(&format!("modules.dep:{line}: ")), "{error}");
        }
        assert_eq!(found(&root, "e"), Path::new("lib/modules/6.1/kernel/e.ko"));
        assert_eq!(found(&root, "f"), Path::new("lib/modules/6.1/f.ko"));
    }

    #[test]
    fn nonsense_in_the_lists_is_no_module() {
        let noise = ["", ":", "\n\n::\n", "kernel/", "\u{0}\u{0}", "a.k", "/", ".ko:\nx.ko"].join("\n");
        let root = root_with(&[("lib/modules/6.1/modules.dep", &noise)]);
        assert_eq!(find(root.path(), "6.1", "kvm").unwrap_err().kind(), ErrorKind::NoMatch);
        assert_eq!(found(&root, "x"), Path::new("lib/modules/6.1/x.ko"));
    }
}
