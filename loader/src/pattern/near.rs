//! What the user may have meant when nothing matches.

use std::{collections::HashMap, fmt};

use super::{PatternText, variant::is_function};

/// A guess: something that does match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suggestion {
    pattern: String,
    functions: usize,
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.functions {
            1 => write!(f, "'{}'", self.pattern),
            count => write!(f, "'{}' ({count} functions)", self.pattern),
        }
    }
}

/// With fewer letters, everything is near.
const MIN_LETTERS: usize = 3;

/// Nobody types a longer one, and comparing takes time with the square of it.
const MAX_LETTERS: usize = 128;

/// The nearest `most` guesses for `pattern` among `names`, nearest first.
///
/// What is compared is the plain text that the pattern starts with: for a name all of it, for a glob the
/// beginnings of that length, so that `kmv*` leads to `kvm*`. Letters in the wrong case cost nothing; otherwise
/// a third of the letters may differ.
pub fn near_misses<'a>(
    pattern: &PatternText,
    names: impl Iterator<Item = &'a [u8]>,
    most: usize,
) -> Vec<Suggestion> {
    let head = pattern.literal_head();
    let whole_name = head.len() == pattern.parts().1.len();
    let letters = head.chars().count();
    if !(MIN_LETTERS..=MAX_LETTERS).contains(&letters) {
        return Vec::new();
    }
    let allowed = letters.div_ceil(3).min(5);
    let lower = head.to_lowercase();
    let mut found = Vec::new();
    for (candidate, functions) in candidates(head, whole_name, names) {
        if candidate.len().abs_diff(head.len()) <= allowed {
            let distance = strsim::damerau_levenshtein(&lower, &candidate.to_lowercase());
            if distance <= allowed {
                found.push((distance, std::cmp::Reverse(functions), candidate));
            }
        }
    }
    found.sort();
    let star = if whole_name { "" } else { "*" };
    let suggestion = |(_, functions, text): (usize, std::cmp::Reverse<usize>, &str)| Suggestion {
        pattern: format!("{text}{star}"),
        functions: functions.0,
    };
    found.into_iter().take(most).map(suggestion).collect()
}

/// The distinct texts to compare with, and how many functions each stands for.
fn candidates<'a>(
    head: &str,
    whole_name: bool,
    names: impl Iterator<Item = &'a [u8]>,
) -> HashMap<&'a str, usize> {
    let mut counts = HashMap::new();
    for name in names.filter(|name| is_function(name)).filter_map(|name| std::str::from_utf8(name).ok()) {
        let text = if whole_name { Some(name) } else { name.get(..head.len()) };
        if let Some(text) = text {
            *counts.entry(text).or_insert(0) += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses(pattern: &str, names: &[&str]) -> Vec<String> {
        let names = names.iter().map(|name| name.as_bytes());
        near_misses(&PatternText::argument(pattern), names, 2).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn swapped_letters_lead_to_the_name_and_to_the_glob() {
        let names = ["kvm_init", "kvm_exit", "vfs_read", "vfs_readv", "__pfx_vfs_read"];
        assert_eq!(guesses("kmv*", &names), ["'kvm*' (2 functions)"]);
        assert_eq!(guesses("vfs_raed", &names), ["'vfs_read'", "'vfs_readv'"]);
        assert_eq!(guesses("VFS_READ", &names), ["'vfs_read'", "'vfs_readv'"]);
        assert_eq!(guesses("zzzzzz", &names), [""; 0]);
        assert_eq!(guesses("*nothing", &names), [""; 0]);
        assert_eq!(guesses(&"v".repeat(500), &[&"v".repeat(499)]), [""; 0]);
    }
}
