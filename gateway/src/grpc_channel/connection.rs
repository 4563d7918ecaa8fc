//! [`Connection`]: the connection of a channel, which calls share.
//!
//! ```text
//!                 first call                  connected
//!   Unconnected ──────────────▶ Connecting ──────────────▶ Connected
//!                                ▲  ▲  │ failed                │
//!           a call after a delay │  │  ▼                       │ ended, and a call
//!                                └ Failed ◀────────────────────┤ without any response
//!                                   └──────────────────────────┘
//! ```
//!
//! An attempt belongs to the channel: it goes on when the deadline of its caller has passed.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::Uri;
use http::uri::PathAndQuery;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep_until, timeout};

use super::connect::{Sender, connect};
use super::error::GrpcConnectError;
use super::target::Target;

/// How long connecting may take, from the name to the server's first frame: as of a
/// [`Channel`](verbline::Channel).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The delay after a failed attempt, and the longest one after many: as of a
/// [`Channel`](verbline::Channel).
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// How the delays grow, and the part by which each differs at random: gRPC's "Connection Backoff
/// Protocol".
const MULTIPLIER: f64 = 1.6;
const JITTER: f64 = 0.2;

/// The connection of a channel.
pub(super) struct Connection {
    target: Arc<Target>,
    runtime: Handle,
    state: watch::Sender<State>,
}

/// A connection, and what calls have seen of it.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) sender: Sender,
    has_answered: Arc<AtomicBool>,
}

impl Connected {
    fn new(sender: Sender) -> Self {
        Self {
            sender,
            has_answered: Arc::default(),
        }
    }

    /// The head of a response has come: the connection is no failure, whenever it ends.
    pub(super) fn set_answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }
}

#[derive(Default)]
enum State {
    /// There was no call since the beginning, or since a connection has ended.
    #[default]
    Unconnected,
    /// Calls wait for the attempt. So many before it have failed since there was a response.
    Connecting { failures: i32 },
    Connected {
        connected: Connected,
        failures: i32,
        since: Instant,
    },
    /// Calls fail with this error until then. The first one after it makes the next attempt.
    Failed {
        failures: i32,
        error: GrpcConnectError,
        until: Instant,
    },
}

impl State {
    /// Returns true if an attempt is due. It has begun then.
    fn begin(&mut self, target: &str) -> bool {
        if let Self::Connected {
            connected,
            failures,
            since,
        } = self
            && connected.sender.is_closed()
        {
            *self = match connected.has_answered.load(Ordering::Relaxed) {
                true => Self::Unconnected,
                // A server may end each connection at once.
                false => {
                    let why = "the connection ended before any response";
                    let error = GrpcConnectError::Connect {
                        target: target.to_owned(),
                        source: Arc::new(io::Error::new(io::ErrorKind::ConnectionAborted, why)),
                    };
                    Self::failed(*failures, error, *since)
                }
            };
        }
        let failures = match self {
            Self::Unconnected => 0,
            Self::Failed {
                failures, until, ..
            } if *until <= Instant::now() => *failures,
            _ => return false,
        };
        *self = Self::Connecting { failures };
        true
    }

    fn end(&mut self, outcome: Result<Sender, GrpcConnectError>) {
        let now = Instant::now();
        let failures = match self {
            Self::Connecting { failures } => *failures,
            _ => 0,
        };
        *self = match outcome {
            Ok(sender) => Self::Connected {
                connected: Connected::new(sender),
                failures,
                since: now,
            },
            Err(error) => Self::failed(failures, error, now),
        };
    }

    /// Returns the state after a failure at this time, and so many before it.
    fn failed(before: i32, error: GrpcConnectError, at: Instant) -> Self {
        Self::Failed {
            failures: before.saturating_add(1),
            error,
            until: at + delay(before),
        }
    }
}

