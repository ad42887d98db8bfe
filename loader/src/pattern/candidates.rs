//! Which of many patterns may match a name: exact names by a look-up, and of the others, where there are many, those
//! whose text is in the name. So a name costs about the same whether a file brings ten patterns or ten thousand.

use std::collections::HashMap;

use aho_corasick::AhoCorasick;

use super::glob::NamePattern;

/// Up to so many patterns are tried one by one in less time than it takes to look for their texts.
const TRIED_ONE_BY_ONE: usize = 16;

/// Patterns by what tells that they may match.
#[derive(Debug, Default)]
pub struct Candidates {
    exact: HashMap<Box<[u8]>, Vec<usize>>,
    /// Texts, one of which is in every name that matches.
    texts: Option<AhoCorasick>,
    /// The pattern that each text belongs to.
    of_text: Vec<usize>,
    /// Patterns of which nothing is known.
    others: Vec<usize>,
}

impl Candidates {
    /// Sorts patterns, which are known by their numbers from then on.
    pub fn new<'p>(patterns: impl Iterator<Item = &'p NamePattern>) -> Self {
        let mut candidates = Self::default();
        let mut general = Vec::new();
        for (number, pattern) in patterns.enumerate() {
            match pattern {
                NamePattern::Exact(name) => candidates.exact.entry(name.clone()).or_default().push(number),
                _ => general.push((number, pattern)),
            }
        }
        if general.len() <= TRIED_ONE_BY_ONE {
            candidates.others = general.iter().map(|&(number, _)| number).collect();
            return candidates;
        }
        let mut texts = Vec::new();
        for (number, pattern) in general {
            let of_pattern = pattern.texts();
            if of_pattern.is_empty() {
                candidates.others.push(number);
            }
            candidates.of_text.extend(of_pattern.iter().map(|_| number));
            texts.extend(of_pattern);
        }
        match AhoCorasick::new(&texts) {
            Ok(automaton) => candidates.texts = Some(automaton),
            // More texts than an automaton has room for.
            Err(_) => candidates.others.append(&mut candidates.of_text),
        }
        candidates
    }

    /// The patterns that are this name.
    pub fn exact(&self, name: &[u8]) -> &[usize] {
        if self.exact.is_empty() { &[] } else { self.exact.get(name).map_or(&[], |numbers| numbers) }
    }

    /// The others that may match it, some of them several times.
    #[inline]
    pub fn others(&self, name: &[u8]) -> impl Iterator<Item = usize> {
        let texts = self.texts.as_ref().map(|texts| texts.find_overlapping_iter(name));
        let by_text = texts.into_iter().flatten().map(|found| self.of_text[found.pattern().as_usize()]);
        self.others.iter().copied().chain(by_text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::pattern::{PatternText, Syntax};

    #[test]
    fn many_patterns_are_told_by_their_texts() {
        let mut texts: Vec<String> = (0..100).map(|i| format!("p{i}_*")).collect();
        texts.extend(["*_end".into(), "[ab]x".into(), "a?*".into(), "p7_exact".into(), "{foo,bar}*z".into()]);
        let compile =
            |text: &String| NamePattern::compile(Syntax::Glob, &PatternText::argument(text), text).unwrap();
        let patterns: Vec<_> = texts.iter().map(compile).collect();
        let candidates = Candidates::new(patterns.iter());
        assert!(candidates.others.len() <= 2, "{:?}", candidates.others);
        for name in ["p7_exact", "p77_x_end", "bx", "a1", "barz", "p7", "nothing"] {
            let expected: BTreeSet<usize> =
                (0..texts.len()).filter(|&i| patterns[i].matches(name.as_bytes())).collect();
            let mut found: BTreeSet<usize> = candidates.others(name.as_bytes()).collect();
            found.extend(candidates.exact(name.as_bytes()));
            assert!(found.is_superset(&expected), "{name}: {found:?} {expected:?}");
            assert!(found.len() <= expected.len() + 3, "{name}: {found:?}");
        }
    }
}
