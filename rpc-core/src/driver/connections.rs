//! [`Connections`]: the connections of a poller, with all that is on its way over them.

use std::cell::{RefCell, RefMut};
use std::mem;
use std::sync::Arc;

use prost::Message;

use super::DriverState;
use super::age::ConnectionAge;
use super::block_on_waker::BlockOnWaker;
use super::body::Body;
use super::call_table::WakeTarget;
use super::handle::{ConnectedLink, SendLimits};
use super::link::{Link, LinkKey, LinkState};
use super::ready::ReadyQueue;
use super::wakeup::Wakeup;
use crate::clock::Clock;
use crate::codec::MessageBuf;
use crate::protocol::connection::Connection;
use crate::protocol::credit::UNCREDITED_RECEIVES;
use crate::protocol::inline_frame::SpareFrame;
use crate::protocol::session::{ClientSession, ServerSession, clamp_in_flight, stated_message_len};
use crate::stats::{ConnectionMemory, PollerCounters};
use crate::stream::wakers::wake_all;
use crate::transport::{CloseReason, ConnectError, Connected, Transport};

/// The connections of a poller, with all that is on its way over them, for its calls and for its handlers.
pub(crate) struct Connections<T: Transport> {
    pub(crate) state: RefCell<DriverState<T>>,
    pub(crate) clock: Clock,
    /// The waker of `block_on`.
    pub(crate) block_on_waker: BlockOnWaker,
    /// Notified by other threads that have work for this poller.
    pub(crate) wakeup: Arc<Wakeup>,
    /// This poller's counters, readable from any thread.
    pub(crate) counters: Arc<PollerCounters>,
    /// The same queue as that of the tasks, because every turn checks it.
    pub(crate) ready: Arc<ReadyQueue>,
    /// A spare frame, for messages of streams: a handler that sends one has the other frame.
    pub(super) lone_frame: SpareFrame,
    /// Length of the longest frame that is sent inline.
    pub(super) longest_inline: usize,
}

impl<T: Transport> Connections<T> {
    /// Allocates memory for a message: registered, if there is some, or the heap's.
    pub(crate) fn allocate_message(&self, len: usize) -> MessageBuf {
        match self.state.borrow_mut().links.transport.allocate(len) {
            Ok(memory) => MessageBuf::registered(Box::new(memory), len),
            Err(_) => MessageBuf::heap(len),
        }
    }

    /// Closes a link, because its last channel was dropped. It is removed when its calls have
    /// ended.
    pub(crate) fn close_link(&self, key: LinkKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        if let Some(link) = state.links.table.get_mut(key)
            && link.ended.is_none()
        {
            link.ended = Some(CloseReason::Local);
            state.links.transport.close(link.id);
        }
        let reaped = state.links.reap(key);
        drop(borrowed);
        drop(reaped);
    }

    /// Closes a link whose last channel was dropped, as soon as it has no streams.
    pub(crate) fn close_unused_link(&self, key: LinkKey) {
        let mut state = self.state.borrow_mut();
        let link = state.links.table.get_mut(key);
        if let Some(link) = link.filter(|link| link.streams.open > 0) {
            link.streams.is_orphaned = true;
            return;
        }
        drop(state);
        self.close_link(key);
    }

    /// Returns the state of a link.
    pub(crate) fn link_state(&self, key: LinkKey) -> LinkState {
        match self.state.borrow().links.table.get(key) {
            Some(link) if link.ended.is_none() && link.going_away => LinkState::GoingAway,
            Some(link) if link.ended.is_none() => LinkState::Up,
            _ => LinkState::Ended,
        }
    }

    /// Returns what may be sent on a link.
    pub(crate) fn send_limits(&self, key: LinkKey) -> SendLimits {
        self.state.borrow().links.send_limits(key)
    }

    /// Returns the reason that a link has ended, or is about to.
    pub(crate) fn close_reason(&self, key: LinkKey) -> Option<CloseReason> {
        let state = self.state.borrow();
        state.links.table.get(key)?.end()
    }

    /// Returns true if a call of a link has got its response.
    pub(crate) fn has_served(&self, key: LinkKey) -> bool {
        let state = self.state.borrow();
        let link = state.links.table.get(key);
        link.is_some_and(|link| match link.closed {
            true => link.has_served,
            false => link.calls.has_completed(),
        })
    }

