//! A kernel that lives in this process: it answers as it is told, and remembers what it was asked.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use super::{Kernel, MapShape, Mapping, Moment, ProgramImage, ProgramInfo};

/// Answers each call with success, but for the errnos set in its fields. Maps are files, so that memory
/// mapped from one is real.
#[derive(Debug, Default)]
pub struct Fake {
    /// What `BPF_MAP_CREATE` fails with.
    pub map_errno: Option<i32>,
    /// What `BPF_PROG_LOAD` fails with, and the verifier's words.
    pub load_errno: Option<(i32, &'static str)>,
    /// What `BPF_LINK_CREATE` fails with.
    pub link_errno: Option<i32>,
    /// What `perf_event_open` for a kprobe fails with.
    pub kprobe_errno: Option<i32>,
    /// The addresses that no link takes: it fails with `EINVAL`.
    pub bad_sites: Vec<u64>,
    /// What `BPF_ENABLE_STATS` fails with.
    pub stats_errno: Option<i32>,
    /// How often the program ran, and for how many nanoseconds.
    pub runs: Cell<(u64, u64)>,
    /// Words in commands to tracefs that are refused, and the errno.
    pub bad_commands: Vec<(String, i32)>,
    /// What an event can't be opened for.
    pub event_errno: Option<i32>,
    /// What the link tells of misses.
    pub missed: Option<u64>,
    /// The moments that no link takes: it fails with `EINVAL`.
    pub bad_moments: Vec<Moment>,
    /// The addresses of each link asked for.
    pub links: RefCell<Vec<Vec<u64>>>,
    /// And its moment.
    pub moments: RefCell<Vec<Moment>>,
    /// The maps asked for: name, entries.
    pub maps: RefCell<Vec<(String, u32)>>,
    /// How often a map was frozen.
    pub frozen: Cell<u32>,
}

impl Kernel for Fake {
    fn create_map(&self, shape: MapShape<'_>) -> io::Result<OwnedFd> {
        fail(self.map_errno)?;
        self.maps.borrow_mut().push((shape.name.to_owned(), shape.max_entries));
        let file = tempfile::tempfile()?;
        file.set_len(u64::from(shape.value_bytes) * u64::from(shape.max_entries))?;
        Ok(file.into())
    }

    fn update_map(&self, map: BorrowedFd<'_>, key: u32, value: &[u8]) -> io::Result<()> {
        let file = std::fs::File::from(map.try_clone_to_owned()?);
        file.write_all_at(value, u64::from(key) * value.len() as u64)
    }

    fn freeze_map(&self, _map: BorrowedFd<'_>) -> io::Result<()> {
        self.frozen.set(self.frozen.get() + 1);
        Ok(())
    }

    fn map_memory(&self, map: BorrowedFd<'_>, bytes: usize) -> io::Result<Mapping> {
        Mapping::new(map, bytes)
    }

    fn load_program(&self, _image: &ProgramImage<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
        if let Some((_, words)) = self.load_errno {
            let shown = words.len().min(log.len());
            log[..shown].copy_from_slice(&words.as_bytes()[..shown]);
        }
        fail(self.load_errno.map(|(errno, _)| errno))?;
        some_fd()
    }

    fn link_kprobe_multi(
        &self,
        _program: BorrowedFd<'_>,
        moment: Moment,
        addresses: &[u64],
    ) -> io::Result<OwnedFd> {
        self.links.borrow_mut().push(addresses.to_vec());
        self.moments.borrow_mut().push(moment);
        fail(self.link_errno)?;
        fail(self.bad_moments.contains(&moment).then_some(libc::EINVAL))?;
        fail(addresses.iter().any(|site| self.bad_sites.contains(site)).then_some(libc::EINVAL))?;
        some_fd()
    }

    fn open_kprobe(&self, _unit: u32, _address: u64) -> io::Result<OwnedFd> {
        fail(self.kprobe_errno)?;
        some_fd()
    }

    fn trace_command(&self, file: BorrowedFd<'_>, line: &str) -> io::Result<()> {
        fail(self.bad_commands.iter().find(|(word, _)| line.contains(word)).map(|(_, errno)| *errno))?;
        std::fs::File::from(file.try_clone_to_owned()?).write_all(line.as_bytes())
    }

    fn open_event(&self, _id: u64, _program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        fail(self.event_errno)?;
        some_fd()
    }

    fn link_missed(&self, _link: BorrowedFd<'_>) -> io::Result<Option<u64>> {
        Ok(self.missed)
    }

    fn program_info(&self, _program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
        let (runs, run_ns) = self.runs.get();
        Ok(ProgramInfo { id: 7, recursion_misses: self.missed.unwrap_or(0), runs, run_ns })
    }

    fn enable_run_stats(&self) -> io::Result<OwnedFd> {
        fail(self.stats_errno)?;
        some_fd()
    }
}

fn fail(errno: Option<i32>) -> io::Result<()> {
    errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

fn some_fd() -> io::Result<OwnedFd> {
    std::fs::File::open("/dev/null")?.as_fd().try_clone_to_owned()
}
