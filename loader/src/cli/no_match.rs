//! Nothing matches: finds out what the user may have meant.

use std::{collections::BTreeSet, path::Path};

use fastprobe::{Error, ErrorKind, pattern::near::near_misses, tables::Tables};

use super::{args::Select, select::Patterns};

/// Near misses shown for each pattern.
const SUGGESTIONS: usize = 3;

/// Where `depmod` lists the modules that come with a kernel.
const MODULES_DEP: &str = "modules.dep";

/// The error for patterns that match nothing, with a hint for each likely cause.
pub fn explain(select: &Select, patterns: &Patterns, tables: &Tables) -> fastprobe::Result<Error> {
    let wanted: Vec<_> = patterns.texts.iter().take(SUGGESTIONS).map(ToString::to_string).collect();
    let more = patterns.texts.len().saturating_sub(wanted.len());
    let more = if more > 0 { format!(" nor {more} other patterns") } else { String::new() };
    let message = format!("no kernel function matches {}{more}", wanted.join(" or "));
    // Tables that can't be read to their end have no suggestions.
    let mut hints: Vec<String> = near(patterns, tables).ok().flatten().into_iter().collect();
    hints.extend(missing_modules(patterns, tables));
    hints.extend(expanded_by_the_shell(select));
    let error = Error::new(ErrorKind::NoMatch, message);
    Ok(if hints.is_empty() { error } else { error.with_hint(hints.join("\n")) })
}

/// What has almost the same name, nearest first.
fn near(patterns: &Patterns, tables: &Tables) -> fastprobe::Result<Option<String>> {
    let mut names: Vec<Box<[u8]>> = Vec::new();
    tables.for_each_function(|function| {
        names.push(function.name.into());
        Ok(())
    })?;
    let mut found = Vec::new();
    for pattern in patterns.texts.iter().take(SUGGESTIONS) {
        let near = near_misses(pattern, names.iter().map(|name| &**name), SUGGESTIONS);
        found.extend(near.iter().map(ToString::to_string));
    }
    Ok((!found.is_empty()).then(|| format!("did you mean {}?", found.join(" or "))))
}

/// Modules that the patterns name, or that their names begin with, and that aren't loaded.
fn missing_modules(patterns: &Patterns, tables: &Tables) -> Vec<String> {
    let named: BTreeSet<&str> =
        patterns.set.named_modules().filter(|m| !tables.has_module(m.as_bytes())).collect();
    if !named.is_empty() {
        return named
            .iter()
            .take(SUGGESTIONS)
            .map(|m| format!("is the module {m} loaded? modprobe {m} (lsmod shows those that are)"))
            .collect();
    }
    let installed = installed_modules();
    let candidates =
        patterns.texts.iter().filter_map(|pattern| module_in_name(pattern.literal_head(), &installed));
    let missing: BTreeSet<_> = candidates.filter(|module| !tables.has_module(module.as_bytes())).collect();
    missing.into_iter().map(|m| format!("the module {m} isn't loaded: modprobe {m}")).collect()
}

/// The longest beginning of `head`, cut at an underscore, that is a module: `nf_tables_new` → `nf_tables`.
fn module_in_name(head: &str, installed: &BTreeSet<String>) -> Option<String> {
    let mut head = head.trim_end_matches('_');
    while !head.is_empty() {
        if installed.contains(head) {
            return Some(head.to_owned());
        }
        head = head.rfind('_').map_or("", |at| &head[..at]);
    }
    None
}

/// The modules that came with the running kernel, `-` written as `_`; none where that can't be read.
fn installed_modules() -> BTreeSet<String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let path = Path::new("/lib/modules").join(release.trim_end()).join(MODULES_DEP);
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.lines().filter_map(module_of_line).collect()
}

/// `kernel/arch/x86/kvm/kvm.ko.xz: kernel/…` → `kvm`
fn module_of_line(line: &str) -> Option<String> {
    let path = line.split(':').next()?;
    let file = path.rsplit('/').next()?;
    let (name, _) = file.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

/// An unquoted `kvm*` in a folder with a file `kvm.txt` arrives here as `kvm.txt`.
fn expanded_by_the_shell(select: &Select) -> Option<String> {
    let file = select.patterns.iter().find(|pattern| Path::new(pattern).exists())?;
    Some(format!(
        "{file} is a file here; if the shell made it out of a pattern, quote that: fastprobe 'kvm*'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_the_names_of_their_functions() {
        let installed = ["kvm", "nf_tables"].map(String::from).into();
        assert_eq!(module_in_name("nf_tables_new", &installed), Some("nf_tables".into()));
        assert_eq!(module_in_name("kvm", &installed), Some("kvm".into()));
        assert_eq!(module_in_name("nf_", &installed), None);
        assert_eq!(module_in_name("", &installed), None);
    }

    #[test]
    fn modules_dep_is_read_line_by_line() {
        assert_eq!(module_of_line("kernel/drivers/net/dummy-x.ko.xz: a"), Some("dummy_x".into()));
        assert_eq!(module_of_line("nonsense"), None);
    }
}
