//! Globals that the loader sets before a program is loaded; the verifier knows their values.

use aya_ebpf::Global;

use crate::{Filter, Layout};

/// How the arrays are laid out.
#[unsafe(no_mangle)]
pub static LAYOUT: Global<Layout> = Global::new(Layout { multiplier: 0, shift: 0, slots_per_cpu: 0 });

/// Which hits count.
#[unsafe(no_mangle)]
pub static FILTER: Global<Filter> = Global::new(Filter::NONE);
