//! Sends requests, or lets them wait.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::{Calls, Record};
use crate::call_error::Cause;
use crate::client::encode::EncodedRequest;
use crate::driver::call_origin::NoCapacity;
use crate::driver::handle::{BeginOutcome, Poller, RequestHead, StreamRequest};
use crate::driver::held_permit::HeldPermit;
use crate::driver::streams::StreamCapacity;
use crate::protocol::frame::HEADER_LEN;
use crate::shared::reconnect::Reconnect;
use crate::shared::unsent::{Lane, UnaryRequest, Unsent};
use crate::stream::core::StreamCore;
use crate::transport::Transport;

/// Maximum number of streams that are opened in one turn.
const STREAMS: usize = 64;

/// Turns for which the oldest stream waits here for a credit. If the connection ends meanwhile, the
/// next one opens the stream.
const TURNS_WITHOUT_CREDIT: u32 = 16;

impl<T: Transport> Calls<T> {
    /// Takes up to `most` of the requests that callers have submitted, and sends those that can be
    /// sent. Returns their number.
    pub(in super::super) fn take_submissions(
        &mut self,
        connection: &mut Reconnect<T>,
        most: usize,
    ) -> usize {
        for taken in 0..most {
            let Ok(request) = self.inbox.submissions.try_recv() else {
                return taken;
            };
            let number = request.permit.number;
            self.counters.begin(number, request.method, request.began);
            if let Record::Dropped = self.records[number as usize] {
                self.give_up(Unsent::Unary(request));
                continue;
            }
            let unsent = if self.pushback.is_holding() {
                self.begin_held_back(request, connection)
            } else if self.backlog.is_empty(Lane::Unary) {
                self.begin(request, connection)
            } else {
                // First come, first served.
                Some(request)
            };
            if let Some(request) = unsent {
                self.next += 1;
                self.enqueue(self.next, Unsent::Unary(request), connection);
            }
        }
        most
    }

    /// Sends a request of a channel whose server wants no calls, as a probe, or fails it if its
    /// deadline comes too early. Returns it if it has to wait.
    #[cold]
    fn begin_held_back(
        &mut self,
        request: UnaryRequest,
        connection: &mut Reconnect<T>,
    ) -> Option<UnaryRequest> {
        let now = self.driver.connections.clock.now();
        if self.pushback.has_ended(now) {
            // The backlog comes first: this turn sends it.
            return Some(request);
        }
        // The oldest call that waits is the probe.
        if self.pushback.wants_probe() && self.backlog.is_empty(Lane::Unary) {
            return self.begin(request, connection);
        }
        if self.pushback.outlasts(request.deadline) {
            self.fail_too_late(Unsent::Unary(request));
            return None;
        }
        Some(request)
    }

    /// Adds streams that callers have submitted to the backlog, unless their deadlines come before the
    /// server wants calls again.
    pub(in super::super) fn submit_streams(
        &mut self,
        streams: BTreeMap<u64, Unsent>,
        connection: &Reconnect<T>,
    ) {
        if self.pushback.is_holding() {
            self.pushback.has_ended(self.driver.connections.clock.now());
        }
        for (number, request) in streams {
            if self.pushback.outlasts(request.deadline()) {
                self.fail_too_late(request);
            } else {
                self.enqueue(number, request, connection);
            }
        }
    }

    /// Adds a request to the backlog, or fails it if the latest attempt to connect failed and it does not
    /// wait for ready.
    fn enqueue(&mut self, number: u64, request: Unsent, connection: &Reconnect<T>) {
        if !request.waits_for_ready() && connection.has_failed() {
            return self.fail(request, connection.not_connected());
        }
        if let Unsent::Unary(unary) = &request {
            self.driver.connections.counters.stalls.backlogged.add(1);
            self.records[unary.permit.number as usize] = Record::Backlogged(number);
        }
        self.backlog.push(number, request);
    }

    /// Sends the requests that waited, as far as they can be sent, and ends those whose time has
    /// passed. Opens only one stream if calls wait too, because both need credits.
    pub(in super::super) fn send_waiting(&mut self, connection: &mut Reconnect<T>) {
        self.expire(connection);
        if self.pushback.is_holding() {
            self.pushback.has_ended(self.driver.connections.clock.now());
        }
        let streams = match self.backlog.is_empty(Lane::Unary) {
            true => STREAMS,
            false => 1,
        };
        self.send_lane(Lane::Streams, streams, connection);
        self.send_lane(Lane::Unary, usize::MAX, connection);
    }

    /// Sends up to `most` requests of a lane.
    fn send_lane(&mut self, lane: Lane, most: usize, connection: &mut Reconnect<T>) {
        for _ in 0..most {
            if self.held_until(lane).is_some() {
                return;
            }
            let Some((place, request)) = self.backlog.take_front(lane) else {
                return;
            };
            match self.begin_waiting(request, connection) {
                Some(request) => return self.backlog.keep(place, request),
                None => self.backlog.leave(place),
            }
        }
    }

