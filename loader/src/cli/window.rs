//! Stretches of time that reports are about.

use std::time::Instant;

use fastprobe::{instrument::count::Counting, plan::Plan};

use super::render::CountsReport;

/// The stretch of time that the next report covers.
pub struct Window {
    /// When the first began.
    pub attached: Instant,
    /// When this one began.
    pub since: Instant,
    /// The hits of each target until then.
    pub before: Vec<u64>,
}

impl Window {
    /// The first stretch.
    pub fn new(attached: Instant, targets: usize) -> Self {
        Self { attached, since: attached, before: vec![0; targets] }
    }

    /// What was counted since the last call, and the start of the next stretch.
    pub fn next<'p, 't>(&mut self, plan: &'p Plan<'t>, counting: &Counting<'_>) -> CountsReport<'p, 't> {
        let now = Instant::now();
        let counts = counting.counts();
        let hits = counts.iter().zip(&self.before).map(|(now, before)| now - before).collect();
        let report = CountsReport {
            targets: &plan.targets,
            hits,
            elapsed: now - self.attached,
            window: now - self.since,
        };
        self.before = counts;
        self.since = now;
        report
    }
}
