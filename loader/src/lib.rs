//! Attach one eBPF program to thousands of kernel functions in milliseconds.
//!
//! The way of the data: [`pattern`]s choose from the kernel's [`tables`]; the [`plan`] says what will be
//! attached and why the rest won't; the [`program`]s of an [`instrument`] are relocated and loaded; [`attach`] makes
//! the links; a [`session`] is what holds them and is read. [`sys`] is the one door to the kernel. [`doctor`] says what
//! of all this a machine allows.

pub mod attach;
pub mod budget;
pub mod conditions;
pub mod doctor;
pub mod error;
pub mod filter;
pub mod instrument;
pub mod isolate;
pub mod module_file;
pub mod pattern;
pub mod plan;
pub mod program;
pub mod session;
mod site_table;

pub mod sys;
pub mod tables;

pub use error::{Error, ErrorKind, Result};

/// The examples in the README, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
