//! Deadlines pass on: a call that a handler makes inherits the deadline of the handler's own call.
//!
//! While a handler's future is polled, on a poller or on an executor, the deadline of its call is
//! the *current deadline* of the thread. A call that is first polled meanwhile has at most this
//! deadline ([`Request`](crate::Request) has the rule). The current deadline is restored after each
//! poll, so that a poll inside another poll sees its own, and the outer poll its own again.
//!
//! Deadlines are moments on this host's clock. Nothing is converted when one passes on.
//!
//! [`DeadlinePolicy`] is what a server adds to the deadlines of its clients.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::clock::deadline_after;

thread_local! {
    static CURRENT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The deadline that calls inherit on the current thread: that of the handler whose future is being
/// polled.
///
/// A handler's calls inherit it by themselves. A task that a handler spawns, on a thread or on an
/// executor, does not: it outlives the handler, and is not cancelled with it. To make the calls of
/// such a task inherit the deadline too, capture it in the handler and poll the task in its scope:
///
/// ```
/// # use rpc_core::{CurrentDeadline, block_on};
/// # async fn audit() {}
/// let deadline = CurrentDeadline::capture();
/// let task = std::thread::spawn(move || block_on(deadline.scope(audit())));
/// # task.join().unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentDeadline(Option<Instant>);

impl CurrentDeadline {
    /// Returns the current deadline of this thread. Outside of handlers there is none.
    #[must_use]
    pub fn capture() -> Self {
        Self(current())
    }

    /// Returns the moment, or `None` if there is no deadline.
    #[must_use]
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// Wraps a future, so that calls made while it is polled inherit this deadline. The deadline
    /// ends these calls, and not the future itself.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let _scope = enter(self.0);
            future.as_mut().poll(cx)
        })
        .await
    }
}

/// A server's rules for the deadlines of the calls that it receives. The default has none.
///
/// | a client sets | deadline of the call |
/// | --- | --- |
/// | nothing | `default` after its arrival, but not later than `cap`; none if neither is set |
/// | a deadline | this deadline, but not later than `cap` after its arrival |
/// | a deadline less than `floor` after its arrival | the call fails at once |
///
/// At the deadline the handler is dropped and the client receives `DEADLINE_EXCEEDED`. The handler's
/// own calls inherit the deadline: see [`CurrentDeadline`]. The rules hold for streams, too: a `cap`
/// ends a stream that a client would keep open for longer. A `default` or a `cap` of zero would fail
/// every call: [`bind`](crate::ServerBuilder::bind) returns an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlinePolicy {
    /// The time for a call whose client sets no deadline.
    pub default: Option<Duration>,
    /// The longest time for any call.
    pub cap: Option<Duration>,
    /// The shortest time in which a call may succeed. A call with less time left fails with
    /// `DEADLINE_EXCEEDED` before its message is decoded, because its client would not wait for the
    /// response. It did not run, so that a retry is safe.
    pub floor: Option<Duration>,
}

impl DeadlinePolicy {
    /// Returns true if no deadline changes and no call fails.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the deadline of a call that arrives now, or an error if the call must not start.
    pub(crate) fn apply(
        &self,
        deadline: Option<Instant>,
        now: Instant,
    ) -> Result<Option<Instant>, BelowFloor> {
        let after = |time: Option<Duration>| time.and_then(|time| deadline_after(now, time));
        if let (Some(deadline), Some(floor)) = (deadline, self.floor) {
            let left = deadline.saturating_duration_since(now);
            if left < floor {
                return Err(BelowFloor { left, floor });
            }
        }
        let deadline = deadline.or_else(|| after(self.default));
        Ok(earlier(deadline, after(self.cap)))
    }
}

/// A call has less time left than the server's policy requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the call arrived with {left:?} left, and the server starts no call with less than {floor:?} \
     (its `DeadlinePolicy::floor`); the call did not run"
)]
pub(crate) struct BelowFloor {
    left: Duration,
    floor: Duration,
}

/// Returns the deadline that a call inherits which starts now.
#[inline]
pub(crate) fn current() -> Option<Instant> {
    CURRENT.get()
}