    /// Returns the number of a link's calls whose response has not arrived or has not been taken.
    pub(crate) fn calls_in_flight(&self, key: LinkKey) -> usize {
        let state = self.state.borrow();
        state
            .links
            .table
            .get(key)
            .map_or(0, |link| link.calls.len())
    }

    /// Returns the number of a link's streams that have not ended on both sides.
    pub(crate) fn streams_open(&self, key: LinkKey) -> u32 {
        let state = self.state.borrow();
        let link = state.links.table.get(key);
        link.map_or(0, |link| link.streams.open)
    }

    /// Ends the connections of clients that connect from now on at this age.
    pub(crate) fn limit_connection_age(&self, age: ConnectionAge) {
        self.state.borrow_mut().links.connection_age = Some(age);
    }

    /// Begins the server's shutdown: announces it to current clients and to any accepted later.
    pub(crate) fn go_away(&self) {
        let state = &mut *self.state.borrow_mut();
        state.links.going_away = true;
        let connections = state.links.table.len();
        tracing::info!(
            connections,
            "shutting down: notifying clients to start no more calls"
        );
        for (key, link) in state.links.table.iter_mut() {
            if link.is_server() {
                link.connection.go_away();
                state.links.outbox.control.insert(key);
                state.links.outbox.note_any();
            }
        }
        state.send_control_frames();
        state.links.flush();
    }

    /// Returns true if no client can send further requests or still expects a response.
    pub(crate) fn are_clients_finished(&self) -> bool {
        let state = self.state.borrow();
        let mut links = state.links.table.values();
        links.all(|link| !link.is_server() || link.ended.is_some() || link.is_finished())
    }

    /// Closes all connections, for a poller that stops.
    pub(crate) fn close_all(&self) {
        let state = &mut *self.state.borrow_mut();
        for link in state.links.table.values_mut() {
            if link.ended.is_none() {
                link.ended = Some(CloseReason::Local);
                state.links.transport.close(link.id);
            }
        }
    }

    /// Returns true if no connection is open, or still ends.
    pub(crate) fn is_closed(&self) -> bool {
        let state = self.state.borrow();
        state.endings.is_empty() && state.links.table.values().all(|link| link.closed)
    }

    /// Drops the parts of messages that have been sent, while nothing is borrowed.
    pub(super) fn drop_spent(&self) {
        let mut spent = mem::take(&mut self.state.borrow_mut().bodies.sending.spent);
        spent.clear();
        let mut state = self.state.borrow_mut();
        if state.bodies.sending.spent.is_empty() {
            state.bodies.sending.spent = spent;
        }
    }

    /// Wakes the caller of a call that has ended.
    #[inline(always)]
    pub(super) fn wake_caller(&self, mut state: RefMut<'_, DriverState<T>>, caller: WakeTarget) {
        match caller {
            WakeTarget::BlockOn => self.block_on_waker.wake(),
            WakeTarget::Permit(permit) => state.links.settled.push(permit),
            WakeTarget::None | WakeTarget::Stream(_) => {}
            WakeTarget::Task(waker) => {
                drop(state);
                waker.wake();
            }
        }
    }

    pub(crate) fn wake_collected(&self) {
        let mut wakers = mem::take(&mut self.state.borrow_mut().links.wakers);
        wake_all(wakers.drain(..));
        let mut state = self.state.borrow_mut();
        if state.links.wakers.is_empty() {
            state.links.wakers = wakers;
        }
    }

    /// Returns the memory of the long messages of each connection that has any.
    pub(crate) fn memory_by_connection(&self) -> Vec<ConnectionMemory> {
        let state = &*self.state.borrow();
        let of_link = |link: &Link<T::RecvBuf>| {
            let transfers = &link.bodies;
            let (in_flight, pinned) = state.bodies.sending.exposed_on(transfers);
            ConnectionMemory {
                connection: link.id,
                posted: transfers.receiving,
                in_flight,
                held: transfers
                    .account
                    .as_ref()
                    .map_or(0, |account| account.held()),
                pinned,
            }
        };
        let links = state.links.table.values().map(of_link);
        links.filter(ConnectionMemory::is_any).collect()
    }
    /// Releases the slot of a request, and records its credit as owed.
    pub(super) fn release_request(&self, link: LinkKey, body: Body<T::RecvBuf>) {
        // The receives of a long message were given back with its frames.
        if let Some(buf) = body.into_slot() {
            let state = &mut *self.state.borrow_mut();
            state.links.transport.release(buf);
            state.links.take_back(link);
        }
    }

