//! kprobe-multi links over all targets: one, unless the kernel refuses some of them.

use std::io;

use super::{Attached, Hook, Hooks};
use crate::{
    error::{Error, ErrorKind, Result},
    isolate::{Isolated, attach_to_all_but_refused, is_about_functions},
    plan::Rejection,
    sys::Kernel,
};

/// What the kernel says to a link over all sites.
#[derive(Debug)]
pub enum Answer {
    /// There it is.
    Attached(Attached),
    /// One of the sites at least is at fault, or the program.
    Refused(io::Error),
}

/// Attaches the programs of `hooks`, one after the other, to the functions whose ftrace records are at `sites`: all or
/// none.
///
/// The records' own addresses are what the kernel resolves fastest: it finds them by binary search, while
/// a symbol's address costs it a look-up in kallsyms, for a module one symbol after another
/// (`ftrace_location` in `kernel/trace/ftrace.c`). Sites must be distinct: from 7.0 the program runs once
/// for each time that a site is named. Minimum kernel: 5.18 with `CONFIG_FPROBE`.
///
/// # Errors
///
/// What the kernel's errno means where it is not about the sites: [`ErrorKind::Unsupported`] without
/// `CONFIG_FPROBE`, else [`ErrorKind::Kernel`] or [`ErrorKind::Permission`].
pub fn to_all(kernel: &dyn Kernel, hooks: &[Hook<'_>], sites: &[u64]) -> Result<Answer> {
    let link = |hook: &Hook<'_>| kernel.link_kprobe_multi(hook.program, hook.moment, sites);
    match hooks.iter().map(link).collect::<io::Result<Vec<_>>>() {
        Ok(links) => {
            let attempts = links.len();
            Ok(Answer::Attached(Attached { hooks: Hooks::Links(links), rejected: Vec::new(), attempts }))
        }
        Err(error) if is_about_functions(&error) => Ok(Answer::Refused(error)),
        Err(error) => Err(explain(error, sites.len())),
    }
}

/// Attaches the programs of `hooks` to all of `sites` but those that the kernel refuses, which it does not name. A link
/// with `known_good`, a site that nothing is wrong with, tells first whether the program is at fault. Between two
/// attempts `interrupted` is asked.
///
/// # Errors
///
/// `Interrupted`; else those of [`to_all`], and for a program that no link takes. Nothing stays attached.
pub fn to_all_but_refused(
    kernel: &dyn Kernel,
    hooks: &[Hook<'_>],
    sites: &[u64],
    known_good: Option<u64>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Attached> {
    let attempt = |hook: &Hook<'_>, sites: &[u64]| match interrupted() {
        true => Err(io::Error::from_raw_os_error(libc::EINTR)),
        false => kernel.link_kprobe_multi(hook.program, hook.moment, sites),
    };
    let (mut links, mut rejected, mut attempts) = (Vec::new(), Vec::new(), 0);
    let mut places: Vec<usize> = (0..sites.len()).collect();
    for hook in hooks {
        if let Some(site) = known_good {
            attempts += 1;
            attempt(hook, &[site]).map_err(|error| explain_program(error, sites.len()))?;
        }
        let rest: Vec<u64> = places.iter().map(|&place| sites[place]).collect();
        let isolated = attach_to_all_but_refused(&rest, |sites| attempt(hook, sites));
        let Isolated { links: more, refused, attempts: asked } =
            isolated.map_err(|error| explain(error, sites.len()))?;
        attempts += asked;
        links.extend(more);
        // What one program is refused for, those behind it need not try. Backwards, so that places stay true.
        for (at, error) in refused.into_iter().rev() {
            rejected.push((places.remove(at), rejection(&error)));
        }
    }
    rejected.sort_by_key(|(place, _)| *place);
    Ok(Attached { hooks: Hooks::Links(links), rejected, attempts })
}

/// What the errno of a link with one function means.
fn rejection(error: &io::Error) -> Rejection {
    let errno = error.raw_os_error().unwrap_or(0);
    let meaning = match errno {
        libc::EINVAL | libc::ENOENT => "no ftrace record there, or its module is going away",
        libc::ESRCH => "no such symbol",
        libc::EBUSY => "somebody else redirects it",
        _ => "see the errno, and dmesg",
    };
    Rejection { errno, meaning }
}

/// Says what a link with a function that can be attached to says of the program.
fn explain_program(cause: io::Error, functions: usize) -> Error {
    match cause.raw_os_error() {
        Some(libc::EINVAL | libc::ENOENT | libc::ESRCH) => {
            Error::new(ErrorKind::Kernel, "the kernel attaches this program to no function at all")
                .with_hint(
                    "it was loaded for another attach type or may sleep; or ftrace is at fault: see dmesg",
                )
                .with_source(cause)
        }
        _ => explain(cause, functions),
    }
}

/// What an errno of `BPF_LINK_CREATE` for kprobe-multi means: `bpf_kprobe_multi_link_attach` in
/// `kernel/trace/bpf_trace.c`, `register_fprobe_ips` in `kernel/trace/fprobe.c` and
/// `ftrace_set_filter_ips` in `kernel/trace/ftrace.c`, 6.1 to 7.3.
fn explain(cause: io::Error, functions: usize) -> Error {
    use ErrorKind::{Interrupted, Kernel, Permission, Unsupported};
    let (kind, why, hint) = match cause.raw_os_error() {
        Some(libc::EINTR) => (Interrupted, "interrupted", "nothing stays attached"),
        Some(libc::EOPNOTSUPP) => (
            Unsupported,
            "this kernel was built without CONFIG_FPROBE, so it has no kprobe-multi links",
            "use a kernel with CONFIG_FPROBE=y (Debian's have it from 6.12 on)",
        ),
        Some(libc::EINVAL | libc::ENOENT | libc::ESRCH) => (
            Kernel,
            "one of the functions has no ftrace record",
            "a module may have been loaded or unloaded meanwhile: run it again",
        ),
        Some(libc::E2BIG) => (Kernel, "too many functions for one link", "set --max-functions lower"),
        Some(libc::ENOMEM) => {
            (Kernel, "out of kernel memory", "match fewer functions or set --max-functions")
        }
        Some(libc::ENODEV) => (
            Unsupported,
            "ftrace has shut itself down after a fault",
            "look for “ftrace” in dmesg; a reboot brings it back",
        ),
        Some(libc::EPERM | libc::EACCES) => {
            (Permission, "the kernel asks for a capability", "run it as root: sudo fastprobe …")
        }
        Some(libc::ENOSPC) => (
            Kernel,
            "too many others trace returns",
            "the kernel has room for 16 that do: end another tracer (from 6.14 on)",
        ),
        _ => (Kernel, "the kernel refused the link", "see the errno, and dmesg"),
    };
    Error::new(kind, format!("can't attach to {functions} functions: {why}"))
        .with_hint(hint)
        .with_source(cause)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, os::fd::AsFd};

    use super::*;
    use crate::sys::{Fake, Moment};

    const GOOD: u64 = 0x9004;

    fn to_all(fake: &Fake, sites: &[u64]) -> Result<Answer> {
        let program = std::fs::File::open("/dev/null").unwrap();
        super::to_all(fake, &[Hook { program: program.as_fd(), moment: Moment::Entry }], sites)
    }

    fn to_all_but_refused(fake: &Fake, sites: &[u64], interrupted: &dyn Fn() -> bool) -> Result<Attached> {
        let program = std::fs::File::open("/dev/null").unwrap();
        let hook = Hook { program: program.as_fd(), moment: Moment::Entry };
        super::to_all_but_refused(fake, &[hook], sites, Some(GOOD), interrupted)
    }

    #[test]
    fn programs_are_attached_in_their_order_and_the_second_to_what_the_first_was() {
        let fake = Fake { bad_sites: vec![20], ..Fake::default() };
        let program = std::fs::File::open("/dev/null").unwrap();
        let hooks = [Moment::Return, Moment::Entry].map(|moment| Hook { program: program.as_fd(), moment });
        let sites = [4, 20, 36];
        assert!(matches!(super::to_all(&fake, &hooks, &sites), Ok(Answer::Refused(_))));
        let attached = super::to_all_but_refused(&fake, &hooks, &sites, None, &|| false).unwrap();
        assert_eq!(attached.rejected.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [1]);
        assert!(matches!(&attached.hooks, Hooks::Links(links) if links.len() == 2));
        assert_eq!(fake.links.borrow().last().unwrap(), &[4, 36]);
        assert_eq!(fake.moments.borrow().last(), Some(&Moment::Entry));
        assert_eq!(fake.moments.borrow()[0], Moment::Return);
    }

    #[test]
    fn all_sites_go_into_one_link() {
        let fake = Fake { missed: Some(3), ..Fake::default() };
        let Answer::Attached(attached) = to_all(&fake, &[4, 20, 36]).unwrap() else { panic!("refused") };
        assert_eq!(*fake.links.borrow(), [[4, 20, 36]]);
        assert_eq!(attached.missed(&fake).unwrap(), Some(3));
    }

    #[test]
    fn every_errno_is_told_in_words_or_is_about_the_sites() {
        for (errno, kind, says) in [
            (libc::EOPNOTSUPP, ErrorKind::Unsupported, "CONFIG_FPROBE"),
            (libc::ENODEV, ErrorKind::Unsupported, "shut itself down"),
            (libc::EPERM, ErrorKind::Permission, "capability"),
            (libc::ENOSPC, ErrorKind::Kernel, "returns"),
            (libc::EIO, ErrorKind::Kernel, "refused"),
        ] {
            let error = to_all(&Fake { link_errno: Some(errno), ..Fake::default() }, &[4]).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:#}");
            assert!(error.to_string().contains(says), "{error:#}");
            assert!(error.to_string().starts_with("can't attach to 1 functions: "));
            assert!(error.hint().is_some());
        }
        for errno in [libc::EINVAL, libc::ENOENT, libc::ESRCH, libc::EBUSY, libc::E2BIG, libc::ENOMEM] {
            let answer = to_all(&Fake { link_errno: Some(errno), ..Fake::default() }, &[4]).unwrap();
            assert!(matches!(answer, Answer::Refused(e) if e.raw_os_error() == Some(errno)));
        }
    }

    #[test]
    fn the_rest_is_attached_in_one_link_and_the_bad_ones_have_a_reason() {
        let fake = Fake { bad_sites: vec![20, 52], missed: Some(2), ..Fake::default() };
        let attached = to_all_but_refused(&fake, &[4, 20, 36, 52, 68], &|| false).unwrap();
        assert_eq!(fake.links.borrow().last().unwrap(), &[4, 36, 68]);
        let [(1, first), (3, second)] = attached.rejected[..] else { panic!("{:?}", attached.rejected) };
        assert_eq!((first, first.name()), (second, Some("EINVAL")));
        assert_eq!(fake.links.borrow()[0], [GOOD]);
        assert!(matches!(&attached.hooks, Hooks::Links(links) if links.len() == 1));
        assert_eq!(attached.attempts, fake.links.borrow().len());
        assert_eq!(attached.missed(&fake).unwrap(), Some(2));
    }

    #[test]
    fn a_program_at_fault_is_not_searched_for_in_the_sites() {
        let fake = Fake { link_errno: Some(libc::EINVAL), ..Fake::default() };
        let error = to_all_but_refused(&fake, &[4, 20], &|| false).unwrap_err();
        assert!(error.to_string().contains("to no function at all"), "{error}");
        assert_eq!(*fake.links.borrow(), [[GOOD]]);
    }

    #[test]
    fn an_interrupt_ends_the_search() {
        let fake = Fake { bad_sites: vec![20], ..Fake::default() };
        let asked = Cell::new(0);
        let interrupted = || {
            asked.set(asked.get() + 1);
            asked.get() > 2
        };
        let error = to_all_but_refused(&fake, &[4, 20, 36, 52], &interrupted).unwrap_err();
        assert_eq!((error.kind(), fake.links.borrow().len()), (ErrorKind::Interrupted, 2));
    }
}
