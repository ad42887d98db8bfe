//! The tests that need a kernel to attach to. `cargo xtask test` boots each kernel of `kernels.toml` and runs
//! them there; anywhere else they are ignored.

mod any;
mod multi;
mod single;
mod tables;
mod without_fprobe;
