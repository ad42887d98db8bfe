//! Keeps kvm busy: makes a virtual machine and a virtual CPU and closes them again, until it is told to stop.
//!
//! `kvm-load [--seconds N]`

use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

// The numbers of include/uapi/linux/kvm.h: _IO(KVMIO, n), KVMIO being 0xAE.
const KVM_GET_API_VERSION: libc::c_ulong = 0xAE00;
const KVM_CREATE_VM: libc::c_ulong = 0xAE01;
const KVM_CREATE_VCPU: libc::c_ulong = 0xAE41;

/// Between two rounds: some hundred calls of functions in kvm a second, and a machine that does other things.
const PAUSE: Duration = Duration::from_millis(20);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvm-load: {error:#}");
            ExitCode::from(4)
        }
    }
}

fn run() -> Result<()> {
    let seconds = seconds(std::env::args().skip(1))?;
    let kvm = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .context("can't open /dev/kvm: load kvm_amd or kvm_intel first")?;
    let started = Instant::now();
    while seconds.is_none_or(|seconds| started.elapsed() < seconds) {
        round(&kvm)?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn seconds(mut arguments: impl Iterator<Item = String>) -> Result<Option<Duration>> {
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => Ok(None),
        (Some("--seconds"), Some(number)) => {
            Ok(Some(Duration::from_secs(number.parse().context("--seconds N")?)))
        }
        _ => bail!("usage: kvm-load [--seconds N]"),
    }
}

/// One VM with one CPU, gone again at the end.
fn round(kvm: &File) -> Result<()> {
    ioctl(kvm, KVM_GET_API_VERSION).context("KVM_GET_API_VERSION")?;
    let vm = made(ioctl(kvm, KVM_CREATE_VM).context("KVM_CREATE_VM")?);
    made(ioctl(&vm, KVM_CREATE_VCPU).context("KVM_CREATE_VCPU")?);
    Ok(())
}

/// A call with 0 for its argument: the default kind of VM, the CPU with number 0.
fn ioctl(fd: &impl AsRawFd, request: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: none of the three requests takes a pointer.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn made(fd: i32) -> OwnedFd {
    // SAFETY: the two requests that make something give a new descriptor that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
