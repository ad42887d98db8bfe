//! A kprobe for each function, for kernels without kprobe-multi links.
//!
//! All kprobes belong to one event of tracefs, which one program is attached to. Two things make this many times
//! faster than an event for each, which is what perf's own kprobes are:
//!
//! - An event waits for two grace periods of RCU when it is closed, and its kprobe for one more; here all of them
//!   together wait for two and each kprobe for one.
//! - A kprobe on a function's first instruction is ftrace's: to arm or disarm it, ftrace walks over all its records.
//!   One on the instruction behind (`place.rs`) is a breakpoint, which the kernel turns into a jump later on.
//!
//! Numbers: `docs/records/single-routes.md`.

mod event;
mod place;

pub use event::Event;
pub use place::Places;
use std::{io, path::Path};

use super::{Attached, Hook, Hooks};
use crate::{
    error::{Error, ErrorKind, Result},
    plan::Rejection,
    sys::{Kernel, Moment},
};

/// Attaches the programs of `hooks` to a kprobe each for each of `functions`, but those that the kernel refuses. Between
/// two of them `interrupted` is asked.
///
/// Where a function's return is probed first and its entry then refused, the program that runs when it returns is one
/// that expects to have missed the entry: the kernel takes away all probes of an event or none.
///
/// # Errors
///
/// `Interrupted`; `Unsupported` and `Permission` where tracefs below `tracefs` takes no kprobes; `Kernel` for what is
/// about none of the functions. Nothing stays attached.
pub fn attach(
    kernel: &dyn Kernel,
    tracefs: &Path,
    hooks: &[Hook<'_>],
    functions: &[Places],
    interrupted: &dyn Fn() -> bool,
) -> Result<Attached> {
    let mut events: Vec<_> =
        hooks.iter().map(|hook| Event::new(tracefs, hook.moment)).collect::<Result<_>>()?;
    let (mut rejected, mut attempts) = (Vec::new(), 0);
    for (place, function) in functions.iter().enumerate() {
        if interrupted() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted").with_hint("nothing stays attached"));
        }
        let add = |event| add_first_taken(kernel, event, *function, &mut attempts);
        if let Err(error) = events.iter_mut().try_for_each(add) {
            let rejection = rejection(&error).ok_or_else(|| explain(error, functions.len()))?;
            rejected.push((place, rejection));
        }
    }
    if rejected.len() == functions.len() {
        events.clear();
    }
    let enable = |(event, hook): (Event, &Hook<'_>)| event.enable(kernel, hook.program);
    let events = events.into_iter().zip(hooks).map(enable).collect::<io::Result<_>>();
    let events = events.map_err(|error| explain(error, functions.len()))?;
    Ok(Attached { hooks: Hooks::Events(events), rejected, attempts })
}

/// Adds a probe where it costs least, or else where ftrace has its record; the error is about the latter. The kernel
/// itself finds where the return of a function is to be probed.
fn add_first_taken(
    kernel: &dyn Kernel,
    event: &mut Event,
    function: Places,
    attempts: &mut usize,
) -> io::Result<()> {
    if event.moment() == Moment::Return {
        *attempts += 1;
        return event.add(kernel, function.entry);
    }
    if let Some(behind) = function.behind {
        *attempts += 1;
        if event.add(kernel, behind).is_ok() {
            return Ok(());
        }
    }
    *attempts += 1;
    event.add(kernel, function.site)
}

/// What an errno means that is about a single probe: `register_kprobe` in `kernel/kprobes.c` and
/// `__trace_kprobe_create` in `kernel/trace/trace_kprobe.c`, 6.1 to 7.3.
fn rejection(error: &io::Error) -> Option<Rejection> {
    let errno = error.raw_os_error()?;
    let meaning = match errno {
        libc::EINVAL => "the kernel forbids a probe there",
        libc::EILSEQ => "no instruction starts there",
        libc::ENOENT | libc::ESRCH => "nothing is there any more: its module may be gone",
        libc::EADDRNOTAVAIL => "the place is not unique",
        libc::EBUSY => "somebody else changes it",
        libc::EEXIST => "there is such a probe already",
        libc::EOPNOTSUPP => "no probe is possible there",
        _ => return None,
    };
    Some(Rejection { errno, meaning })
}

/// What an errno means that is not about a single probe.
fn explain(cause: io::Error, functions: usize) -> Error {
    let (kind, why, hint) = match cause.raw_os_error() {
        Some(libc::ENOMEM) => {
            (ErrorKind::Kernel, "out of kernel memory", "match fewer functions or set --max-functions")
        }
        Some(libc::EPERM | libc::EACCES) => (
            ErrorKind::Permission,
            "the kernel allows it to root alone, and to nobody under lockdown",
            "run it as root: sudo fastprobe …; cat /sys/kernel/security/lockdown",
        ),
        Some(libc::EMFILE | libc::ENFILE) => {
            (ErrorKind::Kernel, "no file descriptor is free", "ulimit -n 4096; cat /proc/sys/fs/file-nr")
        }
        Some(libc::ENODEV) => (
            ErrorKind::Unsupported,
            "ftrace has shut itself down after a fault",
            "look for “ftrace” in dmesg; a reboot brings it back",
        ),
        _ => (ErrorKind::Kernel, "the kernel refused the event", "see the errno, and dmesg"),
    };
    Error::new(kind, format!("can't attach to {functions} functions, a kprobe for each: {why}"))
        .with_hint(hint)
        .with_source(cause)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, os::fd::AsFd};

    use super::*;
    use crate::sys::Fake;

    fn attach(fake: &Fake, folder: &Path, functions: &[Places]) -> Result<Attached> {
        attach_at(&[Moment::Entry], fake, folder, functions)
    }

    fn attach_at(moments: &[Moment], fake: &Fake, folder: &Path, functions: &[Places]) -> Result<Attached> {
        let program = fs::File::open("/dev/null").unwrap();
        let hook = |&moment| Hook { program: program.as_fd(), moment };
        let hooks: Vec<_> = moments.iter().map(hook).collect();
        super::attach(fake, folder, &hooks, functions, &|| false)
    }

    fn function(site: u64, behind: Option<u64>) -> Places {
        Places { entry: site, site, behind }
    }

    #[test]
    fn returns_have_an_event_of_their_own() {
        let folder = event::fake_tracefs("");
        let fake = Fake { bad_commands: vec![("p:fastprobe/p".into(), libc::EINVAL)], ..Fake::default() };
        let functions = [Places { entry: 0x1000, site: 0x1004, behind: Some(0x1009) }];
        let moments = [Moment::Return, Moment::Entry];
        let attached = attach_at(&moments, &fake, folder.path(), &functions).unwrap();
        assert_eq!(attached.rejected.len(), 1);
        let attached = attach_at(&moments, &Fake::default(), folder.path(), &functions).unwrap();
        assert!(matches!(&attached.hooks, Hooks::Events(events) if events.len() == 2));
        let commands = commands(folder.path());
        assert_eq!(commands[0], r"r128:fastprobe 0x1000 n=\0");
        assert_eq!(
            commands[commands.len() - 2..],
            [r"r128:fastprobe 0x1000 n=\0", r"p:fastprobe 0x1009 n=\0"]
        );
    }

    /// The lines that were written, without the event's name, which differs each time.
    fn commands(folder: &Path) -> Vec<String> {
        let text = fs::read_to_string(folder.join("kprobe_events")).unwrap();
        let cut = |line: &str| {
            let mut words: Vec<_> = line.split(' ').collect();
            words[0] = &words[0][..words[0].find('/').unwrap()];
            words.join(" ")
        };
        text.lines().map(cut).collect()
    }

    #[test]
    fn each_function_gets_one_probe_where_it_is_taken_and_all_go_at_the_end() {
        let folder = event::fake_tracefs("");
        let fake = Fake {
            bad_commands: vec![("0x2005".into(), libc::EINVAL), ("0x300".into(), libc::EILSEQ)],
            ..Fake::default()
        };
        let functions = [
            function(0x1000, Some(0x1005)),
            function(0x2000, Some(0x2005)),
            function(0x3000, Some(0x3005)),
            function(0x4000, None),
        ];
        let attached = attach(&fake, folder.path(), &functions).unwrap();
        let [(2, why)] = attached.rejected[..] else { panic!("{:?}", attached.rejected) };
        assert_eq!(why.to_string(), "EILSEQ: no instruction starts there");
        assert_eq!(attached.attempts, 6);
        drop(attached);
        assert_eq!(
            commands(folder.path()),
            [
                r"p:fastprobe 0x1005 n=\0",
                r"p:fastprobe 0x2000 n=\1",
                r"p:fastprobe 0x4000 n=\2",
                "-:fastprobe"
            ]
        );
    }

    #[test]
    fn where_all_are_refused_there_is_no_event() {
        let folder = event::fake_tracefs("");
        let fake = Fake { bad_commands: vec![("0x".into(), libc::EINVAL)], ..Fake::default() };
        let attached = attach(&fake, folder.path(), &[function(0x1000, None)]).unwrap();
        assert_eq!(attached.rejected.len(), 1);
        assert_eq!(attached.missed(&fake).unwrap(), None);
        drop(attached);
        assert_eq!(commands(folder.path()), [""; 0]);
    }

    #[test]
    fn what_is_about_no_function_ends_it_and_takes_the_probes_away() {
        for (errno, kind, says) in [
            (libc::ENOMEM, ErrorKind::Kernel, "memory"),
            (libc::EPERM, ErrorKind::Permission, "lockdown"),
            (libc::EIO, ErrorKind::Kernel, "refused"),
        ] {
            let folder = event::fake_tracefs("");
            let fake = Fake { bad_commands: vec![("0x2000".into(), errno)], ..Fake::default() };
            let functions = [function(0x1000, None), function(0x2000, None)];
            let error = attach(&fake, folder.path(), &functions).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:#}");
            assert!(error.to_string().contains(says), "{error:#}");
            assert_eq!(commands(folder.path()), [r"p:fastprobe 0x1000 n=\0", "-:fastprobe"]);

            let fake = Fake { event_errno: Some(errno), ..Fake::default() };
            let folder = event::fake_tracefs("");
            assert_eq!(attach(&fake, folder.path(), &functions).unwrap_err().kind(), kind);
            assert_eq!(commands(folder.path()).last().unwrap(), "-:fastprobe");
        }
    }

    #[test]
    fn an_interrupt_between_two_probes_takes_them_away() {
        let folder = event::fake_tracefs("");
        let program = fs::File::open("/dev/null").unwrap();
        let asked = Cell::new(0);
        let interrupted = || asked.replace(asked.get() + 1) == 1;
        let functions = [function(0x1000, None), function(0x2000, None)];
        let hook = Hook { program: program.as_fd(), moment: Moment::Entry };
        let error = super::attach(&Fake::default(), folder.path(), &[hook], &functions, &interrupted);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(commands(folder.path()), [r"p:fastprobe 0x1000 n=\0", "-:fastprobe"]);
    }
}
