//! [`Handlers`]: the handlers of calls and of streams. What decides whether they begin, and their polls.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use super::connections::Connections;
use super::link::LinkKey;
use super::responses::{Blocked, BlockedResponse};
use super::running_handler::RunningHandler;
use super::tasks::{Task, TaskKey, Tasks};
use crate::catch_panic::catch_panic;
use crate::clock::Clock;
use crate::deadline::BelowFloor;
use crate::peer::{LendablePeer, Peer};
use crate::protocol::frame::FrameHeader;
use crate::protocol::inline_frame::{InlineFrame, SpareFrame};
use crate::service::dispatch::Methods;
use crate::service::handler::{Handler, HandlerKey, Served};
use crate::stats::PollerCounters;
use crate::status::Status;
use crate::transport::Transport;

/// What decides whether the handler of a request begins.
pub(super) struct RequestParts {
    pub(super) deadline: Option<Instant>,
    pub(super) is_expired: bool,
    pub(super) handler: Option<Rc<dyn Handler>>,
    pub(super) may_start: bool,
    pub(super) peer: Cell<Option<Arc<Peer>>>,
}

/// The number and waker of a task, lent to a future for one poll.
pub(super) type LentTask = (TaskKey, Waker);

/// The handlers of a server's methods, and the tasks of those that await. They are the application's
/// code: none is entered while anything is borrowed.
pub(crate) struct Handlers {
    pub(crate) methods: RefCell<Methods>,
    pub(super) tasks: RefCell<Tasks>,
    /// Read by the server's watchdog.
    pub(crate) running_handler: Arc<RunningHandler>,
    /// A spare frame, for responses.
    pub(super) inline_frame: SpareFrame,
    /// True if the server has rules for deadlines, so that every request needs the time.
    pub(super) has_deadline_policy: Cell<bool>,
    /// The task whose waker the next handler is polled with for the first time.
    pub(super) lent_task: Cell<Option<LentTask>>,
    /// Length of the longest frame that is sent inline.
    longest_inline: usize,
    counters: Arc<PollerCounters>,
    clock: Clock,
}

impl Handlers {
    pub(super) fn new(
        methods: Methods,
        tasks: Tasks,
        longest_inline: usize,
        counters: Arc<PollerCounters>,
        clock: Clock,
    ) -> Self {
        Self {
            has_deadline_policy: Cell::new(!methods.deadline_policy().is_empty()),
            methods: RefCell::new(methods),
            tasks: RefCell::new(tasks),
            running_handler: Arc::default(),
            inline_frame: SpareFrame::default(),
            lent_task: Cell::new(None),
            longest_inline,
            counters,
            clock,
        }
    }

    /// Reads what decides whether the handler of a request begins.
    #[inline(always)]
    pub(super) fn request_parts<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
    ) -> RequestParts {
        // Requests without a deadline cost no reading of the clock.
        let needs_clock = (header.time_us != 0) | self.has_deadline_policy.get();
        let (deadline, is_expired) = match needs_clock {
            false => (None, false),
            true => self.deadline_of(header),
        };
        let handler = self.methods.borrow().handler(header.selector).cloned();
        let may_start = !is_expired && self.tasks.borrow().has_capacity();
        let peer = connections.state.borrow_mut().links[link]
            .peer
            .as_mut()
            .map(LendablePeer::lend);
        RequestParts {
            deadline,
            is_expired,
            handler,
            may_start,
            peer: Cell::new(peer),
        }
    }

    /// Returns a request's deadline, and whether its handler may not begin because of it.
    #[inline(never)]
    pub(super) fn deadline_of(&self, header: &FrameHeader) -> (Option<Instant>, bool) {
        let now = self.clock.now();
        let stated = (header.time_us != 0).then(|| self.clock.deadline_of(header.time_us, now));
        if stated == Some(now) {
            return (stated, true);
        }
        let policy = self.methods.borrow().deadline_policy();
        match policy.apply(stated, now) {
            Ok(deadline) => (deadline, false),
            Err(BelowFloor { .. }) => (stated, true),
        }
    }

    /// Polls a handler, and marks it as running, for the watchdog.
    #[inline]
    pub(super) fn poll_handler(
        &self,
        method: u16,
        waker: &Waker,
        frame: &mut InlineFrame,
        poll: impl FnOnce(&mut Context<'_>, &mut [u8]) -> Served,
    ) -> Served {
        let mark = self.running_handler.enter(method);
        let out = frame.body_mut(self.longest_inline);
        let outcome = poll(&mut Context::from_waker(waker), out);
        self.running_handler.leave(mark);
        outcome
    }

    /// Returns a task's number and waker, with which a future may be polled once.
    #[inline]
    pub(super) fn lend_task(&self) -> LentTask {
        let spare = self.lent_task.take();
        spare.unwrap_or_else(|| self.tasks.borrow_mut().borrow_cell())
    }

    /// Builds the status of a request whose handler is not started.
    #[cold]
    pub(super) fn rejection(
        &self,
        header: &FrameHeader,
        is_expired: bool,
        going_away: bool,
    ) -> Status {
        let has_method = self.methods.borrow().handler(header.selector).is_some();
        if !has_method {
            Status::unimplemented(format!(
                "the server has no method number {}",
                header.selector
            ))
        } else if is_expired {
            self.expired()
        } else {
            self.shed(going_away)
        }
    }

    /// Builds the status of a request that is rejected without decoding.
    #[cold]
    fn shed(&self, going_away: bool) -> Status {
        let shed = self.counters.handlers.shed.add(1) + 1;
        if going_away {
            return Status::unavailable("the server is shutting down; the call did not run");
        }
        let limit = self.tasks.borrow().max_parked();
        // Logged only for counts that are powers of two, so that logging does not worsen an
        // overload.
        if shed.is_power_of_two() {
            tracing::warn!(
                shed,
                limit,
                "rejecting calls: the poller's limit of concurrent calls is reached. Raise \
                 `max_concurrent_calls`, or send fewer calls to this server"
            );
        }
        Status::resource_exhausted(format!(
            "the server rejected the call without running it: its limit of {limit} concurrent calls \
             per poller is reached. Raise `max_concurrent_calls` on the server, or send fewer calls"
        ))
    }

    /// Builds the status of a request whose deadline has already passed.
    #[cold]
    fn expired(&self) -> Status {
        self.counters.handlers.expired.add(1);
        Status::deadline_exceeded(
            "the deadline passed before the handler started; the call did not run",
        )
    }

    pub(super) fn discard(&self, task: &Task) {
        self.discard_handler(task.call.served.method, task.handler_key);
    }

    /// Drops a response that is not sent.
    pub(super) fn discard_response(&self, blocked: Blocked) {
        match blocked.response {
            BlockedResponse::Kept { handler_key, .. } => {
                self.discard_handler(blocked.call.served.method, handler_key);
            }
            BlockedResponse::Failed(status, _) => drop_of_handler(status),
            BlockedResponse::Long { encoded, .. } => drop_of_handler(encoded),
            BlockedResponse::Encoded { .. } => {}
        }
    }

    fn discard_handler(&self, method: u16, handler_key: HandlerKey) {
        let handler = self.methods.borrow().handler(method).cloned();
        if let Some(handler) = handler {
            handler.discard(handler_key);
        }
    }
}

/// Drops what a handler has answered, which may hold values of the application: nothing may be borrowed.
pub(super) fn drop_of_handler<A>(answer: A) {
    if let Err(panicked) = catch_panic(|| drop(answer)) {
        log_limited!(
            error,
            "the destructor of a handler's answer panicked: {panicked}"
        );
    }
}
