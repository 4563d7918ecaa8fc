//! The server's part of a turn: from a request to its handler's outcome.
//!
//! One virtual call serves a request whose handler completes at its first poll: it decodes the
//! request, runs the handler, and encodes the response into an inline frame. The response then
//! leaves at once, and carries the credit of its request; the request's slot is released after it.
//!
//! The credit of a request whose handler awaits is owed, and its slot released, after the first poll.
//! A handler thus holds no receive while it awaits, so that nested calls cannot starve each other of
//! receives.
//!
//! A request that is alone goes straight to its handler. Requests that arrive together go through the
//! run queue (`run_queue.rs`).
//!
//! While `max_concurrent_calls` handlers are pending, the next request is answered with an error
//! before its message is decoded. It is rejected rather than queued: queueing nested calls could
//! deadlock.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use super::link::LinkKey;
use super::responses::{BlockedResponse, Started};
use super::tasks::{IncomingCall, Task, TaskKey};
use super::{Driver, TimerTarget};
use crate::deadline::BelowFloor;
use crate::peer::Peer;
use crate::protocol::frame::{Flags, FrameHeader, HEADER_LEN};
use crate::protocol::inline_frame::InlineFrame;
use crate::service::handler::{Handler, HandlerKey, RawRequest, Served};
use crate::stats::ServedCall;
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

impl<T: Transport> Driver<T> {
    /// Serves the request in `buf`, which was the only one. Its header has been validated and
    /// accounted.
    #[inline(always)]
    pub(super) fn serve_received(&self, link: LinkKey, header: &FrameHeader, buf: T::RecvBuf) {
        let served = self.counters.received(header.selector, || self.clock.now());
        self.serve(link, header, served, buf);
    }

    /// Serves the request in `buf`, or rejects it.
    #[inline(always)]
    pub(super) fn serve(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        buf: T::RecvBuf,
    ) {
        if header.flags.contains(Flags::STREAM) {
            return self.serve_stream(link, header, served, buf);
        }
        let RequestParts {
            deadline,
            is_expired,
            handler,
            may_start,
            peer,
        } = self.request_parts(link, header);
        let (Some(handler), true) = (handler, may_start) else {
            return self.reject(link, header, served, is_expired, buf);
        };
        // The lengths were validated when the header was parsed.
        let (metadata, message) = buf.as_ref()[HEADER_LEN..].split_at(header.metadata_len.into());
        let request = RawRequest {
            metadata,
            message,
            long: None,
            deadline,
            stream: None,
            peer: &peer,
        };
        let (key, waker) = self.lend_task();
        let mut frame = self.inline_frame.take();
        let outcome = self.poll_handler(header.selector, &waker, &mut frame, |cx, out| {
            handler.serve(request, cx, out)
        });
        let call = IncomingCall {
            link,
            call: header.call,
            served,
            stream: None,
        };
        match outcome {
            Served::Encoded(len) => {
                self.lent_task.set(Some((key, waker)));
                let state = &mut *self.state.borrow_mut();
                state.take_back(link);
                state.respond_inline(&call, len, frame.frame_mut(len.total()));
                state.transport.release(buf);
                self.counters.started(header.selector);
            }
            Served::Undecodable(status) => {
                self.lent_task.set(Some((key, waker)));
                self.release_request(link, buf);
                self.respond_failure(&call, status, Started::NOT);
            }
            outcome => {
                self.release_request(link, buf);
                self.counters.started(header.selector);
                self.after_first_poll(&call, &*handler, outcome, deadline, (key, waker));
            }
        }
        self.inline_frame.put_back(frame);
    }

