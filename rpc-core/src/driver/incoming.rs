//! The server's part of a turn: from a request to its response.
//!
//! The slot of a request is released and its credit recorded as owed as soon as the message is
//! decoded, before the handler runs. A handler thus holds no receive, however long it takes, so
//! that nested calls cannot starve each other of receives.
//!
//! While `max_concurrent_calls` handlers are pending, the next request is answered with an error
//! before its message is decoded. It is rejected rather than queued: queueing nested calls could
//! deadlock.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;

use super::link::LinkKey;
use super::tasks::{Task, TaskKey};
use super::{Driver, State, TimerTarget};
use crate::clock::deadline_after;
use crate::metadata::Metadata;
use crate::protocol::frame::{CallId, FrameHeader, FrameKind, HEADER_LEN, StatusBody};
use crate::service::dispatch::{Handler, HandlerKey, ResponseLengths};
use crate::stats::ServedCall;
use crate::status::{Code, Status};
use crate::transport::{ReserveError, Transport};

/// A response that found no free send slot.
#[derive(Debug)]
pub(crate) struct Blocked {
    link: LinkKey,
    call: CallId,
    served: ServedCall,
    response: BlockedResponse,
}

#[derive(Debug)]
enum BlockedResponse {
    Ready {
        handler_key: HandlerKey,
        len: ResponseLengths,
    },
    Failed(Status),
}

impl<T: Transport> Driver<T> {
    /// Serves the request in `buf`. Its header has been validated and accounted.
    pub(crate) fn serve(&self, link: LinkKey, header: &FrameHeader, buf: T::RecvBuf) {
        let deadline = self.deadline_of(header);
        let served = self.counters.received(header.selector, || self.arrival());
        let handler = self.methods.borrow().handler(header.selector).cloned();
        let started = match &handler {
            None => Err(Status::unimplemented(format!(
                "the server has no method number {}",
                header.selector
            ))),
            Some(_) if !self.tasks.borrow().has_capacity() => Err(self.shed()),
            Some(_) if deadline.is_some_and(|deadline| deadline <= self.clock.now()) => {
                Err(self.expired())
            }
            Some(handler) => {
                // The lengths were validated when the header was parsed.
                let (metadata, message) =
                    buf.as_ref()[HEADER_LEN..].split_at(header.metadata_len.into());
                handler.start(message, metadata, deadline)
            }
        };
        self.state.borrow_mut().release_request(link, buf);
        match (started, &handler) {
            (Ok(handler_key), Some(handler)) => {
                self.counters.started(header.selector);
                let (key, waker) = self.tasks.borrow_mut().borrow_cell();
                let polled = self.poll_handler(header.selector, &**handler, handler_key, &waker);
                let task = Task {
                    link,
                    call: header.call,
                    served,
                    handler_key,
                    timer: None,
                };
                match polled {
                    Poll::Ready(outcome) => {
                        self.tasks.borrow_mut().return_cell(key, waker);
                        self.respond(&task, &**handler, outcome);
                    }
                    Poll::Pending => {
                        let state = &mut *self.state.borrow_mut();
                        self.counters.handlers.awaited.add(1);
                        // The response comes later, so another frame has to carry the credit of
                        // this request.
                        state.owe(link);
                        let timer = deadline
                            .map(|deadline| state.timers.insert(deadline, TimerTarget::Task(key)));
                        self.tasks
                            .borrow_mut()
                            .park(key, waker, Task { timer, ..task });
                    }
                }
            }
            (Err(status), _) => self.respond_status(link, header.call, served, status),
            (Ok(_), None) => {}
        }
    }