    /// Sends a request that has waited. Returns it if it has to wait on.
    fn begin_waiting(&mut self, request: Unsent, connection: &mut Reconnect<T>) -> Option<Unsent> {
        let is_given_up = match &request {
            Unsent::Unary(request) => self.inbox.permits.is_abandoned(request.permit.number),
            Unsent::Stream(core, _) => core.lock().is_cancelled(),
        };
        if is_given_up {
            self.give_up(request);
            return None;
        }
        match request {
            Unsent::Unary(request) => self.begin(request, connection).map(Unsent::Unary),
            Unsent::Stream(core, request) => self.open_stream(core, request, connection),
        }
    }

    /// Sends the request of a unary call. Returns it if it has to wait.
    fn begin(
        &mut self,
        mut unary: UnaryRequest,
        connection: &mut Reconnect<T>,
    ) -> Option<UnaryRequest> {
        let Some((link, methods)) = connection.connected() else {
            return Some(unary);
        };
        let Some(method) = methods.number_of(unary.method) else {
            let path = unary.method.path;
            self.fail(Unsent::Unary(unary), Cause::Unimplemented { path });
            return None;
        };
        let request = RequestHead {
            method,
            deadline: unary.deadline,
            metadata_len: unary.lengths.metadata,
            message_len: unary.lengths.message,
        };
        let limits = self.driver.connections.send_limits(link);
        let longest = limits.message_of(unary.method);
        if request.message_len > longest.bytes() {
            let cause = Cause::request_too_long(request.message_len, longest);
            self.fail(Unsent::Unary(unary), cause);
            return None;
        }
        if request.frame_len() > limits.frame {
            unary.divide();
        }
        let number = unary.permit.number;
        let origin = self.origin(number);
        let frame = &mut *unary.permit.buf;
        let begun = if let Some(long) = &mut unary.long {
            let EncodedRequest { metadata, message } = &mut **long;
            self.driver
                .connections
                .begin_chunks_from(link, &request, metadata, message, origin)
        } else if frame.len() <= self.driver.longest_inline() {
            self.driver
                .connections
                .begin_inline_from(link, &request, frame, origin)
        } else {
            let write = &mut |out: &mut [u8]| out.copy_from_slice(&frame[HEADER_LEN..]);
            self.driver
                .connections
                .begin_long_from(link, &request, write, origin)
        };
        match begun {
            BeginOutcome::Sent(call) => {
                self.counters.sent(number);
                self.records[number as usize] = Record::InFlight {
                    link,
                    call,
                    deadline: unary.deadline,
                    buf: mem::take(&mut unary.permit.buf),
                };
                if self.pushback.is_holding() {
                    self.pushback.probe_sent(number);
                }
                None
            }
            BeginOutcome::Waiting(NoCapacity) => Some(unary),
            // The next connection will send it.
            BeginOutcome::Failed(error) if matches!(error.cause(), Cause::Disconnected(_)) => {
                Some(unary)
            }
            BeginOutcome::Failed(error) => {
                self.fail_with(Unsent::Unary(unary), error);
                None
            }
        }
    }

    /// Opens a stream. Returns its request if it has to wait.
    fn open_stream(
        &mut self,
        core: Arc<StreamCore>,
        mut request: StreamRequest,
        connection: &mut Reconnect<T>,
    ) -> Option<Unsent> {
        let Some((link, methods)) = connection.connected() else {
            return Some(Unsent::Stream(core, request));
        };
        let may_open = match self.driver.connections.stream_capacity(link) {
            StreamCapacity::Free => true,
            StreamCapacity::NoCredit => {
                // Streams that are open may use every credit as soon as it arrives. After a while, the
                // oldest one waits in the driver, where it gets one in its turn.
                self.turns_without_credit += 1;
                self.turns_without_credit > TURNS_WITHOUT_CREDIT
            }
            StreamCapacity::None => false,
        };
        if !may_open {
            return Some(Unsent::Stream(core, request));
        }
        self.turns_without_credit = 0;
        let Some(method) = methods.number_of(request.spec) else {
            let path = request.spec.path;
            self.fail(Unsent::Stream(core, request), Cause::Unimplemented { path });
            return None;
        };
        request.method = method;
        request.counters.count(self.counters.of(request.spec));
        self.driver.connections.open_stream(link, core, request);
        None
    }

    /// Names a permit of this channel to the driver.
    pub(super) fn origin(&self, number: u32) -> HeldPermit {
        let channel = self.channel;
        HeldPermit { channel, number }
    }
}
