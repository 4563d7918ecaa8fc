//! [`CallLog`]: a line in the log for each call that failed or was slow.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rpc_core::Code;
use rpc_core::intercept::{Begin, Call, End, Interceptor, Side};

/// Writes a line, at `WARN`, for each call that failed or took longer than a limit. On a server it
/// names the client.
///
/// A hundred lines in a second are written at most, with 300 characters of the reason each, and the next
/// one says how many calls were left out. So no client can fill the log. The limit is that of all
/// clients: one whose calls fail a hundred times a second hides the lines of others.
///
/// ```
/// use std::time::Duration;
/// use verbline::intercept::CallLog;
///
/// let log = CallLog::failures().and_slower_than(Duration::from_millis(5));
/// # let _ = log;
/// ```
pub struct CallLog {
    threshold: Option<Duration>,
    limit: Mutex<Window>,
}

/// The lines of the current second.
struct Window {
    began: Instant,
    lines: u32,
    left_out: u64,
}

/// Characters of a reason that are written.
const LONGEST_REASON: usize = 300;

/// Most lines in a second.
const LINES: u32 = 100;

/// The client of a call.
struct From(SocketAddr);

impl CallLog {
    /// Writes a line for each call that fails.
    #[must_use]
    pub fn failures() -> Self {
        Self {
            threshold: None,
            limit: Mutex::new(Window {
                began: Instant::now(),
                lines: 0,
                left_out: 0,
            }),
        }
    }

    /// Writes a line also for each call that takes longer than `threshold`, from the first `begin` to
    /// the `end`. The clock is read twice for each call then.
    #[must_use]
    pub fn and_slower_than(mut self, threshold: Duration) -> Self {
        self.threshold = Some(threshold);
        self
    }

    /// Returns whether a line may be written now, and how many were left out since the last one.
    fn note(&self, now: Instant) -> Option<u64> {
        let mut window = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(window.began) >= Duration::from_secs(1) {
            window.began = now;
            window.lines = 0;
        }
        if window.lines == LINES {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

impl Interceptor for CallLog {
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        if let Some(peer) = call.peer() {
            let from = From(peer.address());
            call.locals_mut().insert(from);
        }
        Begin::PASS
    }

    fn end(&self, end: &mut End<'_>) {
        let elapsed = end.elapsed();
        let is_slow = match (self.threshold, elapsed) {
            (Some(threshold), Some(elapsed)) => elapsed > threshold,
            _ => false,
        };
        if end.code() == Code::Ok && !is_slow {
            return;
        }
        let Some(left_out) = self.note(Instant::now()) else {
            return;
        };
        let side = match end.side() {
            Side::Client => "client",
            Side::Server => "server",
        };
        let from = end.locals().get::<From>().map(|From(address)| address);
        let reason = match (end.error(), end.status()) {
            (Some(error), _) => Some(cut(error.message())),
            (None, status) => status.map(|status| cut(status.message())),
        };
        tracing::warn!(
            side,
            method = end.method().path,
            code = %end.code(),
            elapsed = elapsed.map(tracing::field::debug),
            from = from.map(tracing::field::display),
            requests = end.requests().messages,
            request_bytes = end.requests().bytes,
            responses = end.responses().messages,
            response_bytes = end.responses().bytes,
            // A peer may have written it: quoted, so that it is one line.
            reason = reason.map(tracing::field::debug),
            left_out,
            "{}",
            match end.code() {
                Code::Ok => "a call was slow",
                _ => "a call failed",
            }
        );
    }

    fn measures_time(&self) -> bool {
        self.threshold.is_some()
    }
}

/// Returns the beginning of a reason. A client may have sent what it says, so its length is limited.
fn cut(reason: &str) -> String {
    match reason.char_indices().nth(LONGEST_REASON) {
        None => reason.to_owned(),
        Some((end, _)) => format!("{}… (cut)", &reason[..end]),
    }
}

impl fmt::Debug for CallLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLog")
            .field("threshold", &self.threshold)
            .finish_non_exhaustive()
    }
}
