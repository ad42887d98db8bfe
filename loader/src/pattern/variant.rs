//! What compilers make of a function's name.

/// Suffixes that mark a clone of a function: the name before them is the one in the source.
const CLONE_SUFFIXES: [&[u8]; 4] = [b"isra", b"constprop", b"part", b"llvm"];

/// The name in the source: without `.isra.0`, `.constprop.1`, `.part.0`, `.llvm.1234` and sequences of them.
pub fn base_name(name: &[u8]) -> &[u8] {
    let mut base = name;
    while let Some(shorter) = without_clone_suffix(base) {
        base = shorter;
    }
    base
}

/// `foo.isra.0` or `foo.isra` → `foo`; none where the name ends in no such suffix, or is nothing but one.
fn without_clone_suffix(name: &[u8]) -> Option<&[u8]> {
    let (rest, last) = split_last_part(name)?;
    if CLONE_SUFFIXES.contains(&last) {
        return Some(rest);
    }
    let (rest, suffix) = split_last_part(rest)?;
    let numbered = !last.is_empty() && last.iter().all(u8::is_ascii_alphanumeric);
    (numbered && CLONE_SUFFIXES.contains(&suffix)).then_some(rest)
}

/// `a.b.c` → `a.b` and `c`. Names that begin with a dot have no part before it.
fn split_last_part(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let dot = memchr::memrchr(b'.', name).filter(|&dot| dot > 0)?;
    Some((&name[..dot], &name[dot + 1..]))
}

/// Whether the symbol is a function of its own: not the padding before one (`__pfx_`, `__cfi_`), and not a part
/// that the compiler moved out of the way (`foo.cold`, `foo.part.0.cold.3`). None of these has an ftrace record.
pub fn is_function(name: &[u8]) -> bool {
    let padding = name.starts_with(b"__pfx_") || name.starts_with(b"__cfi_");
    // Most names have no dot, and finding that out is all they cost.
    let cold =
        memchr::memchr(b'.', name).is_some_and(|dot| name[dot..].split(|&b| b == b'.').any(|p| p == b"cold"));
    !padding && !cold
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_belong_to_their_base() {
        for (name, base) in [
            ("vfs_read", "vfs_read"),
            ("foo.isra.0", "foo"),
            ("foo.isra", "foo"),
            ("foo.constprop.0.isra.12", "foo"),
            ("foo.part.0", "foo"),
            ("foo.llvm.1234567890abcdef", "foo"),
            ("kvm_cpuid_base.3", "kvm_cpuid_base.3"),
            ("foo.bar.isra.0", "foo.bar"),
            (".isra.0", ".isra.0"),
            ("foo.isra.", "foo.isra."),
            ("", ""),
            (".", "."),
        ] {
            assert_eq!(base_name(name.as_bytes()), base.as_bytes(), "{name}");
        }
    }

    #[test]
    fn padding_and_cold_parts_are_no_functions() {
        for name in ["__pfx_vfs_read", "__cfi_vfs_read", "foo.cold", "foo.part.0.cold", "foo.cold.3"] {
            assert!(!is_function(name.as_bytes()), "{name}");
        }
        for name in ["vfs_read", "foo.isra.0", "cold", "foo.colder", "__pf", ".text"] {
            assert!(is_function(name.as_bytes()), "{name}");
        }
    }
}