    /// Reads what decides whether the handler of a request begins.
    #[inline(always)]
    pub(super) fn request_parts(&self, link: LinkKey, header: &FrameHeader) -> RequestParts {
        // Requests without a deadline cost no reading of the clock.
        let needs_clock = (header.time_us != 0) | self.has_deadline_policy.get();
        let (deadline, is_expired) = match needs_clock {
            false => (None, false),
            true => self.deadline_of(header),
        };
        let handler = self.methods.borrow().handler(header.selector).cloned();
        let may_start = !is_expired && self.tasks.borrow().has_capacity();
        let peer = self
            .state
            .borrow_mut()
            .links
            .get_mut(link.index())
            .and_then(|link| Some(link.peer.as_mut()?.lend()));
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
    fn deadline_of(&self, header: &FrameHeader) -> (Option<Instant>, bool) {
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

    /// Ends the first poll of a handler that has not completed with a short response.
    #[inline(never)]
    pub(super) fn after_first_poll(
        &self,
        call: &IncomingCall,
        handler: &dyn Handler,
        outcome: Served,
        deadline: Option<Instant>,
        (key, waker): LentTask,
    ) {
        let Served::Pending(handler_key) = outcome else {
            self.lent_task.set(Some((key, waker)));
            return self.respond(call, handler, outcome, &mut []);
        };
        let state = &mut *self.state.borrow_mut();
        self.counters.handlers.awaited.add(1);
        // The response comes later, so another frame has to carry the credit of this request.
        state.owe(call.link);
        let timer = deadline.map(|deadline| state.timers.insert(deadline, TimerTarget::Task(key)));
        let task = Task {
            call: *call,
            handler_key,
            timer,
        };
        self.tasks.borrow_mut().park_new(key, waker, task);
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

    /// Answers a request whose handler is not started.
    #[cold]
    #[inline(never)]
    fn reject(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        is_expired: bool,
        buf: T::RecvBuf,
    ) {
        let status = self.rejection(header, is_expired);
        self.refuse(link, header, served, buf, status, Started::NOT);
    }

    /// Builds the status of a request whose handler is not started.
    #[cold]
    pub(super) fn rejection(&self, header: &FrameHeader, is_expired: bool) -> Status {
        let has_method = self.methods.borrow().handler(header.selector).is_some();
        if !has_method {
            Status::unimplemented(format!(
                "the server has no method number {}",
                header.selector
            ))
        } else if is_expired {
            self.expired()
        } else {
            self.shed()
        }
    }

    /// Answers a request whose handler is not started.
    #[cold]
    pub(super) fn refuse(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        buf: T::RecvBuf,
        status: Status,
        started: Started,
    ) {
        self.release_request(link, buf);
        if header.flags.contains(Flags::STREAM) {
            return self.refuse_stream(link, header, served, status, started);
        }
        let call = IncomingCall {
            link,
            call: header.call,
            served,
            stream: None,
        };
        self.respond_failure(&call, status, started);
    }

    /// Builds the status of a request that is rejected without decoding.
    #[cold]
    fn shed(&self) -> Status {
        let shed = self.counters.handlers.shed.add(1) + 1;
        if self.state.borrow().going_away {
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

    /// Drops a parked handler whose deadline has passed, and responds with `DEADLINE_EXCEEDED`.
    pub(crate) fn expire_task(&self, key: TaskKey) {
        let Some(task) = self.tasks.borrow_mut().expire(key) else {
            return;
        };
        self.discard(&task);
        let status = Status::deadline_exceeded("the deadline passed while the handler was running");
        self.respond_status(&task.call, status);
    }

    /// Drops the handlers and the blocked responses of a connection that has ended.
    pub(crate) fn discard_tasks_of(&self, link: LinkKey) {
        self.discard_queued(link);
        let tasks = self
            .tasks
            .borrow_mut()
            .remove_where(|task| task.call.link == link);
        for task in tasks {
            if let Some(timer) = task.timer {
                self.state.borrow_mut().timers.cancel(timer);
            }
            self.counters.dropped(task.call.served.method);
            self.discard(&task);
        }
        let mut state = self.state.borrow_mut();
        let (gone, kept): (VecDeque<_>, _) = state
            .blocked
            .drain(..)
            .partition(|blocked| blocked.call.link == link);
        state.blocked = kept;
        drop(state);
        for blocked in gone {
            self.counters.dropped(blocked.call.served.method);
            if let BlockedResponse::Kept { handler_key, .. } = blocked.response {
                self.discard_handler(blocked.call.served.method, handler_key);
            }
        }
    }

    /// Drops all parked handlers and responds with `UNAVAILABLE`, because the time limit of the
    /// shutdown has passed. From now on, requests are rejected with the same code, without
    /// decoding.
    pub(crate) fn reject_calls(&self) {
        self.tasks.borrow_mut().stop_starting();
        let tasks = self.tasks.borrow_mut().remove_where(|_| true);
        if !tasks.is_empty() {
            tracing::warn!(
                handlers = tasks.len(),
                "shutting down: dropping handlers that did not finish in time"
            );
        }
        for task in tasks {
            if let Some(timer) = task.timer {
                self.state.borrow_mut().timers.cancel(timer);
            }
            self.discard(&task);
            match task.call.stream {
                None => self.respond_status(&task.call, too_late()),
                Some(stream) => self.fail_stream(stream, too_late(), Started::Maybe),
            }
        }
        // Streams whose handlers have completed, but whose clients do not read.
        let streams = self.state.borrow().streams.served_keys();
        for stream in streams {
            self.fail_stream(stream, too_late(), Started::Maybe);
        }
    }

    /// Drops all parked handlers, and the methods, when a poller stops.
    pub(crate) fn discard_all_tasks(&self) {
        let tasks = self.tasks.borrow_mut().remove_where(|_| true);
        for task in tasks {
            self.counters.dropped(task.call.served.method);
            self.discard(&task);
        }
        let methods = self.methods.take();
        drop(methods);
    }

    pub(super) fn discard(&self, task: &Task) {
        self.discard_handler(task.call.served.method, task.handler_key);
    }

    pub(super) fn discard_handler(&self, method: u16, handler_key: HandlerKey) {
        let handler = self.methods.borrow().handler(method).cloned();
        if let Some(handler) = handler {
            handler.discard(handler_key);
        }
    }
}

/// The status of a call that did not end within the time of a shutdown.
#[cold]
fn too_late() -> Status {
    Status::unavailable("the server is shutting down; the call may have run")
}
