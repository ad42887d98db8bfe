//! `fastprobe PATTERN…`: counts calls.

use std::time::Duration;

use anyhow::Result;
use fastprobe::instrument::count::Counter;

use super::{
    args::{CountArguments, SessionArguments},
    render::{AttachReport, Render, SummaryReport, renderer},
    run::{Command, Running, warn_of},
    window::Window,
};

/// The command.
pub struct Count<'a> {
    arguments: &'a CountArguments,
    render: Box<dyn Render>,
}

impl<'a> Count<'a> {
    /// The command that these arguments ask for.
    pub fn new(arguments: &'a CountArguments) -> Self {
        Self { arguments, render: renderer(arguments) }
    }
}

impl Command for Count<'_> {
    type Instrument = Counter;

    fn arguments(&self) -> &SessionArguments {
        &self.arguments.session
    }

    fn interval(&self) -> Option<Duration> {
        self.arguments.interval
    }

    fn instrument(&self) -> Counter {
        Counter
    }

    fn attached(&mut self, report: &AttachReport<'_, '_>) -> Result<()> {
        Ok(self.render.attached(report)?)
    }

    async fn show(&mut self, mut running: Running<'_, Counter>) -> Result<()> {
        let mut window = Window::new(running.since, running.plan.targets.len());
        while running.next().await {
            self.render.counts(&window.next(running.plan, &running.session))?;
        }
        self.render.counts(&window.next(running.plan, &running.session))?;
        // The sum of what the windows have shown: calls that came after the last one count no more.
        let (elapsed, hits) = (window.since - window.attached, window.before.iter().sum());
        let ended = running.end()?;
        self.render.summary(&SummaryReport { elapsed, hits, misses: ended.misses, detach: ended.detach })?;
        warn_of(ended.misses);
        Ok(())
    }
}