    /// Polls a handler and marks it as running, for the watchdog.
    fn poll_handler(
        &self,
        method: u16,
        handler: &dyn Handler,
        handler_key: HandlerKey,
        waker: &Waker,
    ) -> Poll<Result<ResponseLengths, Status>> {
        let mark = self.running_handler.enter(method);
        let polled = handler.poll(handler_key, &mut Context::from_waker(waker));
        self.running_handler.leave(mark);
        polled
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

    fn deadline_of(&self, header: &FrameHeader) -> Option<Instant> {
        if header.timeout_us == 0 {
            return None;
        }
        deadline_after(
            self.arrival_for_deadline(),
            Duration::from_micros(header.timeout_us.into()),
        )
    }

    /// Polls the handlers that were woken since the last turn.
    pub(crate) fn run_ready_tasks(&self) {
        let Some(ready) = self.tasks.borrow_mut().take_ready() else {
            return;
        };
        for &index in &ready {
            let Some((key, task, waker)) = self.tasks.borrow_mut().unpark(index) else {
                continue;
            };
            let Some(handler) = self.methods.borrow().handler(task.served.method).cloned() else {
                continue;
            };
            match self.poll_handler(task.served.method, &*handler, task.handler_key, &waker) {
                Poll::Pending => self.tasks.borrow_mut().park(key, waker, task),
                Poll::Ready(outcome) => {
                    self.tasks.borrow_mut().return_cell(key, waker);
                    if let Some(timer) = task.timer {
                        self.state.borrow_mut().timers.cancel(timer);
                    }
                    self.respond(&task, &*handler, outcome);
                }
            }
        }
        self.tasks.borrow_mut().put_back(ready);
    }

    /// Drops a parked handler whose deadline has passed, and responds with `DEADLINE_EXCEEDED`.
    pub(crate) fn expire_task(&self, key: TaskKey) {
        let Some(task) = self.tasks.borrow_mut().expire(key) else {
            return;
        };
        self.discard(&task);
        let status = Status::deadline_exceeded("the deadline passed while the handler was running");
        self.respond_status(task.link, task.call, task.served, status);
    }

    /// Drops the handlers and the blocked responses of a connection that has ended.
    pub(crate) fn discard_tasks_of(&self, link: LinkKey) {
        let tasks = self
            .tasks
            .borrow_mut()
            .remove_where(|task| task.link == link);
        for task in tasks {
            if let Some(timer) = task.timer {
                self.state.borrow_mut().timers.cancel(timer);
            }
            self.counters.dropped(task.served.method);
            self.discard(&task);
        }
        let mut state = self.state.borrow_mut();
        let (gone, kept): (VecDeque<_>, _) = state
            .blocked
            .drain(..)
            .partition(|blocked| blocked.link == link);
        state.blocked = kept;
        drop(state);
        for blocked in gone {
            self.counters.dropped(blocked.served.method);
            if let BlockedResponse::Ready { handler_key, .. } = blocked.response {
                self.discard_handler(blocked.served.method, handler_key);
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
            let status = Status::unavailable("the server is shutting down; the call may have run");
            self.respond_status(task.link, task.call, task.served, status);
        }
    }

    /// Drops all parked handlers, and the methods, when a poller stops.
    pub(crate) fn discard_all_tasks(&self) {
        let tasks = self.tasks.borrow_mut().remove_where(|_| true);
        for task in tasks {
            self.counters.dropped(task.served.method);
            self.discard(&task);
        }
        let methods = self.methods.take();
        drop(methods);
    }

    fn discard(&self, task: &Task) {
        self.discard_handler(task.served.method, task.handler_key);
    }

    fn discard_handler(&self, method: u16, handler_key: HandlerKey) {
        let handler = self.methods.borrow().handler(method).cloned();
        if let Some(handler) = handler {
            handler.discard(handler_key);
        }
    }

    pub(crate) fn retry_blocked_responses(&self) {
        // Each is tried once: a response that finds no slot again is queued behind the others.
        let count = self.state.borrow().blocked.len();
        for _ in 0..count {
            let Some(Blocked {
                link,
                call,
                served,
                response,
            }) = self.state.borrow_mut().blocked.pop_front()
            else {
                break;
            };
            match response {
                BlockedResponse::Ready { handler_key, len } => {
                    let task = Task {
                        link,
                        call,
                        served,
                        handler_key,
                        timer: None,
                    };
                    let handler = self.methods.borrow().handler(served.method).cloned();
                    if let Some(handler) = handler {
                        self.respond(&task, &*handler, Ok(len));
                    }
                }
                BlockedResponse::Failed(status) => {
                    self.respond_status(link, call, served, status);
                }
            }
        }
    }

    fn respond(
        &self,
        task: &Task,
        handler: &dyn Handler,
        outcome: Result<ResponseLengths, Status>,
    ) {
        let len = match outcome {
            Ok(len) => len,
            Err(status) => return self.respond_status(task.link, task.call, task.served, status),
        };
        let reserved = self
            .state
            .borrow_mut()
            .reserve_response(task.link, HEADER_LEN + len.total());
        match reserved {
            Ok(mut buf) => match handler
                .encode_response(task.handler_key, &mut buf.as_mut()[HEADER_LEN..])
            {
                Ok(()) => {
                    let mut state = self.state.borrow_mut();
                    state.send_response(task.link, task.call, task.served, 0, len.metadata, buf);
                }
                Err(status) => {
                    self.state.borrow_mut().transport.cancel(buf);
                    self.respond_status(task.link, task.call, task.served, status);
                }
            },
            Err(ReserveError::NoSlot) => self.state.borrow_mut().block(Blocked {
                link: task.link,
                call: task.call,
                served: task.served,
                response: BlockedResponse::Ready {
                    handler_key: task.handler_key,
                    len,
                },
            }),
            Err(ReserveError::TooLong { limit, .. }) => {
                handler.discard(task.handler_key);
                let status = too_long(len, limit);
                self.respond_status(task.link, task.call, task.served, status);
            }
            Err(ReserveError::Closed) => {
                self.counters.dropped(task.served.method);
                handler.discard(task.handler_key);
            }
        }
    }

    fn respond_status(&self, link: LinkKey, call: CallId, served: ServedCall, status: Status) {
        let mut state = self.state.borrow_mut();
        match state.respond_status(link, call, served, &status) {
            Ok(()) => {}
            Err(ReserveError::Closed) => self.counters.dropped(served.method),
            Err(ReserveError::NoSlot) => {
                state.block(Blocked {
                    link,
                    call,
                    served,
                    response: BlockedResponse::Failed(status),
                });
            }
            Err(ReserveError::TooLong { limit, .. }) => {
                // The code always fits; the message is truncated to the remaining length.
                let cut = shorten(&status, limit.saturating_sub(HEADER_LEN));
                match state.respond_status(link, call, served, &cut) {
                    Ok(()) => {}
                    Err(ReserveError::NoSlot) => state.block(Blocked {
                        link,
                        call,
                        served,
                        response: BlockedResponse::Failed(cut),
                    }),
                    Err(_) => self.counters.dropped(served.method),
                }
            }
        }
    }
}

impl<T: Transport> State<T> {
    /// Releases the slot of a decoded request and records its credit as owed, before its handler
    /// runs.
    fn release_request(&mut self, link: LinkKey, buf: T::RecvBuf) {
        self.transport.release(buf);
        let free = self.free_for_growth();
        if let Some(link) = self.links.get_mut(link.index()) {
            link.connection.release_request();
            let growth = link.connection.wants_growth(free);
            if growth > 0 && self.budget.take(growth) {
                link.connection.grow(growth);
            }
        }
    }

    fn reserve_response(&mut self, link: LinkKey, len: usize) -> Result<T::SendBuf, ReserveError> {
        match self.links.get(link.index()) {
            Some(link) if link.ended.is_none() => self.transport.reserve(link.id, len),
            _ => Err(ReserveError::Closed),
        }
    }

    fn send_response(
        &mut self,
        link: LinkKey,
        call: CallId,
        served: ServedCall,
        code: u16,
        metadata_len: usize,
        mut buf: T::SendBuf,
    ) {
        // The handler may have run for long, but it took no turn of the driver, so the link still
        // exists.
        let Some(link) = self.links.get_mut(link.index()) else {
            self.counters.dropped(served.method);
            return self.transport.cancel(buf);
        };
        self.counters.responded(served, code);
        let mut header = link.connection.next_header(FrameKind::Response, call, code);
        // Longer metadata was rejected when its length was computed.
        header.metadata_len = metadata_len as u16;
        header.encode(buf.as_mut());
        // If the connection has ended, the next event reports it.
        let _ = self.transport.send(link.id, buf);
    }

    fn respond_status(
        &mut self,
        link: LinkKey,
        call: CallId,
        served: ServedCall,
        status: &Status,
    ) -> Result<(), ReserveError> {
        let body = StatusBody {
            message: status.message().to_owned(),
            details: Bytes::copy_from_slice(status.details()),
        };
        let metadata_len = status.metadata().encoded_len();
        let body_len = body.encoded_len();
        if metadata_len > usize::from(u16::MAX) {
            return Err(ReserveError::TooLong {
                len: metadata_len,
                limit: HEADER_LEN,
            });
        }
        let mut buf = self.reserve_response(link, HEADER_LEN + metadata_len + body_len)?;
        let (metadata, mut message) = buf.as_mut()[HEADER_LEN..].split_at_mut(metadata_len);
        status.metadata().encode(metadata);
        // The buffer was reserved to fit.
        let _ = body.encode(&mut message);
        // `OK` would tell the client that a response message follows. A handler that returns `OK`
        // as its error has not specified the error, so the code is `UNKNOWN`.
        let code = match status.code() {
            Code::Ok => Code::Unknown,
            code => code,
        };
        self.send_response(link, call, served, code.number(), metadata_len, buf);
        Ok(())
    }

    fn block(&mut self, mut blocked: Blocked) {
        if !std::mem::replace(&mut blocked.served.has_waited, true) {
            self.counters.stalls.responses.add(1);
        }
        // The response will carry the credit of its request. A credit frame is of no use here,
        // because it would find no slot either.
        self.blocked.push_back(blocked);
    }
}

fn too_long(len: ResponseLengths, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "the response's message of {} bytes exceeds the limit of {} bytes, the smaller of both \
         sides' limits: raise `max_message_len` on the server and on the client",
        len.message,
        limit.saturating_sub(HEADER_LEN + len.metadata)
    ))
}

/// Returns the status with as much of its message as fits in `len` bytes, without details and
/// metadata.
fn shorten(status: &Status, len: usize) -> Status {
    // Reserves space for the field's tag and length.
    let room = len.saturating_sub(8);
    let message = status.message();
    let mut end = room.min(message.len());
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    Status::new(status.code(), &message[..end]).with_metadata(Metadata::new())
}
