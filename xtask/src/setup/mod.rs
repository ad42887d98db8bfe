//! Gets what a fresh machine lacks. Each finds what is there already and says what it does.

pub mod debian;
pub mod kernels;
pub mod peers;
pub mod toolchain;
pub mod vm_tools;
