//! What probes cost: a sample of the hits, and which functions to leave out so that the rest stays within a budget.

use std::{
    cmp::Reverse,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use crate::{
    error::{Error, ErrorKind, Result},
    instrument::count::Counting,
    sys::Kernel,
};

/// A sample that is being taken.
#[derive(Debug)]
pub struct Sampling {
    started: Instant,
    hits: Vec<u64>,
    /// Runs of the programs, and the nanoseconds that they took.
    runs: (u64, u64),
    /// The kernel measures while this is held.
    _stats: OwnedFd,
}

/// What was seen in a stretch of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// How long it was.
    pub took: Duration,
    /// The hits of each function, in the order of the targets that were attached to.
    pub hits: Vec<u64>,
    /// How often the program ran for them.
    pub runs: u64,
    /// How long those runs took together, as the kernel measured: without the way into the program and back.
    pub run: Duration,
}

impl Sampling {
    /// Starts to sample what `counting` counts. Minimum kernel: 5.8, and CAP_SYS_ADMIN
    /// (`bpf_enable_stats` in `kernel/bpf/syscall.c`).
    ///
    /// # Errors
    ///
    /// `Permission`, or `Unsupported` where the kernel doesn't measure programs.
    pub fn start(kernel: &dyn Kernel, counting: &Counting<'_>) -> Result<Self> {
        let stats = kernel.enable_run_stats().map_err(|e| {
            let kind = match e.raw_os_error() {
                Some(libc::EPERM) => ErrorKind::Permission,
                _ => ErrorKind::Unsupported,
            };
            Error::new(kind, "can't have the kernel measure what a hit costs")
                .with_hint("a budget takes root and Linux 5.8; without --budget nothing is measured")
                .with_source(e)
        })?;
        let (runs, hits) = (runs(counting)?, counting.counts());
        Ok(Self { started: Instant::now(), hits, runs, _stats: stats })
    }

    /// What `counting` counted since.
    ///
    /// # Errors
    ///
    /// `Kernel` where the program can't be asked about.
    pub fn end(self, counting: &Counting<'_>) -> Result<Sample> {
        let ((runs, run_ns), now) = (runs(counting)?, counting.counts());
        Ok(Sample {
            took: self.started.elapsed(),
            hits: now.iter().zip(&self.hits).map(|(now, before)| now - before).collect(),
            runs: runs.saturating_sub(self.runs.0),
            run: Duration::from_nanos(run_ns.saturating_sub(self.runs.1)),
        })
    }
}

fn runs(counting: &Counting<'_>) -> Result<(u64, u64)> {
    let infos = counting.program_infos()?;
    Ok(infos.iter().fold((0, 0), |(runs, ns), info| (runs + info.runs, ns + info.run_ns)))
}

impl Sample {
    /// All hits.
    pub fn total(&self) -> u64 {
        self.hits.iter().sum()
    }

    /// What a hit costs, in nanoseconds; 0 where there was none.
    pub fn ns_per_hit(&self) -> f64 {
        if self.runs == 0 { 0.0 } else { self.run.as_nanos() as f64 / self.runs as f64 }
    }

    /// The part of one CPU that so many hits in the time of the sample cost: 0.05 are 5 %.
    pub fn share_of_cpu(&self, hits: u64) -> f64 {
        if self.took.is_zero() { 0.0 } else { hits as f64 * self.ns_per_hit() / self.took.as_nanos() as f64 }
    }

    /// The places of the hottest functions, ascending: as few as it takes for the others to cost no more than
    /// `budget`, a part of one CPU.
    pub fn over(&self, budget: f64) -> Vec<usize> {
        let mut hottest: Vec<usize> = (0..self.hits.len()).filter(|place| self.hits[*place] > 0).collect();
        hottest.sort_by_key(|place| Reverse(self.hits[*place]));
        let mut rest = self.total();
        let mut over: Vec<usize> = hottest
            .into_iter()
            .take_while(|place| {
                let too_much = self.share_of_cpu(rest) > budget;
                rest -= self.hits[*place];
                too_much
            })
            .collect();
        over.sort_unstable();
        over
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{instrument::count::Counter, plan::Target, session::Options, sys::Fake, tables::Function};

    fn sample(hits: &[u64], ns_per_hit: u64) -> Sample {
        let runs = hits.iter().sum();
        let run = Duration::from_nanos(runs * ns_per_hit);
        Sample { took: Duration::from_secs(1), hits: hits.to_vec(), runs, run }
    }

    #[test]
    fn the_hottest_go_until_the_rest_fits() {
        // 100 ns a hit: 1,110,110 hits a second are 11.1 % of a CPU.
        let sample = sample(&[10, 100_000, 0, 1_000_000, 10_000, 100], 100);
        assert!((sample.share_of_cpu(sample.total()) - 0.111_011).abs() < 1e-9);
        assert_eq!(sample.over(0.2), [0; 0]);
        assert_eq!(sample.over(0.05), [3]);
        assert_eq!(sample.over(0.005), [1, 3]);
        assert_eq!(sample.over(0.0), [0, 1, 3, 4, 5]);
    }

    #[test]
    fn without_hits_nothing_costs() {
        let sample = sample(&[0, 0], 100);
        assert_eq!((sample.ns_per_hit(), sample.over(0.0)), (0.0, vec![]));
    }

    #[test]
    fn a_sample_is_what_came_since_it_began() {
        let fake = Fake { runs: (1000, 9_000_000).into(), ..Fake::default() };
        let target =
            Target { function: Function { address: 0x1000, name: b"f", module: None }, site: 0x1004 };
        let counting = Counting::start(&fake, &Counter, &[target], &Options::new(1)).unwrap();
        let sampling = Sampling::start(&fake, &counting).unwrap();
        fake.runs.set((1004, 9_000_400));
        let sample = sampling.end(&counting).unwrap();
        assert_eq!((sample.hits.len(), sample.runs, sample.ns_per_hit()), (1, 4, 100.0));
        for (errno, kind) in [(libc::EPERM, ErrorKind::Permission), (libc::EINVAL, ErrorKind::Unsupported)] {
            let fake = Fake { stats_errno: Some(errno), ..Fake::default() };
            assert_eq!(Sampling::start(&fake, &counting).unwrap_err().kind(), kind);
        }
    }

    proptest! {
        #[test]
        fn what_stays_fits_and_no_more_than_needed_goes(
            hits in prop::collection::vec(0_u64..1_000_000, 1..50), budget in 0.0..0.5,
        ) {
            let sample = sample(&hits, 50);
            let over = sample.over(budget);
            let left: u64 = hits.iter().enumerate().filter(|(at, _)| !over.contains(at)).map(|(_, hits)| hits).sum();
            prop_assert!(sample.share_of_cpu(left) <= budget);
            if let Some(coolest) = over.iter().map(|place| hits[*place]).min() {
                prop_assert!(sample.share_of_cpu(left + coolest) > budget);
            }
        }
    }
}
