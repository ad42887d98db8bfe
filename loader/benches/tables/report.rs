//! What is printed: one table of what was measured, and one of the design's targets, in Markdown.

use comfy_table::{Table, presets};

use crate::timer::Times;

/// A row of the first table: what was measured, and the columns that it has something for.
#[derive(Debug, Default)]
pub struct Row {
    pub what: String,
    pub median: Option<f64>,
    /// The 95th percentile; published figures come without one.
    pub p95: Option<f64>,
    pub worst: Option<f64>,
    pub held: Option<usize>,
    pub set_up: Option<f64>,
    /// After so many look-ups, against linear expansion and against binary search with full expansion.
    pub pays_back: Option<[Option<usize>; 2]>,
    pub remark: String,
}

impl Row {
    /// With the times that were measured.
    pub fn timed(what: String, times: &Times) -> Self {
        Self { what, median: Some(times.median()), p95: Some(times.p95()), ..Self::default() }
    }
}

/// A target of the design and how it came out.
#[derive(Debug)]
pub struct Target {
    pub what: &'static str,
    pub wanted: f64,
    pub measured: f64,
    pub bound: Bound,
    /// What the number leaves out.
    pub remark: &'static str,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    AtLeast,
    AtMost,
}

impl Target {
    /// Whether it is met where it may be missed by this factor.
    fn is_met_within(&self, factor: f64) -> bool {
        match self.bound {
            Bound::AtLeast => self.measured * factor >= self.wanted,
            Bound::AtMost => self.measured <= self.wanted * factor,
        }
    }
}

/// All rows.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
    targets: Vec<Target>,
}

impl Report {
    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    pub fn target(&mut self, target: Target) {
        self.targets.push(target);
    }

    /// Both tables.
    pub fn print(&self) {
        println!("{}\n", self.measured());
        println!("{}", self.compared());
    }

    /// The targets that are missed by more than this factor.
    pub fn missed_by(&self, factor: f64) -> Vec<&'static str> {
        let missed = |target: &&Target| !target.is_met_within(factor);
        self.targets.iter().filter(missed).map(|target| target.what).collect()
    }

    fn measured(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "what",
            "median",
            "p95",
            "worst",
            "held",
            "set-up",
            "paid back after: linear",
            "and binary",
            "",
        ]);
        for row in &self.rows {
            let text = |ns: Option<f64>| ns.map(time).unwrap_or_default();
            let paid = |which: usize| match row.pays_back {
                None => String::new(),
                Some(both) => both[which].map_or("never".into(), |count| count.to_string()),
            };
            table.add_row([
                row.what.clone(),
                text(row.median),
                text(row.p95),
                text(row.worst),
                row.held.map(bytes).unwrap_or_default(),
                text(row.set_up),
                paid(0),
                paid(1),
                row.remark.clone(),
            ]);
        }
        table
    }

    fn compared(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["target", "at least/most", "measured", "verdict", ""]);
        for target in &self.targets {
            let sign = if target.bound == Bound::AtLeast { "≥" } else { "≤" };
            let verdict = if target.is_met_within(1.0) { "met" } else { "missed" };
            table.add_row([
                target.what,
                &format!("{sign} {}", target.wanted),
                &format!("{:.1}", target.measured),
                verdict,
                target.remark,
            ]);
        }
        table
    }
}

/// Nanoseconds in a unit that reads well.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e4 => format!("{ns:.0} ns"),
        ns if ns < 1e7 => format!("{:.0} µs", ns / 1e3),
        ns => format!("{:.0} ms", ns / 1e6),
    }
}

/// Bytes in a unit that reads well.
pub fn bytes(bytes: usize) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1000),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
