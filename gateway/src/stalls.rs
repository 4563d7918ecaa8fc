//! [`Stalls`]: the calls of a connection whose client has stopped taking a long message.
//!
//! A client may read as slowly as it likes, as long as it reads: what counts is the time since a piece of
//! the message was written to its socket. A call that has stalled ends by itself, and the others of the
//! connection go on: its task is dropped ([`CallTasks`]), so hyper resets its stream. That does not help
//! in two cases, in which the whole connection has to end. The socket takes nothing, not even the reset.
//! Or the task has ended before, because hyper had handed the rest of the response to HTTP/2's
//! implementation, which keeps it until its client takes it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::rt::Executor;
use tokio::sync::Notify;
use verbline::message::bytes::Bytes;

tokio::task_local! {
    /// Ends the call that this task runs.
    static END: Arc<Notify>;
}

/// hyper's executor for one connection: runs each call in a task that can be ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTasks;

impl<F> Executor<F> for CallTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, call: F) {
        let end = Arc::<Notify>::default();
        tokio::spawn(END.scope(Arc::clone(&end), async move {
            tokio::select! {
                biased;
                () = call => {}
                () = end.notified() => {}
            }
        }));
    }
}

/// The calls of a connection with long messages that wait for the client.
#[derive(Debug, Default)]
pub(crate) struct Stalls(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    next: u64,
    by_call: BTreeMap<u64, Wait>,
}

/// A call that waits.
#[derive(Debug)]
struct Wait {
    pieces: usize,
    /// When a piece was written, or the wait began.
    since: Instant,
    end: Arc<Notify>,
}

impl Stalls {
    /// Ends the calls of which nothing was written for this time. Returns true if the connection has to
    /// end, because ending a call did not help for half of this time.
    pub(crate) fn end(&self, time: Duration) -> bool {
        let longest = time.saturating_add(time / 2);
        let mut is_stuck = false;
        for wait in self.lock().by_call.values() {
            let waited = wait.since.elapsed();
            if waited >= time {
                wait.end.notify_one();
            }
            is_stuck |= waited >= longest;
        }
        is_stuck
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches the long messages of one call.
#[derive(Debug)]
pub(crate) struct StallWatch {
    stalls: Arc<Stalls>,
    call: u64,
    end: Arc<Notify>,
}

impl StallWatch {
    /// Watches the call that this task runs.
    pub(crate) fn new(stalls: &Arc<Stalls>) -> Self {
        let mut waits = stalls.lock();
        let call = waits.next;
        waits.next += 1;
        Self {
            stalls: Arc::clone(stalls),
            call,
            end: END.try_with(Arc::clone).unwrap_or_default(),
        }
    }

    /// Watches a piece until it has been written to the client's socket, which drops it.
    pub(crate) fn watch(&self, piece: Bytes) -> Bytes {
        let mut waits = self.stalls.lock();
        let wait = waits.by_call.entry(self.call).or_insert_with(|| Wait {
            pieces: 0,
            since: Instant::now(),
            end: Arc::clone(&self.end),
        });
        wait.pieces += 1;
        Bytes::from_owner(Watched {
            piece,
            call: self.call,
            stalls: Arc::clone(&self.stalls),
        })
    }
}

struct Watched {
    piece: Bytes,
    call: u64,
    stalls: Arc<Stalls>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut waits = self.stalls.lock();
        let Some(wait) = waits.by_call.get_mut(&self.call) else {
            return;
        };
        wait.pieces -= 1;
        wait.since = Instant::now();
        if wait.pieces == 0 {
            waits.by_call.remove(&self.call);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn is_told(watch: &StallWatch) -> bool {
        let told = pin!(watch.end.notified());
        told.poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn a_call_stalls_while_its_client_does_not_take_a_message() {
        let stalls = Arc::<Stalls>::default();
        let watch = StallWatch::new(&stalls);
        assert!(!stalls.end(Duration::ZERO));
        let message = watch.watch(Bytes::from_static(b"abc"));
        assert_eq!(message, "abc");
        assert!(!stalls.end(LONG));
        assert!(!is_told(&watch));
        let rest = message.slice(2..);
        drop(message);
        // It did not help at once.
        assert!(stalls.end(Duration::ZERO));
        assert!(is_told(&watch));
        drop(rest);
        assert!(!stalls.end(Duration::ZERO));
        assert!(!is_told(&watch));
    }

    #[test]
    fn each_piece_that_is_written_is_progress_of_its_call_only() {
        let stalls = Arc::<Stalls>::default();
        let [read, unread] = [StallWatch::new(&stalls), StallWatch::new(&stalls)];
        let piece = || Bytes::from_static(b"abc");
        let pieces = [read.watch(piece()), read.watch(piece())];
        let _unread = unread.watch(piece());
        let since = |watch: &StallWatch| stalls.lock().by_call[&watch.call].since;
        let begun = [since(&read), since(&unread)];
        let [written, _other] = pieces;
        drop(written);
        assert!(since(&read) > begun[0]);
        assert_eq!(since(&unread), begun[1]);
    }
}
