//! [`Serving`]: the server's part of a turn, from a request to its handler's outcome.
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
//!
//! A handler that awaits is resumed when it is woken. One that is woken alone is polled at once, and one that
//! a lone message of its stream wakes needs neither its waker nor a queue for it. Handlers that are woken
//! together wait in their connections' queues, and the connections take turns, as for requests: so a
//! connection whose streams have many messages takes no more of the poller than one with a few calls.

use std::cell::Cell;
use std::task::Waker;
use std::time::Instant;

use super::TimerTarget;
use super::body::Body;
use super::connections::Connections;
use super::handlers::{Handlers, LentTask, RequestParts};
use super::link::LinkKey;
use super::request_queue::QueuedRequest;
use super::responses::Started;
use super::tasks::{IncomingCall, Task, TaskKey};
use crate::protocol::frame::{Flags, FrameHeader};
use crate::service::handler::{Handler, RawRequest, Served};
use crate::stats::ServedCall;
use crate::status::Status;
use crate::transport::Transport;

/// Serves the calls of clients.
pub(crate) struct Serving {
    pub(crate) handlers: Handlers,
    /// When the poller last took all events that there were: requests that it finds from now on have
    /// arrived since. `None` after a turn that found nothing, and while the clock is not read.
    pub(super) looked_at: Cell<Option<Instant>>,
}

impl Serving {
    pub(super) fn new(handlers: Handlers) -> Self {
        Self {
            handlers,
            looked_at: Cell::new(None),
        }
    }

