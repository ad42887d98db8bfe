//! The tests that need a kernel to attach to. `cargo xtask test` boots each kernel of `kernels.toml` and runs
//! them there; anywhere else they are ignored.

mod any;
mod doctor;
mod multi;
mod privileges;
mod single;
mod snapshot;
mod tables;
mod without_fprobe;