    /// Encodes this side's session parameters for a handshake.
    pub(crate) fn client_session(&self) -> Vec<u8> {
        let state = self.state.borrow();
        let limits = state.links.transport.limits();
        let stream_window = limits.stream_window();
        let max_in_flight = clamp_in_flight(limits.max_in_flight);
        ClientSession::new(max_in_flight, stream_window, stated_message_len(limits)).encode_to_vec()
    }

    /// Adds a connection. `connect` performs its handshake, or has already performed it.
    pub(crate) fn establish(
        &self,
        address: &str,
        connect: impl FnOnce(&mut T) -> Result<Connected, ConnectError>,
    ) -> Result<ConnectedLink, ConnectError> {
        let state = &mut *self.state.borrow_mut();
        // The receives for the server's frames without a credit.
        if !state.links.promise_receives(UNCREDITED_RECEIVES) {
            return Err(no_receive_left(address));
        }
        let connected = match connect(&mut state.links.transport) {
            Ok(connected) => connected,
            Err(error) => {
                state.links.budget.release(UNCREDITED_RECEIVES);
                return Err(error);
            }
        };
        let session = match ServerSession::accept(&connected.session) {
            Ok(session) => session,
            Err(reason) => {
                // The close event will find no link for this connection, so the promise is released
                // here.
                state.links.budget.release(UNCREDITED_RECEIVES);
                state.links.transport.close(connected.connection);
                return Err(ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason,
                });
            }
        };
        let max_in_flight = clamp_in_flight(state.links.transport.limits().max_in_flight);
        let mut agreed = session.agreed();
        agreed.max_in_flight = agreed.max_in_flight.min(max_in_flight);
        let connection = Connection::client(&agreed);
        let link = state
            .links
            .add_client(connected.connection, connection, &session);
        let lengths = state.links.send_limits(link);
        Ok(ConnectedLink {
            link,
            session,
            lengths,
        })
    }

    /// Updates the gauges for other threads: the values that are not counted per call. So many
    /// handlers are parked.
    pub(super) fn update_gauges(&self, parked: u32) {
        let state = &*self.state.borrow();
        let (mut windows, mut available, mut waiting) = (0, 0, 0);
        for link in state.links.table.values() {
            waiting += link.waiters.len() as u64;
            if link.ended.is_none() {
                windows += u64::from(link.connection.window_len());
                available += u64::from(link.connection.requests_allowed());
            }
        }
        let open = state.streams.len() as u64;
        self.counters.streams.open.set(open);
        let (credits, stalls) = (&self.counters.credits, &self.counters.stalls);
        credits.windows.set(windows);
        credits.available.set(available);
        let promised = state.links.budget.promised();
        credits.promised.set(promised.into());
        credits
            .budget
            .set((promised + state.links.budget.left()).into());
        stalls.calls_waiting.set(waiting);
        stalls
            .responses_waiting
            .set(state.responses.blocked.len() as u64);
        self.counters.handlers.parked.set(parked.into());
        self.counters
            .handlers
            .queued
            .set(state.run_queue.len() as u64);
        let memory = &self.counters.memory;
        let (posted, held) = state.bodies.receiving.bytes();
        let (in_flight, pinned) = state.bodies.sending.exposed();
        memory
            .registered
            .set(state.links.transport.memory_by_owner().registered);
        memory.posted.set(posted);
        memory.held.set(held);
        memory.in_flight.set(in_flight);
        memory.pinned.set(pinned);
        let slots = state.links.transport.slots_by_state();
        self.counters.slots.set(&slots);
    }

    /// Returns true if the server is shutting down.
    pub(super) fn is_going_away(&self) -> bool {
        self.state.borrow().links.going_away
    }
}

fn no_receive_left(address: &str) -> ConnectError {
    ConnectError::Refused {
        address: address.to_owned(),
        reason: "no receive is left on this side, all are promised to other connections: raise `connections`"
            .to_owned(),
    }
}
