//! [`Mix`]: calls of all four kinds between processes that a test steps, and what has to hold for
//! each of them.
//!
//! A test makes [`Order`]s, and polls and drops the calls as it likes. Messages are numbered, and
//! both sides check them: a message that is lost, repeated, out of order or of another call is a
//! violation, and so is an end before the last message.

mod client;
mod handlers;
mod interceptors;
mod order;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use rpc_core::intercept::{Interceptor, Side};
use rpc_core::{CallError, Code, Execution};

use self::interceptors::Counts;
pub use order::{Ending, Order};

/// A call of a client. If it succeeds, its messages were as ordered.
pub type MixCall = Pin<Box<dyn Future<Output = Result<(), CallError>>>>;

/// The calls of a test, with their handlers.
#[derive(Clone, Default)]
pub struct Mix(Rc<Shared>);

#[derive(Default)]
struct Shared {
    /// How often the handler of each call has begun.
    started: RefCell<HashMap<u64, u32>>,
    /// Calls whose handlers have begun and have not been dropped.
    running: RefCell<HashMap<u64, u32>>,
    /// Calls of which the client was told that they had not begun.
    not_begun: RefCell<Vec<u64>>,
    /// Handlers and clients that wait until they are woken.
    waiting: RefCell<Vec<Waker>>,
    is_open: Cell<bool>,
    violation: RefCell<Option<String>>,
    interceptors: Arc<Counts>,
}

impl Mix {
    /// Wakes the handlers and clients that wait.
    pub fn wake_waiting(&self) {
        for waker in self.0.waiting.take() {
            waker.wake();
        }
        self.0.interceptors.wake_waiting();
    }

    /// Wakes the handlers and clients that wait, and lets none wait from now on.
    pub fn open(&self) {
        self.0.is_open.set(true);
        self.0.interceptors.open();
        self.wake_waiting();
    }

    /// Returns interceptors for the calls of this mix, on either side: they count begins and ends, and some
    /// calls wait for them or are refused. The handlers have them.
    #[must_use]
    pub fn interceptors(&self) -> [Arc<dyn Interceptor>; 3] {
        self.0.interceptors.interceptors()
    }

    /// Checks that the interceptors have seen the end of each call that they let pass. Returns how many these
    /// are.
    ///
    /// # Panics
    ///
    /// Panics if they have not.
    pub fn check_interceptors(&self) -> u64 {
        let unequal = self.0.interceptors.unequal();
        assert!(unequal.is_empty(), "{unequal:?}");
        self.0.interceptors.passed()
    }

    /// Returns the calls whose handlers have begun and have not been dropped.
    #[must_use]
    pub fn running(&self) -> Vec<u64> {
        let mut running: Vec<_> = self.0.running.borrow().keys().copied().collect();
        running.sort_unstable();
        running
    }

    /// Returns how often the handler of a call has begun.
    #[must_use]
    pub fn started(&self, id: u64) -> u32 {
        self.0.started.borrow().get(&id).copied().unwrap_or(0)
    }

    /// Checks the end of a call. Returns the error if the order is not its cause: then the test has to
    /// know another one.
    ///
    /// # Panics
    ///
    /// Panics if the call ended in a way that nothing permits.
    pub fn judge<'a>(
        &self,
        order: &Order,
        outcome: &'a Result<(), CallError>,
    ) -> Option<&'a CallError> {
        let id = order.id;
        let Err(error) = outcome else {
            assert_eq!(order.ending, Ending::Succeeds, "call {id} succeeded");
            assert_eq!(self.started(id), 1, "runs of call {id}, which succeeded");
            return None;
        };
        if matches!(
            error.execution(),
            Execution::NeverSent | Execution::NotStarted
        ) {
            self.0.not_begun.borrow_mut().push(id);
        }
        let expected = match error.code() {
            Code::Aborted => Ending::Fails,
            Code::PermissionDenied => {
                let sides = [Side::Client, Side::Server];
                let is_refused = sides.iter().any(|&side| order.is_refused_by(side));
                assert!(is_refused, "call {id}: {error}");
                let execution = error.execution();
                assert_ne!(execution, Execution::MayHaveRun, "call {id}: {error}");
                assert_ne!(execution, Execution::Answered, "call {id}: {error}");
                return None;
            }
            Code::Internal if error.message().contains("the handler panicked") => Ending::Panics,
            _ => return Some(error),
        };
        assert_eq!(order.ending, expected, "call {id}: {error}");
        None
    }

    /// Checks what can be known only when all calls have ended.
    ///
    /// # Panics
    ///
    /// Panics if a message was not as ordered, or if a handler has begun twice, has begun although
    /// its client was told that it had not, or has not been dropped.
    pub fn finish(&self) {
        if let Some(violation) = &*self.0.violation.borrow() {
            panic!("{violation}");
        }
        let started = self.0.started.borrow();
        let twice = started.iter().filter(|(_, count)| **count > 1);
        assert_eq!(
            twice.map(|(id, _)| *id).min(),
            None,
            "a handler began twice"
        );
        for &id in &*self.0.not_begun.borrow() {
            let runs = self.started(id);
            assert_eq!(runs, 0, "call {id} ran after it was said not to have begun");
        }
        let running = self.running();
        assert!(
            running.is_empty(),
            "handlers of {running:?} were not dropped"
        );
        self.check_interceptors();
    }

    /// Waits until it is woken once.
    async fn wait(&self) {
        let mut has_waited = false;
        poll_fn(|cx| {
            if has_waited || self.0.is_open.get() {
                return Poll::Ready(());
            }
            has_waited = true;
            self.0.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Notes that something was not as ordered. The first such note is kept.
    fn report(&self, violation: impl FnOnce() -> String) {
        let mut kept = self.0.violation.borrow_mut();
        if kept.is_none() {
            *kept = Some(violation());
        }
    }

    /// Checks that a message is the expected one.
    fn check(&self, what: &str, order: &Order, message: &[u8], expected: &[u8]) {
        if message != expected {
            self.report(|| {
                let start = |bytes: &[u8]| bytes[..bytes.len().min(12)].to_vec();
                format!(
                    "{order:?}: {what} of {} bytes {:?}, not of {} bytes {:?}",
                    message.len(),
                    start(message),
                    expected.len(),
                    start(expected)
                )
            });
        }
    }
}
