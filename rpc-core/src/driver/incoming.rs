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

use std::time::Instant;

use super::body::Body;
use super::handlers::{LentTask, RequestParts};
use super::link::LinkKey;
use super::request_queue::QueuedRequest;
use super::responses::Started;
use super::tasks::{IncomingCall, Task, TaskKey};
use super::{Driver, TimerTarget};
use crate::protocol::frame::{Flags, FrameHeader};
use crate::service::handler::{Handler, RawRequest, Served};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::transport::Transport;

impl<T: Transport> Driver<T> {
    /// Serves the request in `buf`, which was the only one. Its header has been validated and
    /// accounted.
    #[inline(always)]
    pub(super) fn serve_received(&self, link: LinkKey, header: &FrameHeader, buf: T::RecvBuf) {
        let served = self.counters.received(header.selector, || self.clock.now());
        self.serve(link, header, served, Body::Slot(buf));
    }

    /// Serves the request in `body`, or rejects it.
    #[inline(always)]
    pub(super) fn serve(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        body: Body<T::RecvBuf>,
    ) {
        if header.flags.contains(Flags::STREAM) {
            return self.serve_stream(link, header, served, body);
        }
        let RequestParts {
            deadline,
            is_expired,
            handler,
            may_start,
            peer,
        } = self.request_parts(link, header);
        let (Some(handler), true) = (handler, may_start) else {
            return self.reject(link, header, served, is_expired, body);
        };
        let (metadata, message) = body.split(header.metadata_len);
        let request = RawRequest {
            metadata,
            message,
            long: body.long(),
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
                let slot = body.into_slot();
                let state = &mut *self.state.borrow_mut();
                if slot.is_some() {
                    state.links.take_back(link);
                }
                state.responses.respond_inline(
                    &mut state.links,
                    &call,
                    len,
                    frame.frame_mut(len.total()),
                );
                if let Some(slot) = slot {
                    state.links.transport.release(slot);
                }
                self.counters.started(header.selector);
            }
            Served::Undecodable(status) => {
                self.lent_task.set(Some((key, waker)));
                self.release_request(link, body);
                self.respond_failure(&call, status, Started::NOT);
            }
            outcome => {
                self.release_request(link, body);
                self.counters.started(header.selector);
                self.after_first_poll(&call, &*handler, outcome, deadline, (key, waker));
            }
        }
        self.inline_frame.put_back(frame);
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
        state.links.owe(call.link);
        let timer =
            deadline.map(|deadline| state.links.timers.insert(deadline, TimerTarget::Task(key)));
        let task = Task {
            call: *call,
            handler_key,
            timer,
        };
        self.tasks.borrow_mut().park_new(key, waker, task);
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
        body: Body<T::RecvBuf>,
    ) {
        self.release_request(link, body);
        let status = self.rejection(header, is_expired);
        self.refuse(link, header, served, status, Started::NOT);
    }

    /// Answers a request whose handler is not started, and whose body was released.
    #[cold]
    pub(super) fn refuse(
        &self,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        status: Status,
        started: Started,
    ) {
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

    /// Drops a parked handler whose deadline has passed, and responds with `DEADLINE_EXCEEDED`.
    pub(crate) fn expire_task(&self, key: TaskKey) {
        let Some(task) = self.tasks.borrow_mut().expire(key) else {
            return;
        };
        self.discard(&task);
        let status = Status::deadline_exceeded("the deadline passed while the handler was running");
        self.respond_status(&task.call, status);
    }

    /// Drops all parked handlers and responds with `UNAVAILABLE`, because the time limit of the
    /// shutdown has passed. From now on, requests are rejected with the same code, without
    /// decoding.
    pub(crate) fn reject_calls(&self) {
        self.tasks.borrow_mut().stop_starting();
        let tasks = self.tasks.borrow_mut().remove_where(|_| true, usize::MAX);
        if !tasks.is_empty() {
            tracing::warn!(
                handlers = tasks.len(),
                "shutting down: dropping handlers that did not finish in time"
            );
        }
        for task in tasks {
            if let Some(timer) = task.timer {
                self.state.borrow_mut().links.timers.cancel(timer);
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
        // Requests of which the rest is still to come.
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let receiving = &mut state.bodies.receiving;
        let stopped = receiving.stop_requests(&mut state.links);
        drop(borrowed);
        for (link, header, served) in stopped {
            let status = Status::unavailable("the server is shutting down; the call did not run");
            self.refuse(link, &header, served, status, Started::NOT);
        }
    }

    /// Drops all parked handlers, and the methods, when a poller stops.
    pub(crate) fn discard_all_tasks(&self) {
        let tasks = self.tasks.borrow_mut().remove_where(|_| true, usize::MAX);
        for task in tasks {
            self.counters.dropped(task.call.served.method);
            self.discard(&task);
        }
        let methods = self.methods.take();
        drop(methods);
    }

    /// Answers a request that its client has cancelled. It is not decoded, and its handler never begins.
    pub(super) fn refuse_cancelled(&self, link: LinkKey, header: &FrameHeader, served: ServedCall) {
        let status = Status::cancelled("the client cancelled the call; it did not run");
        self.refuse(link, header, served, status, Started::NOT);
    }

    /// Queues a request, all of which has arrived.
    #[inline(always)]
    pub(super) fn queue_request(
        &self,
        link: LinkKey,
        header: FrameHeader,
        served: ServedCall,
        body: Body<T::RecvBuf>,
    ) {
        let since = self.looked_at.get();
        let state = &mut *self.state.borrow_mut();
        let request = QueuedRequest {
            header,
            served,
            body,
            since,
        };
        let links = &mut state.links;
        state.run_queue.queue_request(links, link, request);
    }

    /// Queues the task of a handler that has been woken.
    pub(super) fn queue_woken(&self, link: LinkKey, task: u32) {
        let state = &mut *self.state.borrow_mut();
        state.run_queue.queue_woken(&mut state.links, link, task);
    }

    /// Discards the requests that wait on a connection that has ended.
    pub(super) fn discard_queued(&self, link: LinkKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        let (discarded, woken) = state.run_queue.take_requests_of(&mut state.links, link);
        drop(borrowed);
        for task in woken {
            // The task may have ended meanwhile, and its number may be another connection's.
            let other = self.tasks.borrow_mut().forget_wake(task, link);
            if let Some(other) = other {
                self.queue_woken(other, task);
            }
        }
        for request in discarded {
            self.counters.dropped(request.served.method);
            // Its connection has ended: the window has gone with it.
            if let Some(slot) = request.body.into_slot() {
                self.state.borrow_mut().links.release_slot(slot);
            }
        }
    }
}

/// The status of a call that did not end within the time of a shutdown.
#[cold]
fn too_late() -> Status {
    Status::unavailable("the server is shutting down; the call may have run")
}
