//! Debian's packages: installed into the system, or from any suite into a folder without touching the system.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{cache, process, say};

/// The keyring that Debian's own sources are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Installs packages into the system.
///
/// # Errors
///
/// When not root: with the line to run instead.
pub fn install(packages: &[&str]) -> Result<()> {
    // SAFETY: geteuid only reads.
    if unsafe { libc::geteuid() } != 0 {
        bail!(
            "packages are missing; as root: apt-get install --no-install-recommends {}",
            packages.join(" ")
        );
    }
    say::step(&format!("installing Debian packages: {}", packages.join(", ")), || {
        let mut install = Command::new("apt-get");
        install
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "-q", "--no-install-recommends"])
            .args(packages);
        // On a fresh machine the package lists are empty or old.
        if process::output(&mut install).is_err() {
            process::output(Command::new("apt-get").args(["update", "-q"]))?;
            process::output(&mut install)?;
        }
        Ok(())
    })
}

/// A suite of Debian's archive, on the mirror that this machine uses.
#[derive(Debug)]
pub struct Suite {
    name: String,
    options: Vec<String>,
}

impl Suite {
    /// Opens a suite, `trixie-backports` for one, with the package lists as of now.
    ///
    /// # Errors
    ///
    /// When the machine's own sources name no Debian mirror, or it can't be reached.
    pub fn open(name: &str) -> Result<Self> {
        let folder = cache::folder()?.join("apt").join(name);
        for sub in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(sub)).context("can't make folders for package lists")?;
        }
        let sources = folder.join("sources.list");
        fs::write(&sources, format!("deb [signed-by={KEYRING}] {} {name} main\n", mirror()?))?;
        let option = |key: &str, value: &Path| format!("{key}={}", value.display());
        let options = vec![
            option("Dir::Etc::SourceList", &sources),
            "Dir::Etc::SourceParts=/dev/null".into(),
            option("Dir::State::Lists", &folder.join("lists")),
            option("Dir::Cache", &folder),
            "APT::Sandbox::User=root".into(),
        ];
        let suite = Self { name: name.into(), options };
        say::step(&format!("reading the package lists of {name}"), || {
            process::output(suite.apt("apt-get").args(["update", "-q"]))
        })?;
        Ok(suite)
    }

    /// The versions of a package, newest first.
    ///
    /// # Errors
    ///
    /// When apt fails.
    pub fn versions(&self, package: &str) -> Result<Vec<String>> {
        let text = process::output(self.apt("apt-cache").args(["madison", package]))?;
        Ok(text.lines().filter_map(|line| Some(line.split('|').nth(1)?.trim().to_owned())).collect())
    }

    /// The packages that a package needs, alternatives left out.
    ///
    /// # Errors
    ///
    /// When the suite has no such package.
    pub fn dependencies(&self, package: &str) -> Result<Vec<String>> {
        let text = process::output(self.apt("apt-cache").args(["show", "--no-all-versions", package]))?;
        Ok(dependencies_in(&text))
    }

    /// Unpacks packages (`name` or `name=version`) into `folder`.
    ///
    /// # Errors
    ///
    /// When they can't be had or unpacked.
    pub fn unpack(&self, packages: &[String], folder: &Path) -> Result<()> {
        let downloads = tempfile::tempdir()?;
        say::step(&format!("fetching {} from {}", packages.join(", "), self.name), || {
            process::output(
                self.apt("apt-get").args(["download", "-q"]).args(packages).current_dir(downloads.path()),
            )
        })?;
        for file in fs::read_dir(downloads.path())? {
            process::output(Command::new("dpkg").arg("-x").arg(file?.path()).arg(folder))?;
        }
        Ok(())
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.args(["-o", option]);
        }
        command
    }
}

/// The names in the `Depends:` lines of a package's record.
fn dependencies_in(record: &str) -> Vec<String> {
    let lists = record.lines().filter_map(|line| line.strip_prefix("Depends:"));
    let entries = lists.flat_map(|list| list.split(',')).filter(|entry| !entry.contains('|'));
    entries.filter_map(|entry| entry.split_whitespace().next()).map(str::to_owned).collect()
}

/// The mirror in the machine's own sources.
///
/// # Errors
///
/// When they name none.
pub fn mirror() -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    files.extend(parts.map(|entry| entry.path()));
    files.sort();
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = os.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("bookworm");
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let found = match file.extension().and_then(|e| e.to_str()) {
            Some("sources") => mirror_in_sources(&text, codename),
            _ => mirror_in_list(&text, codename),
        };
        if let Some(mirror) = found {
            return Ok(mirror);
        }
    }
    bail!(
        "no Debian mirror for {codename} in /etc/apt/sources.list or sources.list.d: this needs Debian's own sources"
    )
}

/// The first mirror of a `.sources` file that has the suite and component `main`.
fn mirror_in_sources(text: &str, suite: &str) -> Option<String> {
    text.split("\n\n").find_map(|stanza| {
        let field = |name: &str| {
            let mut lines = stanza.lines().filter(|line| !line.starts_with('#'));
            lines.find_map(|line| line.strip_prefix(name)).unwrap_or_default().split_whitespace()
        };
        let fits = field("Suites:").any(|s| s == suite) && field("Components:").any(|c| c == "main");
        fits.then(|| field("URIs:").next().map(str::to_owned)).flatten()
    })
}

/// The first mirror of a `.list` file that has the suite and component `main`.
fn mirror_in_list(text: &str, suite: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let line = line.strip_prefix("deb ")?.trim_start();
        let line = if line.starts_with('[') { line.split_once(']')?.1 } else { line };
        let mut words = line.split_whitespace();
        let (mirror, in_suite) = (words.next()?, words.next()?);
        (in_suite == suite && words.any(|c| c == "main")).then(|| mirror.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_found_in_both_forms() {
        let sources = "Types: deb\n# URIs: http://old\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates\n\
                       Components: main\n\nTypes: deb\nURIs: http://security\nSuites: bookworm-security\nComponents: main\n";
        assert_eq!(mirror_in_sources(sources, "bookworm").as_deref(), Some("http://mirror/debian"));
        assert_eq!(mirror_in_sources(sources, "trixie"), None);
        let list = "# deb http://no bookworm main\ndeb [arch=amd64 signed-by=/k] http://other stable x\n\
                    deb [a=b] http://mirror/debian bookworm main contrib\n";
        assert_eq!(mirror_in_list(list, "bookworm").as_deref(), Some("http://mirror/debian"));
        assert_eq!(mirror_in_list("deb http://cloud cloud-sdk-bookworm main", "bookworm"), None);
    }

    #[test]
    fn dependencies_are_names_without_versions_or_alternatives() {
        let record = "Package: a\nDepends: linux-base-7 (= 1), dracut | initramfs-tools (>= 2), linux-binary-7\nVersion: 1\n";
        assert_eq!(dependencies_in(record), ["linux-base-7", "linux-binary-7"]);
    }
}
