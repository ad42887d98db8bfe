//! NDJSON: one object a line. The field names are a contract; new ones may be added.

use std::{
    io::{self, Write},
    time::Duration,
};

use fastprobe::{
    doctor::{Check, Report},
    plan::{Plan, Skipped},
    tables::Function,
};
use serde::Serialize;

use super::{AttachReport, CountsReport, Render, Rows, SummaryReport, text};

/// The version of the contract.
const SCHEMA: u32 = 1;

/// Prints reports as JSON.
pub struct Json<W> {
    out: W,
    rows: Rows,
}

impl<W: Write> Json<W> {
    pub fn new(out: W, rows: Rows) -> Self {
        Self { out, rows }
    }
}

#[derive(Serialize)]
struct FunctionObject {
    function: String,
    module: Option<String>,
    address: String,
}

#[derive(Serialize)]
struct SkippedObject {
    #[serde(flatten)]
    function: FunctionObject,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct CountObject {
    #[serde(flatten)]
    function: FunctionObject,
    hits: u64,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Body {
    Attach {
        kernel: String,
        backend: Option<String>,
        source: String,
        matched: usize,
        attached: usize,
        skipped: Vec<SkippedObject>,
        timings_ns: AttachTimings,
    },
    Counts {
        elapsed_ns: u64,
        window_ns: u64,
        functions: Vec<CountObject>,
    },
    Summary {
        elapsed_ns: u64,
        hits: u64,
        missed: Option<u64>,
        recursion_misses: u64,
        lost: u64,
        timings_ns: DetachTimings,
    },
    Plan {
        matched: usize,
        targets: Vec<FunctionObject>,
        skipped: Vec<SkippedObject>,
    },
    Doctor {
        kernel: String,
        checks: Vec<CheckObject>,
        can_attach: bool,
    },
}

#[derive(Serialize)]
struct CheckObject {
    name: &'static str,
    state: &'static str,
    detail: String,
    cost: Option<String>,
    fix: Option<String>,
}

#[derive(Serialize)]
struct AttachTimings {
    tables: u64,
    plan: u64,
    load: u64,
    link: u64,
    total: u64,
}

#[derive(Serialize)]
struct DetachTimings {
    detach: u64,
}

#[derive(Serialize)]
struct Line {
    schema: u32,
    #[serde(flatten)]
    body: Body,
}

impl<W: Write> Render for Json<W> {
    fn attached(&mut self, report: &AttachReport<'_, '_>) -> io::Result<()> {
        let body = Body::Attach {
            kernel: kernel_release(),
            backend: report.backend.map(|backend| backend.to_string()),
            source: report.chosen.source.to_string(),
            matched: report.plan.matched(),
            attached: report.attached,
            skipped: skipped(&report.plan.skipped),
            timings_ns: AttachTimings {
                tables: ns(report.chosen.tables),
                plan: ns(report.chosen.plan),
                load: ns(report.kernel.load),
                link: ns(report.kernel.link),
                total: ns(report.total),
            },
        };
        print(&mut self.out, body)
    }

    fn counts(&mut self, report: &CountsReport<'_, '_>) -> io::Result<()> {
        let (rows, _) = self.rows.choose(report);
        let functions =
            rows.iter().map(|(target, hits)| CountObject { function: object(target.function), hits: *hits });
        let body = Body::Counts {
            elapsed_ns: ns(report.elapsed),
            window_ns: ns(report.window),
            functions: functions.collect(),
        };
        print(&mut self.out, body)
    }

    fn summary(&mut self, report: &SummaryReport) -> io::Result<()> {
        let body = Body::Summary {
            elapsed_ns: ns(report.elapsed),
            hits: report.hits,
            missed: report.misses.missed,
            recursion_misses: report.misses.recursion,
            lost: report.misses.lost,
            timings_ns: DetachTimings { detach: ns(report.detach) },
        };
        print(&mut self.out, body)
    }
}

/// Prints a plan that is not carried out.
pub fn plan(out: &mut impl Write, plan: &Plan<'_>) -> io::Result<()> {
    let targets = plan.targets.iter().map(|target| object(target.function)).collect();
    print(out, Body::Plan { matched: plan.matched(), targets, skipped: skipped(&plan.skipped) })
}

/// Prints what a machine allows.
pub fn doctor(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let object = |check: &Check| {
        let Check { name, state, detail, cost, fix } = check.clone();
        CheckObject { name, state: state.word(), detail, cost, fix }
    };
    let checks = report.checks.iter().map(object).collect();
    print(out, Body::Doctor { kernel: report.kernel.clone(), checks, can_attach: report.can_attach() })
}

fn skipped(skipped: &[Skipped<'_>]) -> Vec<SkippedObject> {
    let object = |skipped: &Skipped<'_>| {
        let rejection = skipped.reason.rejection();
        SkippedObject {
            function: object(skipped.function),
            reason: skipped.reason.code(),
            errno: rejection.map(|rejection| rejection.errno),
            error: rejection.map(|rejection| rejection.to_string()),
        }
    };
    skipped.iter().map(object).collect()
}

fn object(function: Function<'_>) -> FunctionObject {
    FunctionObject {
        function: text(function.name).into_owned(),
        module: function.module.map(|module| text(module).into_owned()),
        address: format!("{:#018x}", function.address),
    }
}

/// Flushed line by line: a reader sees each report when it is made.
fn print(out: &mut impl Write, body: Body) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Line { schema: SCHEMA, body })?;
    out.write_all(b"\n")?;
    out.flush()
}