/// Returns the time without an attempt after one that has failed, and so many before it.
fn delay(failures: i32) -> Duration {
    let limit = FIRST_DELAY.as_secs_f64() * MULTIPLIER.powi(failures.min(100));
    // The standard library's hasher uses different keys for each process and each use.
    let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    let part = 1.0 - JITTER + 2.0 * JITTER * random;
    Duration::from_secs_f64(limit.min(LONGEST_DELAY.as_secs_f64()) * part)
}

impl Connection {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target: Arc::new(target),
            runtime: Handle::current(),
            state: watch::Sender::default(),
        }
    }

    pub(super) fn target(&self) -> &str {
        self.target.text()
    }

    /// Returns the URI of a method.
    pub(super) fn uri(&self, path: PathAndQuery) -> Option<Uri> {
        self.target.uri(path)
    }

    /// Returns the connection, and waits for the attempt to make it if there is none.
    ///
    /// # Errors
    ///
    /// Returns the error of this attempt, or at once that of the latest one, until the next is due.
    pub(super) async fn get(&self) -> Result<Connected, GrpcConnectError> {
        let begin = |state: &mut State| state.begin(self.target());
        if self.state.send_if_modified(begin) {
            self.attempt();
        }
        let mut state = self.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                State::Connected { connected, .. } => return Ok(connected.clone()),
                State::Failed { error, .. } => return Err(error.clone()),
                State::Unconnected | State::Connecting { .. } => {}
            }
            // Its sender is in `self`.
            let _ = state.changed().await;
        }
    }

    /// Starts an attempt, as a task: whoever calls may be on a thread without tokio, and may go.
    fn attempt(&self) {
        let attempt = Attempt {
            target: Arc::clone(&self.target),
            state: self.state.clone(),
            outcome: None,
        };
        self.runtime.spawn(attempt.run());
    }

    /// Returns a timer that ends at the deadline. It may be polled on any thread.
    pub(super) fn timer(&self, deadline: Option<Instant>) -> Option<Sleep> {
        let _context = self.runtime.enter();
        deadline.map(|deadline| sleep_until(deadline.into()))
    }

    /// Waits for a future until the deadline. Returns `None` if that has passed.
    pub(super) async fn within<F: Future>(
        &self,
        deadline: Option<Instant>,
        future: F,
    ) -> Option<F::Output> {
        let mut future = pin!(future);
        let Some(timer) = self.timer(deadline) else {
            return Some(future.await);
        };
        let mut timer = pin!(timer);
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(output) = future.as_mut().poll(cx) {
                return std::task::Poll::Ready(Some(output));
            }
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

/// One attempt to connect. Its outcome reaches the channel when it is dropped, so that calls do not wait
/// for one whose runtime has been shut down.
struct Attempt {
    target: Arc<Target>,
    state: watch::Sender<State>,
    outcome: Option<Result<Sender, GrpcConnectError>>,
}

impl Attempt {
    async fn run(mut self) {
        let outcome = timeout(CONNECT_TIMEOUT, connect(&self.target)).await;
        let target = self.target.text().to_owned();
        self.outcome = Some(match outcome {
            Ok(connected) => connected.map_err(|error| GrpcConnectError::Connect {
                target,
                source: Arc::new(error),
            }),
            Err(_) => Err(GrpcConnectError::Timeout {
                target,
                timeout: CONNECT_TIMEOUT,
            }),
        });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| {
            Err(GrpcConnectError::Connect {
                target: self.target.text().to_owned(),
                source: Arc::new(io::Error::other("its tokio runtime has been shut down")),
            })
        });
        self.state.send_modify(|state| state.end(outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_the_longest() {
        for (failures, limit_ms) in [
            (0, 50),
            (1, 80),
            (2, 128),
            (9, 3436),
            (10, 5000),
            (i32::MAX, 5000),
        ] {
            let limit = Duration::from_millis(limit_ms);
            let (shortest, longest) = (limit.mul_f64(0.799), limit.mul_f64(1.201));
            let delay = delay(failures);
            assert!(
                shortest <= delay && delay <= longest,
                "{failures}: {delay:?}"
            );
        }
        assert_ne!(delay(0), delay(0));
    }
}
