//! `fastprobe doctor`: what this machine allows, and what mends the rest.

use std::io;

use anyhow::Result;
use fastprobe::{
    doctor::{gather, judge},
    sys::Live,
    tables::{Root, cache::Folder},
};

use super::{args::DoctorArguments, exit::Exit, render};

/// Runs the command. What is amiss is no fault of this run, but whoever is about to attach wants to know by the exit
/// code.
pub fn run(arguments: &DoctorArguments) -> Result<Exit> {
    let report = judge(&gather(&Root::machine(), &Live, &Folder::of_this_user()));
    match render::doctor(&report, arguments.json) {
        // Whoever stopped reading goes by the exit code.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
        printed => printed?,
    }
    Ok(if report.can_attach() { Exit::Success } else { Exit::Unsupported })
}