/// 584 years fit.
fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What `uname -r` prints.
fn kernel_release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastprobe::{
        doctor::State,
        plan::{Reason, Rejection, Target},
    };

    fn function(name: &'static [u8]) -> Function<'static> {
        Function { address: 0xffff_ffff_8100_0000, name, module: Some(b"kvm") }
    }

    #[test]
    fn a_plan_is_one_line_in_the_contract() {
        let rejection = Rejection { errno: libc::EINVAL, meaning: "why" };
        let plan_to_print = Plan {
            targets: vec![Target { function: function(b"a"), site: 1 }],
            skipped: vec![
                Skipped { function: function(b"b\xff"), reason: Reason::NotTraceable },
                Skipped { function: function(b"c"), reason: Reason::RejectedByKernel(rejection) },
            ],
        };
        let mut out = Vec::new();
        plan(&mut out, &plan_to_print).unwrap();
        let line = String::from_utf8(out).unwrap();
        assert_eq!(
            line,
            "{\"schema\":1,\"type\":\"plan\",\"matched\":3,\
             \"targets\":[{\"function\":\"a\",\"module\":\"kvm\",\"address\":\"0xffffffff81000000\"}],\
             \"skipped\":[{\"function\":\"b\u{fffd}\",\"module\":\"kvm\",\"address\":\"0xffffffff81000000\",\
             \"reason\":\"not-traceable\"},\
             {\"function\":\"c\",\"module\":\"kvm\",\"address\":\"0xffffffff81000000\",\
             \"reason\":\"rejected-by-kernel\",\"errno\":22,\"error\":\"EINVAL: why\"}]}\n"
        );
    }

    #[test]
    fn a_machine_is_one_line_in_the_contract() {
        let check = |name, state, cost: Option<&str>, fix: Option<&str>| Check {
            name,
            state,
            detail: "found".into(),
            cost: cost.map(String::from),
            fix: fix.map(String::from),
        };
        let checks = vec![
            check("fprobe", State::Ok, None, None),
            check("kcore", State::Missing, Some("much"), Some("sudo \"x\"")),
        ];
        let mut out = Vec::new();
        doctor(&mut out, &Report { kernel: "7.3.4".into(), checks }).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"schema\":1,\"type\":\"doctor\",\"kernel\":\"7.3.4\",\"checks\":[\
             {\"name\":\"fprobe\",\"state\":\"ok\",\"detail\":\"found\",\"cost\":null,\"fix\":null},\
             {\"name\":\"kcore\",\"state\":\"missing\",\"detail\":\"found\",\"cost\":\"much\",\
             \"fix\":\"sudo \\\"x\\\"\"}],\"can_attach\":false}\n"
        );
    }
}
