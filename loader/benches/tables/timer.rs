//! A small timer: warm-up, several rounds in an order that is new each time, and of them the median and the 95th of a
//! hundred.

use std::time::Instant;

/// Nanoseconds of several rounds.
#[derive(Debug, Clone, Default)]
pub struct Times(Vec<f64>);

impl Times {
    /// The one in the middle.
    pub fn median(&self) -> f64 {
        self.part(0.5)
    }

    /// So many of a hundred took no longer: 95.
    pub fn p95(&self) -> f64 {
        self.part(0.95)
    }

    fn part(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[((sorted.len() - 1) as f64 * part).round() as usize]
    }

    /// Adds a round.
    pub fn push(&mut self, ns: f64) {
        self.0.push(ns);
    }
}

/// Something to measure, which is done so many times in one go.
pub struct Job<'j> {
    /// How often `work` does it.
    pub times: usize,
    /// Does it, and gives something that depends on the result.
    pub work: Box<dyn FnMut() -> usize + 'j>,
}

impl<'j> Job<'j> {
    pub fn new(times: usize, work: impl FnMut() -> usize + 'j) -> Self {
        Self { times, work: Box::new(work) }
    }
}

/// Measures jobs side by side: each once to warm up, then all in each round. The times are of one of what a job does
/// many of.
pub fn measure(rounds: usize, jobs: &mut [Job<'_>]) -> Vec<Times> {
    let mut times = vec![Times::default(); jobs.len()];
    for job in jobs.iter_mut() {
        std::hint::black_box((job.work)());
    }
    let mut random = Random::new();
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    for _ in 0..rounds {
        random.shuffle(&mut order);
        for &number in &order {
            let job = &mut jobs[number];
            let started = Instant::now();
            std::hint::black_box((job.work)());
            times[number].push(started.elapsed().as_nanos() as f64 / job.times as f64);
        }
    }
    times
}

/// SplitMix64, the same numbers in each run.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(0x5eed)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}