/// Returns the earlier of two deadlines, where `None` is no deadline.
#[inline]
pub(crate) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Makes a deadline the current one, until the scope is dropped.
#[inline]
#[must_use]
pub(crate) fn enter(deadline: Option<Instant>) -> DeadlineScope {
    DeadlineScope {
        before: CURRENT.replace(deadline),
    }
}

/// Restores the deadline that was current before, also if the poll panics.
pub(crate) struct DeadlineScope {
    before: Option<Instant>,
}

impl Drop for DeadlineScope {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::panic::catch_unwind;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn scopes_nest_and_are_restored_after_a_panic() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let outer = enter(Some(now));
        {
            let _inner = enter(None);
            assert_eq!(current(), None);
            let panicked = catch_unwind(|| {
                let _innermost = enter(Some(later));
                panic!("in a poll");
            });
            assert!(panicked.is_err());
            assert_eq!(current(), None);
        }
        assert_eq!(current(), Some(now));
        drop(outer);
        assert_eq!(current(), None);
    }

    #[test]
    fn a_captured_deadline_is_current_while_its_future_is_polled_and_only_then() {
        let now = Instant::now();
        let captured = {
            let _scope = enter(Some(now));
            CurrentDeadline::capture()
        };
        assert_eq!(captured.instant(), Some(now));
        let mut seen = Vec::new();
        let mut future = Box::pin(captured.scope(poll_fn(|_| {
            seen.push(current());
            if seen.len() == 1 {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(future.as_mut().poll(&mut cx).is_pending());
        assert_eq!(current(), None);
        assert!(future.as_mut().poll(&mut cx).is_ready());
        drop(future);
        assert_eq!(seen, [Some(now), Some(now)]);
    }

    #[test]
    fn a_scope_without_a_deadline_hides_the_deadline_around_it() {
        let _scope = enter(Some(Instant::now()));
        let mut future = pin!(CurrentDeadline(None).scope(async {
            ready(()).await;
            current()
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert_eq!(future.as_mut().poll(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn a_policy_fills_in_caps_and_refuses() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let policy = DeadlinePolicy {
            default: Some(seconds(5)),
            cap: Some(seconds(10)),
            floor: Some(seconds(2)),
        };
        let apply = |policy: DeadlinePolicy, left: Option<u64>| {
            let deadline = policy.apply(left.map(|left| now + seconds(left)), now);
            deadline.map(|deadline| deadline.map(|deadline| (deadline - now).as_secs()))
        };
        assert!(!policy.is_empty());
        assert_eq!(apply(policy, None), Ok(Some(5)));
        assert_eq!(apply(policy, Some(3)), Ok(Some(3)));
        assert_eq!(apply(policy, Some(2)), Ok(Some(2)));
        assert_eq!(apply(policy, Some(11)), Ok(Some(10)));
        let refused = BelowFloor {
            left: seconds(1),
            floor: seconds(2),
        };
        assert_eq!(apply(policy, Some(1)), Err(refused));
        assert!(refused.to_string().contains("1s left"), "{refused}");

        let none = DeadlinePolicy::default();
        assert!(none.is_empty());
        assert_eq!(apply(none, None), Ok(None));
        assert_eq!(apply(none, Some(1)), Ok(Some(1)));

        // A call without a deadline is capped, and a default beyond the cap too.
        let capped = DeadlinePolicy {
            cap: Some(seconds(10)),
            ..none
        };
        assert_eq!(apply(capped, None), Ok(Some(10)));
        let default = Some(seconds(20));
        assert_eq!(
            apply(DeadlinePolicy { default, ..capped }, None),
            Ok(Some(10))
        );
    }

    #[test]
    fn the_earlier_of_two_deadlines_wins() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        assert_eq!(earlier(Some(now), Some(later)), Some(now));
        assert_eq!(earlier(Some(later), Some(now)), Some(now));
        assert_eq!(earlier(None, Some(later)), Some(later));
        assert_eq!(earlier(Some(later), None), Some(later));
        assert_eq!(earlier(None, None), None);
    }
}
