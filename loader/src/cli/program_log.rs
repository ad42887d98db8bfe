//! What the eBPF program logs, on standard error.

use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};
use tokio::io::{Interest, unix::AsyncFd};

use super::warn;

/// Prints records as they come.
struct ToStandardError;

impl Log for ToStandardError {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        say!("fastprobe: program: {}: {}", record.level().as_str().to_lowercase(), record.args());
    }

    fn flush(&self) {}
}

/// The ring buffer that a loaded program logs into. Without one ([`none`](Self::none)) nothing ever comes.
pub struct ProgramLog(Option<AsyncFd<EbpfLogger<ToStandardError>>>);

impl ProgramLog {
    /// No log.
    pub fn none() -> Self {
        Self(None)
    }

    /// The log of the program that the kernel knows under `program_id`; none, with a warning, where it can't be
    /// opened: the run is worth more than its log.
    pub fn of(program_id: u32) -> Self {
        let log = EbpfLogger::init_from_id_with_logger(program_id, ToStandardError)
            .map_err(anyhow::Error::from)
            // SAFETY: the descriptor that the logger shows is its ring buffer's own, open for as long as it lives.
            .and_then(|logger| Ok(unsafe { AsyncFd::register_with_interest(logger, Interest::READABLE) }?));
        match log {
            Ok(log) => Self(Some(log)),
            Err(error) => {
                let hint = "it takes CAP_SYS_ADMIN: the log's map is looked for among all that are loaded";
                warn(format_args!("can't read what the eBPF program logs: {error:#}"), Some(hint));
                Self::none()
            }
        }
    }

    /// Waits for something to be logged and prints it. Waits for ever where there is no log.
    pub async fn print_next(&mut self) {
        let Some(log) = &mut self.0 else { return std::future::pending().await };
        match log.readable_mut().await {
            Ok(mut guard) => {
                guard.get_inner_mut().flush();
                guard.clear_ready();
            }
            Err(error) => {
                warn(format_args!("can't read what the eBPF program logs: {error}"), None);
                self.0 = None;
            }
        }
    }

    /// Prints what is there without waiting.
    pub fn print_rest(&mut self) {
        if let Some(log) = &mut self.0 {
            log.get_mut().flush();
        }
    }
}
