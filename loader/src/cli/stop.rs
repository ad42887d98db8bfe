//! What ends a session.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use fastprobe::{Error, ErrorKind};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::sleep_until,
};

/// What ends a session: time, SIGINT, SIGTERM.
pub struct Stop {
    came: Arc<AtomicBool>,
    interrupt: Signal,
    terminate: Signal,
    duration: Option<Duration>,
    deadline: Option<tokio::time::Instant>,
}

impl Stop {
    /// Listens from here on.
    ///
    /// # Errors
    ///
    /// Where the kernel doesn't let it.
    pub fn new(duration: Option<Duration>) -> Result<Self> {
        const WHAT: &str = "can't listen for signals";
        let listen = |kind| signal(kind).context(WHAT);
        let came = Arc::default();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&came)).context(WHAT)?;
        }
        Ok(Self {
            came,
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            duration,
            deadline: None,
        })
    }

    /// The time runs from here. A time beyond what the clock can tell never comes.
    pub fn start(&mut self, from: Instant) {
        self.deadline = self.duration.and_then(|d| from.checked_add(d)).map(Into::into);
    }

    /// Whether a signal came, for those who can't wait.
    pub fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// That nothing goes on once a signal came.
    ///
    /// # Errors
    ///
    /// `Interrupted`, once it did.
    pub fn check(&self) -> Result<()> {
        match self.came() {
            true => Err(Error::new(ErrorKind::Interrupted, "interrupted; nothing stays attached").into()),
            false => Ok(()),
        }
    }

    /// Waits for whichever comes first.
    pub async fn wait(&mut self) {
        let deadline = self.deadline;
        let time_is_up = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = time_is_up => {}
        }
    }
}