    /// Serves the request in `buf`, which was the only one. Its header has been validated and
    /// accounted.
    #[inline(always)]
    pub(super) fn serve_received<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        buf: T::RecvBuf,
    ) {
        let served = connections
            .counters
            .received(header.selector, || connections.clock.now());
        self.serve(connections, link, header, served, Body::Slot(buf));
    }

    /// Serves the request in `body`, or rejects it.
    #[inline(always)]
    pub(super) fn serve<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        body: Body<T::RecvBuf>,
    ) {
        if header.flags.contains(Flags::STREAM) {
            return self.serve_stream(connections, link, header, served, body);
        }
        let RequestParts {
            deadline,
            is_expired,
            handler,
            may_start,
            peer,
        } = self.handlers.request_parts(connections, link, header);
        let (Some(handler), true) = (handler, may_start) else {
            return self.reject(connections, link, header, served, is_expired, body);
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
        let (key, waker) = self.handlers.lend_task();
        let mut frame = self.handlers.inline_frame.take();
        let outcome = self
            .handlers
            .poll_handler(header.selector, &waker, &mut frame, |cx, out| {
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
                self.handlers.lent_task.set(Some((key, waker)));
                let slot = body.into_slot();
                let state = &mut *connections.state.borrow_mut();
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
                connections.counters.started(header.selector);
            }
            Served::NotStarted(status) => {
                self.handlers.lent_task.set(Some((key, waker)));
                connections.release_request(link, body);
                self.handlers
                    .respond_failure(connections, &call, status, Started::NOT);
            }
            outcome => {
                connections.release_request(link, body);
                connections.counters.started(header.selector);
                self.after_first_poll(
                    connections,
                    &call,
                    &*handler,
                    outcome,
                    deadline,
                    (key, waker),
                );
            }
        }
        self.handlers.inline_frame.put_back(frame);
    }

    /// Ends the first poll of a handler that has not completed with a short response.
    #[inline(never)]
    pub(super) fn after_first_poll<T: Transport>(
        &self,
        connections: &Connections<T>,
        call: &IncomingCall,
        handler: &dyn Handler,
        outcome: Served,
        deadline: Option<Instant>,
        (key, waker): LentTask,
    ) {
        let (handler_key, deadline) = match outcome {
            Served::Pending(handler_key) => (handler_key, deadline),
            Served::PendingUntil(handler_key, limit) => (handler_key, Some(*limit)),
            outcome => {
                self.handlers.lent_task.set(Some((key, waker)));
                return self
                    .handlers
                    .respond(connections, call, handler, outcome, &mut []);
            }
        };
        let state = &mut *connections.state.borrow_mut();
        connections.counters.handlers.awaited.add(1);
        // The response comes later, so another frame has to carry the credit of this request.
        state.links.owe(call.link);
        let timer =
            deadline.map(|deadline| state.links.timers.insert(deadline, TimerTarget::Task(key)));
        let task = Task {
            call: *call,
            handler_key,
            timer,
        };
        self.handlers.tasks.borrow_mut().park_new(key, waker, task);
    }

    /// Answers a request whose handler is not started.
    #[cold]
    #[inline(never)]
    fn reject<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        is_expired: bool,
        body: Body<T::RecvBuf>,
    ) {
        connections.release_request(link, body);
        let status = self
            .handlers
            .rejection(header, is_expired, connections.is_going_away());
        self.refuse(connections, link, header, served, status, Started::NOT);
    }

    /// Answers a request whose handler is not started, and whose body was released.
    #[cold]
    pub(super) fn refuse<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
        status: Status,
        started: Started,
    ) {
        if header.flags.contains(Flags::STREAM) {
            return self.refuse_stream(connections, link, header, served, status, started);
        }
        let call = IncomingCall {
            link,
            call: header.call,
            served,
            stream: None,
        };
        self.handlers
            .respond_failure(connections, &call, status, started);
    }

    /// Drops a parked handler whose deadline has passed, and responds with `DEADLINE_EXCEEDED`.
    pub(crate) fn expire_task<T: Transport>(&self, connections: &Connections<T>, key: TaskKey) {
        let Some(task) = self.handlers.tasks.borrow_mut().expire(key) else {
            return;
        };
        self.handlers.discard(&task);
        let status = Status::deadline_exceeded("the deadline passed while the handler was running");
        self.handlers
            .respond_status(connections, &task.call, status);
    }

    /// Drops all parked handlers and responds with `UNAVAILABLE`, because the time limit of the
    /// shutdown has passed. From now on, requests are rejected with the same code, without
    /// decoding.
    pub(crate) fn reject_calls<T: Transport>(&self, connections: &Connections<T>) {
        self.handlers.tasks.borrow_mut().stop_starting();
        let tasks = self
            .handlers
            .tasks
            .borrow_mut()
            .remove_where(|_| true, usize::MAX);
        if !tasks.is_empty() {
            tracing::warn!(
                handlers = tasks.len(),
                "shutting down: dropping handlers that did not finish in time"
            );
        }
        for task in tasks {
            self.discard_task(connections, &task);
            match task.call.stream {
                None => self
                    .handlers
                    .respond_status(connections, &task.call, too_late()),
                Some(stream) => self.fail_stream(connections, stream, too_late(), Started::Maybe),
            }
        }
        // Streams whose handlers have completed, but whose clients do not read.
        let streams = connections.state.borrow().streams.served_keys();
        for stream in streams {
            self.fail_stream(connections, stream, too_late(), Started::Maybe);
        }
        // Requests of which the rest is still to come.
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let receiving = &mut state.bodies.receiving;
        let stopped = receiving.stop_requests(&mut state.links);
        drop(borrowed);
        for (link, header, served) in stopped {
            let status = Status::unavailable("the server is shutting down; the call did not run");
            self.refuse(connections, link, &header, served, status, Started::NOT);
        }
    }

    /// Drops a parked handler, and its deadline.
    pub(super) fn discard_task<T: Transport>(&self, connections: &Connections<T>, task: &Task) {
        if let Some(timer) = task.timer {
            connections.state.borrow_mut().links.timers.cancel(timer);
        }
        self.handlers.discard(task);
    }

    /// Drops all parked handlers, and the methods, when a poller stops.
    pub(crate) fn discard_all_tasks<T: Transport>(&self, connections: &Connections<T>) {
        let tasks = self
            .handlers
            .tasks
            .borrow_mut()
            .remove_where(|_| true, usize::MAX);
        for task in tasks {
            connections.counters.dropped(task.call.served.method);
            self.handlers.discard(&task);
        }
        let methods = self.handlers.methods.take();
        drop(methods);
    }

    /// Answers a request that its client has cancelled. It is not decoded, and its handler never begins.
    pub(super) fn refuse_cancelled<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: &FrameHeader,
        served: ServedCall,
    ) {
        let status = Status::cancelled("the client cancelled the call; it did not run");
        self.refuse(connections, link, header, served, status, Started::NOT);
    }

    /// Queues a request, all of which has arrived.
    #[inline(always)]
    pub(super) fn queue_request<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        header: FrameHeader,
        served: ServedCall,
        body: Body<T::RecvBuf>,
    ) {
        let since = self.looked_at.get();
        let state = &mut *connections.state.borrow_mut();
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
    pub(super) fn queue_woken<T: Transport>(
        &self,
        connections: &Connections<T>,
        link: LinkKey,
        task: u32,
    ) {
        let state = &mut *connections.state.borrow_mut();
        state.run_queue.queue_woken(&mut state.links, link, task);
    }

    /// Discards the requests that wait on a connection that has ended.
    pub(super) fn discard_queued<T: Transport>(&self, connections: &Connections<T>, link: LinkKey) {
        let mut borrowed = connections.state.borrow_mut();
        let state = &mut *borrowed;
        let (discarded, woken) = state.run_queue.take_requests_of(&mut state.links, link);
        drop(borrowed);
        for task in woken {
            // The task may have ended meanwhile, and its number may be another connection's.
            let other = self.handlers.tasks.borrow_mut().forget_wake(task, link);
            if let Some(other) = other {
                self.queue_woken(connections, other, task);
            }
        }
        for request in discarded {
            connections.counters.dropped(request.served.method);
            // Its connection has ended: the window has gone with it.
            if let Some(slot) = request.body.into_slot() {
                connections.state.borrow_mut().links.release_slot(slot);
            }
        }
    }

    /// Resumes the handler that was woken since the last turn, or queues them if there are several.
    pub(super) fn resume_woken<T: Transport>(&self, connections: &Connections<T>) {
        connections.ready.enter();
        let Some(woken) = self.handlers.tasks.borrow_mut().take_ready() else {
            return;
        };
        let is_alone = woken.len() == 1 && connections.state.borrow().run_queue.is_empty();
        for &task in &woken {
            if is_alone {
                self.resume(connections, task);
                continue;
            }
            let link = self.handlers.tasks.borrow_mut().link_of(task);
            if let Some(link) = link {
                self.queue_woken(connections, link, task);
            }
        }
        self.handlers.tasks.borrow_mut().put_back(woken);
    }

    /// Polls a handler that its waker has queued, unless its call has ended.
    pub(super) fn resume<T: Transport>(&self, connections: &Connections<T>, index: u32) {
        let unparked = self.handlers.tasks.borrow_mut().unpark_queued(index);
        if let Some((key, task, waker)) = unparked {
            self.poll_task(connections, key, task, waker);
        }
    }

    /// Polls the handler that reads the message which has just arrived.
    pub(super) fn resume_reader<T: Transport>(&self, connections: &Connections<T>, key: TaskKey) {
        connections.ready.enter();
        let unparked = self.handlers.tasks.borrow_mut().unpark(key);
        if let Some((key, task, waker)) = unparked {
            self.poll_task(connections, key, task, waker);
        }
    }

    fn poll_task<T: Transport>(
        &self,
        connections: &Connections<T>,
        key: TaskKey,
        mut task: Task,
        waker: Waker,
    ) {
        let method = task.call.served.method;
        let Some(handler) = self.handlers.methods.borrow().handler(method).cloned() else {
            return;
        };
        let mut frame = self.handlers.inline_frame.take();
        let outcome = self
            .handlers
            .poll_handler(method, &waker, &mut frame, |cx, out| {
                handler.resume(task.handler_key, cx, out)
            });
        if let Served::Pending(_) = outcome {
            self.handlers.tasks.borrow_mut().park(key, waker, task);
        } else if let Served::PendingUntil(_, limit) = outcome {
            limit_deadline(connections, key, &mut task, *limit);
            self.handlers.tasks.borrow_mut().park(key, waker, task);
        } else {
            self.handlers.tasks.borrow_mut().complete(key, waker, &task);
            if let Some(timer) = task.timer {
                connections.state.borrow_mut().links.timers.cancel(timer);
            }
            match task.call.stream {
                None => self.handlers.respond(
                    connections,
                    &task.call,
                    &*handler,
                    outcome,
                    frame.bytes_mut(),
                ),
                Some(stream) => {
                    self.answer_stream(connections, stream, outcome, frame.bytes_mut());
                }
            }
        }
        self.handlers.inline_frame.put_back(frame);
    }
}

/// Ends a call at `limit`, which is earlier than its deadline.
#[cold]
fn limit_deadline<T: Transport>(
    connections: &Connections<T>,
    key: TaskKey,
    task: &mut Task,
    limit: Instant,
) {
    let state = &mut *connections.state.borrow_mut();
    let links = &mut state.links;
    if let Some(stream) = task.call.stream {
        return state.streams.limit_deadline(stream, links, limit);
    }
    if let Some(timer) = task.timer.take() {
        links.timers.cancel(timer);
    }
    task.timer = Some(links.timers.insert(limit, TimerTarget::Task(key)));
}

/// The status of a call that did not end within the time of a shutdown.
#[cold]
fn too_late() -> Status {
    Status::unavailable("the server is shutting down; the call may have run")
}
