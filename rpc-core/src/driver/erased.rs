//! The driver as a [`Poller`]: each method of the erased interface, and the one that does its work.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Driver;
use super::block_on_waker::BlockOnWaker;
use super::body::BodyRef;
use super::call_origin::CallingFuture;
use super::handle::{BeginOutcome, ConnectedLink, PollOutcome, Poller, RequestHead, StreamRequest};
use super::link::LinkKey;
use super::waiters::WaiterKey;
use crate::codec::MessageBuf;
use crate::limits::Limits;
use crate::protocol::frame::{CallId, ResponseHead};
use crate::stats::{ConnectionMemory, PollerCounters};
use crate::stream::core::StreamCore;
use crate::stream::turns::{LocalTurns, LoneMessage};
use crate::transport::{Chunks, ConnectError, MessageMemory, Transport};

impl<T: Transport> Poller for Driver<T> {
    fn connect(&self, address: &str, timeout: Duration) -> Result<ConnectedLink, ConnectError> {
        let session = self.client_session();
        let connected = self.establish(address, |transport| {
            transport.connect(address, &session, timeout)
        });
        connected.inspect_err(|_| {
            self.counters.connections.not_connected.add(1);
        })
    }

    fn send_inline(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        waker: &Waker,
    ) -> Option<CallId> {
        self.send_inline_from(link, request, frame, CallingFuture::new(waker))
    }

    fn begin_inline(
        &self,
        link: LinkKey,
        request: &RequestHead,
        frame: &mut [u8],
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey> {
        self.begin_inline_from(link, request, frame, CallingFuture { waker, waiter })
    }

    fn begin_long(
        &self,
        link: LinkKey,
        request: &RequestHead,
        write: &mut dyn FnMut(&mut [u8]),
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey> {
        self.begin_long_from(link, request, write, CallingFuture { waker, waiter })
    }

    fn begin_chunks(
        &self,
        link: LinkKey,
        request: &RequestHead,
        metadata: &[u8],
        message: &mut Chunks,
        waker: &Waker,
        waiter: Option<WaiterKey>,
    ) -> BeginOutcome<WaiterKey> {
        let origin = CallingFuture { waker, waiter };
        self.begin_chunks_from(link, request, metadata, message, origin)
    }

    fn allocate_for(&self, link: LinkKey, len: usize) -> Option<Box<dyn MessageMemory>> {
        Self::allocate_for(self, link, len)
    }

    fn take_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        body: &mut [u8],
    ) -> PollOutcome {
        self.take_response_from(link, call, deadline, CallingFuture::new(waker), body)
    }

    fn read_response(
        &self,
        link: LinkKey,
        call: CallId,
        deadline: Option<Instant>,
        waker: &Waker,
        receive: &mut dyn FnMut(ResponseHead, BodyRef<'_>),
    ) -> PollOutcome {
        self.read_response_from(link, call, deadline, CallingFuture::new(waker), receive)
    }

    fn set_local_turns(&self, turns: LocalTurns) {
        self.state.borrow_mut().streams.poller = Some(turns);
    }

    fn new_stream(&self) -> Arc<StreamCore> {
        self.state.borrow_mut().streams.new_core()
    }

    fn open_stream(&self, link: LinkKey, core: Arc<StreamCore>, request: StreamRequest) {
        Self::open_stream(self, link, core, request);
    }

    fn send_alone(&self, message: &mut LoneMessage<'_>) -> bool {
        Self::send_alone(self, message)
    }

    fn abandon(&self, link: LinkKey, call: CallId) {
        self.abandon_call(link, call);
    }

    fn leave(&self, link: LinkKey, waiter: WaiterKey) {
        self.counters.cancels.never_sent.add(1);
        let left = self.state.borrow_mut().links.leave(link, Some(waiter));
        drop(left);
    }

    fn acquire_ref(&self, link: LinkKey) {
        self.state.borrow_mut().links[link].handles += 1;
    }

    fn release_ref(&self, link: LinkKey) {
        let mut state = self.state.borrow_mut();
        let entry = &mut state.links[link];
        entry.handles -= 1;
        let last = entry.handles == 0;
        drop(state);
        if last {
            self.close_unused_link(link);
        }
    }

    fn deadline_after(&self, timeout: Duration) -> Option<Instant> {
        crate::clock::deadline_after(self.clock.now(), timeout)
    }

    fn send_releases(&self) {
        Self::send_releases(self);
    }

    fn turn(&self) -> bool {
        Self::turn(self)
    }

    fn sleep(&self, how_long: &dyn Fn() -> Option<Duration>) {
        Self::sleep(self, how_long);
    }

    fn turning(&self) -> &Cell<bool> {
        &self.turning
    }

    fn block_on_waker(&self) -> &BlockOnWaker {
        &self.block_on_waker
    }

    fn longest_inline(&self) -> usize {
        self.longest_inline
    }

    fn allocate(&self, len: usize) -> MessageBuf {
        self.allocate_message(len)
    }

    fn limits(&self) -> Limits {
        self.state.borrow().links.transport.limits().clone()
    }

    fn poller_counters(&self) -> &Arc<PollerCounters> {
        &self.counters
    }

    fn update_gauges(&self) {
        Self::update_gauges(self);
    }

    fn memory_by_connection(&self) -> Vec<ConnectionMemory> {
        Self::memory_by_connection(self)
    }
}
