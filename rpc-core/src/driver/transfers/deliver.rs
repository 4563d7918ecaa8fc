//! Delivers complete messages to their handlers, calls and streams.

use std::sync::Arc;

use super::super::call_table::WakeTarget;
use super::super::incoming::RequestParts;
use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::super::response::{LongResponse, Response, ResponseFrame};
use super::super::responses::Started;
use super::super::tasks::IncomingCall;
use super::super::{Driver, State};
use super::arrival::{Completed, LongMessage, Purpose};
use super::incoming::Place;
use crate::call_error::{CallError, Cause, Execution};
use crate::protocol::frame::{CallId, ResponseHead};
use crate::service::handler::{RawRequest, Served};
use crate::stats::ServedCall;
use crate::stream::long::ReceivedLong;
use crate::transport::{MessageMemory, Transport};

/// The least length of a field that shares the memory of its message.
const LEAST_SHARED: usize = 4096;

/// A field shares the memory of its message only if the message is at most this many times as long.
const SHARED_PART: usize = 16;

impl<T: Transport> State<T> {
    /// Takes a message out of its memory if all of it has arrived.
    pub(in super::super) fn complete(&mut self, key: IncomingKey) -> Option<Completed> {
        let incoming = self.transfers.incoming.get_mut(key.index())?;
        let is_complete = incoming.received == incoming.len;
        if !is_complete || matches!(incoming.place, Place::Cancelling(_) | Place::Nowhere) {
            return None;
        }
        let (len, link) = (incoming.len as usize, incoming.link);
        // Before the message counts as kept itself.
        let share_from = self.share_from(link, len);
        let incoming = &mut self.transfers.incoming[key.index()];
        let message = match std::mem::replace(&mut incoming.place, Place::Nowhere) {
            Place::Memory(memory) => Box::new(memory).freeze(len),
            Place::Waiting(bytes) | Place::Heap(bytes) => bytes.into(),
            Place::Fetch(fetch) => {
                self.transfers.fetches.remove(&fetch);
                match self.transport.finish_fetch(fetch) {
                    Some(memory) => Box::new(memory).freeze(len),
                    // The connection has ended, and the next event reports it.
                    None => {
                        self.discharge(key);
                        return None;
                    }
                }
            }
            Place::Cancelling(_) | Place::Nowhere => return None,
        };
        self.discharge(key);
        self.cancel_incoming_timer(key);
        let message = self.account_of(link).hold(message);
        let purpose = self.take_purpose(key);
        let incoming = &mut self.transfers.incoming[key.index()];
        let completed = Completed::Message {
            link,
            key,
            purpose,
            message: LongMessage {
                header: incoming.header,
                metadata: std::mem::take(&mut incoming.metadata),
                message,
                share_from,
            },
        };
        self.forget_if_done(key);
        Some(completed)
    }

    /// Returns the length from which the fields of a message share its memory. Shorter fields are
    /// copied, so that none keeps a much longer message; and all of them while the application keeps
    /// much already, in this poller or in the process.
    fn share_from(&self, link: LinkKey, len: usize) -> usize {
        let limits = self.transport.limits();
        let account = self.links[link.index()].transfers.account.as_ref();
        let of_link = account.map_or(0, |account| account.held());
        let kept = self
            .transport
            .kept_memory()
            .max(self.transfers.memory.held());
        let is_short = kept > limits.message_memory / 2 || of_link > limits.connection_memory / 2;
        match is_short {
            true => usize::MAX,
            false => LEAST_SHARED.max(len / SHARED_PART),
        }
    }
}

impl<T: Transport> Driver<T> {
    /// Delivers an outcome. Runs the application's code, so nothing may be borrowed.
    pub(in super::super) fn conclude(&self, completed: Option<Completed>) {
        match completed {
            None => {}
            Some(Completed::Message {
                link,
                key,
                purpose,
                message,
            }) => match purpose {
                Purpose::Request(served) => self.serve_long(link, served, message),
                Purpose::Response(call) => self.end_long_call(link, call, Ok(message)),
                Purpose::Stream(stream) => {
                    self.deliver_long_of_stream(stream, key, link, message);
                }
                Purpose::Nobody => {}
            },
            Some(Completed::Abandoned { key, stream }) => {
                self.abandoned_long_of_stream(stream, key);
            }
            Some(Completed::Refused { link, call, status }) => {
                let error = CallError::new(Cause::NotReceived(status), Execution::Answered);
                self.end_long_call(link, call, Err(error));
            }
            Some(Completed::NotStarted { call, status }) => {
                self.respond_failure(&call, status, Started::NOT);
            }
        }
    }

    /// Ends a call of this side whose long response has arrived or failed, and wakes its waiter.
    fn end_long_call(&self, link: LinkKey, call: CallId, outcome: Result<LongMessage, CallError>) {
        let response = outcome.map(|long| Response {
            head: ResponseHead::of(&long.header),
            frame: ResponseFrame::Long(Box::new(LongResponse {
                metadata: long.metadata,
                message: long.message,
                share_from: long.share_from,
            })),
        });
        let mut state = self.state.borrow_mut();
        let Some(entry) = state.links.get_mut(link.index()) else {
            return;
        };
        let (waiting, timer) = entry.calls.end_long(call, response);
        if let Some(timer) = timer {
            state.timers.cancel(timer);
        }
        match waiting {
            WakeTarget::BlockOn => self.block_on_waker.wake(),
            WakeTarget::Permit(permit) => state.settled.push(permit),
            WakeTarget::None | WakeTarget::Stream(_) => {}
            WakeTarget::Task(waker) => {
                drop(state);
                waker.wake();
            }
        }
    }

    /// Serves a long request that has arrived in full, or rejects it.
    /// Returns a message for what decodes it.
    pub(in super::super) fn received_long(&self, long: &LongMessage) -> ReceivedLong {
        ReceivedLong {
            message: long.message.clone(),
            share_from: long.share_from,
            copied_in: Arc::clone(&self.counters.copied_in_anywhere),
        }
    }

    #[cold]
    fn serve_long(&self, link: LinkKey, served: ServedCall, message: LongMessage) {
        let header = &message.header;
        let RequestParts {
            deadline,
            is_expired,
            handler,
            may_start,
            peer,
        } = self.request_parts(link, header);
        let call = IncomingCall {
            link,
            call: header.call,
            served,
            stream: None,
        };
        let Some(handler) = handler.filter(|_| may_start) else {
            let status = self.rejection(header, is_expired);
            return self.respond_failure(&call, status, Started::NOT);
        };
        let long = self.received_long(&message);
        let request = RawRequest {
            metadata: &message.metadata,
            message: &long.message,
            long: Some(&long),
            deadline,
            stream: None,
            peer: &peer,
        };
        let (key, waker) = self.lend_task();
        let mut frame = self.inline_frame.take();
        let outcome = self.poll_handler(header.selector, &waker, &mut frame, |cx, out| {
            handler.serve(request, cx, out)
        });
        // The handler has its own slices of it.
        drop((long, message.message));
        match outcome {
            Served::Undecodable(status) => {
                self.lent_task.set(Some((key, waker)));
                self.respond_failure(&call, status, Started::NOT);
            }
            Served::Encoded(_) => {
                self.lent_task.set(Some((key, waker)));
                self.counters.started(served.method);
                self.respond(&call, &*handler, outcome, frame.bytes_mut());
            }
            outcome => {
                self.counters.started(served.method);
                self.after_first_poll(&call, &*handler, outcome, deadline, (key, waker));
            }
        }
        self.inline_frame.put_back(frame);
    }
}
