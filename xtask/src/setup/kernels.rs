//! The kernels of `tests/kernels.toml`, from Debian's packages.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::debian::Suite;
use crate::{cache, process, say, workspace};

/// The package that always depends on a suite's newest kernel.
const NEWEST: &str = "linux-image-amd64";

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// What `--kernel` calls it.
    pub name: String,
    /// The suite that it comes from.
    pub suite: String,
    /// Whether it was built with `CONFIG_FPROBE`.
    pub kprobe_multi: bool,
    /// Modules that the tests want loaded.
    pub modules: Vec<String>,
}

#[derive(Deserialize)]
struct List {
    kernel: Vec<Kernel>,
}

/// The kernels of the list, oldest first.
///
/// # Errors
///
/// When the list can't be read.
pub fn all() -> Result<Vec<Kernel>> {
    let path = workspace::root()?.join("tests/kernels.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
    let list: List = toml::from_str(&text).with_context(|| format!("can't read {}", path.display()))?;
    ensure!(!list.kernel.is_empty(), "{} names no kernel", path.display());
    Ok(list.kernel)
}

/// The kernel of that name; the newest where none is named.
///
/// # Errors
///
/// When the list has no such kernel: names those it has.
pub fn find(name: Option<&str>) -> Result<Kernel> {
    let kernels = all()?;
    let names: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    match name {
        None => kernels.into_iter().last(),
        Some(name) => kernels.into_iter().find(|kernel| kernel.name == name),
    }
    .with_context(|| format!("no kernel called {}; there are {}", name.unwrap_or("so"), names.join(", ")))
}

/// The kernels of these names; all where none is named.
///
/// # Errors
///
/// As [`all`] and [`find`].
pub fn chosen(names: &[String]) -> Result<Vec<Kernel>> {
    match names {
        [] => all(),
        names => names.iter().map(|name| find(Some(name))).collect(),
    }
}

/// Finds the kernel in the cache, where it stays as it was fetched, or fetches the newest of its suite; gives the path of its image, with its modules where
/// virtme-ng looks for them: beside it.
///
/// # Errors
///
/// When it can't be had.
pub fn fetch(kernel: &Kernel) -> Result<PathBuf> {
    let folder = cache::entry(&format!("kernel-{}", kernel.suite), |folder| unpack(kernel, folder))?;
    image_in(&folder)
}

/// The folder with the modules of the kernel whose image [`fetch`] gave.
///
/// # Errors
///
/// When it can't be found.
pub fn modules_of(image: &Path) -> Result<PathBuf> {
    image.ancestors().skip(1).find_map(|folder| modules_in(folder).ok()).context("a kernel without modules")
}

fn unpack(kernel: &Kernel, folder: &Path) -> Result<()> {
    let suite = Suite::open(&kernel.suite)?;
    let mut packages = Vec::new();
    collect(&suite, NEWEST, &mut packages)?;
    ensure!(!packages.is_empty(), "{NEWEST} of {} depends on no kernel", kernel.suite);
    suite.unpack(&packages, folder)?;
    let modules = modules_in(folder)?;
    let base = modules.ancestors().nth(3).context("modules in an odd place")?;
    let version = modules.file_name().context("modules in an odd place")?;
    say::step(&format!("indexing the modules of {}", version.to_string_lossy()), || {
        process::output(Command::new("/sbin/depmod").arg("-b").arg(base).arg(version))
    })?;
    image_in(folder).map(drop)
}

/// The packages with a kernel's files that `package` leads to: 6.x has one, 7.x splits it up.
fn collect(suite: &Suite, package: &str, found: &mut Vec<String>) -> Result<()> {
    for dependency in suite.dependencies(package)? {
        if is_kernel_package(&dependency) && !found.contains(&dependency) {
            found.push(dependency.clone());
            collect(suite, &dependency, found)?;
        }
    }
    Ok(())
}

/// `linux-image-6.12.95+deb12-amd64`: a part, and a version.
fn is_kernel_package(name: &str) -> bool {
    ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"].iter().any(|part| {
        name.strip_prefix(part).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// `lib/modules/VERSION`, or the same below `usr`.
fn modules_in(folder: &Path) -> Result<PathBuf> {
    for place in ["lib/modules", "usr/lib/modules"] {
        let entries = fs::read_dir(folder.join(place)).into_iter().flatten().flatten();
        if let Some(modules) = entries.map(|entry| entry.path()).find(|path| path.join("kernel").is_dir()) {
            return Ok(modules);
        }
    }
    bail!("the kernel's packages hold no modules: {}", folder.display())
}

/// `boot/vmlinuz-VERSION`, or `vmlinuz` among the modules.
fn image_in(folder: &Path) -> Result<PathBuf> {
    let modules = modules_in(folder)?;
    let version = modules.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let places = [folder.join(format!("boot/vmlinuz-{version}")), modules.join("vmlinuz")];
    let image = places.into_iter().find(|path| path.is_file());
    image.with_context(|| format!("the kernel's packages hold no image: {}", folder.display()))
}

/// What an image says of itself: `6.1.0-50-amd64, Debian 6.1.176-1 (2026-07-02)`.
///
/// # Errors
///
/// When it can't be read or says nothing.
pub fn version(image: &Path) -> Result<String> {
    let mut start = Vec::new();
    let file = fs::File::open(image).with_context(|| format!("can't open {}", image.display()))?;
    file.take(128 << 10).read_to_end(&mut start)?;
    version_in(&start).with_context(|| format!("no version in the header of {}", image.display()))
}

/// The field `kernel_version` of the boot protocol (`Documentation/arch/x86/boot.rst`; compared with the images of
/// 6.1, 6.12 and 7.3) tells where the text lies behind the boot sector. Debian's own version is at its end.
fn version_in(image: &[u8]) -> Option<String> {
    let place = u16::from_le_bytes(image.get(0x20e..0x210)?.try_into().ok()?);
    let text = image.get(0x200 + usize::from(place)..)?.split(|&b| b == 0).next()?;
    let text = String::from_utf8_lossy(text);
    let release = text.split_whitespace().next()?;
    let debian = text.find("Debian ").map(|at| format!(", {}", &text[at..]));
    Some(format!("{release}{}", debian.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kernels_are_found_by_name_and_the_last_is_the_default() {
        let kernels = all().unwrap();
        let names: BTreeSet<_> = kernels.iter().map(|kernel| &kernel.name).collect();
        assert_eq!(names.len(), kernels.len(), "a name twice: {names:?}");
        for kernel in &kernels {
            assert_eq!(&find(Some(&kernel.name)).unwrap(), kernel);
        }
        assert_eq!(find(None).unwrap(), kernels[kernels.len() - 1]);
        let error = find(Some("no such")).unwrap_err().to_string();
        assert!(names.iter().all(|name| error.contains(*name)), "{error}");
    }

    #[test]
    fn an_image_says_its_version() {
        let image = |text: &[u8]| {
            let mut image = vec![0; 0x400];
            image[0x20e..0x210].copy_from_slice(&0x200_u16.to_le_bytes());
            image.extend_from_slice(text);
            image
        };
        let text = b"6.1.0-50-amd64 (a@b) #1 SMP Debian 6.1.176-1 (2026-07-02)\0\xff";
        let expected = "6.1.0-50-amd64, Debian 6.1.176-1 (2026-07-02)";
        assert_eq!(version_in(&image(text)).as_deref(), Some(expected));
        assert_eq!(version_in(&image(b"7.3.4 (me@here) #1\0")).as_deref(), Some("7.3.4"));
        assert_eq!(version_in(&image(b"\0")), None);
        assert_eq!(version_in(&image(b"")[..0x400]), None);
        assert_eq!(version_in(b"MZ"), None);
    }

    #[test]
    fn packages_of_a_kernel_have_its_version_in_their_names() {
        for (name, is) in [
            ("linux-image-6.1.0-57-amd64", true),
            ("linux-modules-7.3.4+deb13-amd64", true),
            ("linux-base", false),
            ("linux-base-amd64", false),
            ("linux-initramfs-tool", false),
        ] {
            assert_eq!(is_kernel_package(name), is, "{name}");
        }
    }
}
