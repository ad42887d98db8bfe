//! One kprobe-multi link over all targets.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::{
    error::{Error, ErrorKind, Result},
    sys::Kernel,
};

/// An attached program. Dropped, it is detached: the kernel waits until no CPU runs it for this link.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Attaches `program` to the functions whose ftrace records are at `sites`.
    ///
    /// The records' own addresses are what the kernel resolves fastest: it finds them by binary search, while
    /// a symbol's address costs it a look-up in kallsyms, for a module one symbol after another
    /// (`ftrace_location` in `kernel/trace/ftrace.c`). Sites must be distinct: from 7.0 the program runs once
    /// for each time that a site is named. Minimum kernel: 5.18 with `CONFIG_FPROBE`.
    ///
    /// # Errors
    ///
    /// What the kernel's errno means: [`ErrorKind::Unsupported`] without `CONFIG_FPROBE`, else
    /// [`ErrorKind::Kernel`]; it attaches all or none, and does not say which site it stumbled over.
    pub fn kprobe_multi(kernel: &dyn Kernel, program: BorrowedFd<'_>, sites: &[u64]) -> Result<Self> {
        match kernel.link_kprobe_multi(program, sites) {
            Ok(fd) => Ok(Self { fd }),
            Err(cause) => Err(explain(cause, sites.len())),
        }
    }

    /// Hits that the kernel dropped on this link; none where it does not count them (before 6.7).
    ///
    /// # Errors
    ///
    /// `Kernel` with the errno of `BPF_OBJ_GET_INFO_BY_FD`.
    pub fn missed(&self, kernel: &dyn Kernel) -> Result<Option<u64>> {
        kernel
            .link_missed(self.fd.as_fd())
            .map_err(|e| Error::new(ErrorKind::Kernel, "can't ask the kernel about the link").with_source(e))
    }
}

/// What an errno of `BPF_LINK_CREATE` for kprobe-multi means: `bpf_kprobe_multi_link_attach` in
/// `kernel/trace/bpf_trace.c`, `register_fprobe_ips` in `kernel/trace/fprobe.c` and
/// `ftrace_set_filter_ips` in `kernel/trace/ftrace.c`, 6.1 to 7.3.
fn explain(cause: io::Error, functions: usize) -> Error {
    use ErrorKind::{Kernel, Permission, Unsupported};
    const TABLES_CHANGED: &str = "a module may have been loaded or unloaded meanwhile: run it again";
    let (kind, why, hint) = match cause.raw_os_error() {
        Some(libc::EOPNOTSUPP) => (
            Unsupported,
            "this kernel was built without CONFIG_FPROBE, so it has no kprobe-multi links",
            "use a kernel with CONFIG_FPROBE=y (Debian's have it from 6.12 on)",
        ),
        Some(libc::EINVAL) => (Kernel, "one of the functions has no ftrace record", TABLES_CHANGED),
        Some(libc::ENOENT) => (Kernel, "one of the functions has no ftrace record", TABLES_CHANGED),
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
        _ => (Kernel, "the kernel refused the link", "see the errno, and dmesg"),
    };
    Error::new(kind, format!("can't attach to {functions} functions: {why}"))
        .with_hint(hint)
        .with_source(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Fake;

    fn attach(fake: &Fake, sites: &[u64]) -> Result<Link> {
        let program = std::fs::File::open("/dev/null").unwrap();
        Link::kprobe_multi(fake, program.as_fd(), sites)
    }

    #[test]
    fn all_sites_go_into_one_link() {
        let fake = Fake { missed: Some(3), ..Fake::default() };
        let link = attach(&fake, &[4, 20, 36]).unwrap();
        assert_eq!(*fake.links.borrow(), [[4, 20, 36]]);
        assert_eq!(link.missed(&fake).unwrap(), Some(3));
    }

    #[test]
    fn every_errno_is_told_in_words() {
        for (errno, kind, says) in [
            (libc::EOPNOTSUPP, ErrorKind::Unsupported, "CONFIG_FPROBE"),
            (libc::EINVAL, ErrorKind::Kernel, "no ftrace record"),
            (libc::ENOENT, ErrorKind::Kernel, "no ftrace record"),
            (libc::E2BIG, ErrorKind::Kernel, "too many"),
            (libc::ENOMEM, ErrorKind::Kernel, "memory"),
            (libc::ENODEV, ErrorKind::Unsupported, "shut itself down"),
            (libc::EPERM, ErrorKind::Permission, "capability"),
            (libc::EIO, ErrorKind::Kernel, "refused"),
        ] {
            let error = attach(&Fake { link_errno: Some(errno), ..Fake::default() }, &[4]).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:#}");
            assert!(error.to_string().contains(says), "{error:#}");
            assert!(error.to_string().starts_with("can't attach to 1 functions: "));
            assert!(error.hint().is_some());
        }
    }
}
