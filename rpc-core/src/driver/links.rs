//! Connections of the driver: adds, ends and removes them.

use std::mem;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::TimerTarget;
use super::age::{ConnectionAge, Lifetime};
use super::handle::SendLimits;
use super::held_permit::HeldPermit;
use super::link::{Link, LinkKey};
use super::link_streams::{LinkStreams, StreamKey};
use super::outbox::{Class, Controlled, Missing, Outbox, Permit};
use super::table::Table;
use super::timers::{TimerKey, Timers};
use crate::call_error::{CallError, Cause, Execution};
use crate::clock::Clock;
use crate::limits::MessageLimit;
use crate::peer::{Host, LendablePeer, Peer};
use crate::peer_memory::PeerMemory;
use crate::protocol::connection::{Connection, ProtocolError};
use crate::protocol::credit::{ReceiveBudget, UNCREDITED_RECEIVES};
use crate::protocol::frame::CallId;
use crate::protocol::inline_frame::INLINE_FRAME_LEN;
use crate::protocol::session::{ClientSession, ServerSession, longest_message};
use crate::protocol::shares::Shares;
use crate::stats::PollerCounters;
use crate::transport::{Admitted, CloseReason, ConnectionId, ConnectionQuota, Transport};

/// The connections of one poller, over its transport.
pub(crate) struct Links<T: Transport> {
    pub(crate) transport: T,
    /// What this poller's connections use, with those of other pollers.
    memory: PeerMemory,
    pub(super) outbox: Outbox,
    /// Shared with the driver.
    pub(crate) counters: Arc<PollerCounters>,
    pub(super) clock: Clock,
    pub(crate) timers: Timers<TimerTarget>,
    pub(crate) table: Table<LinkKey, Link<T::RecvBuf>>,
    /// Maps the transport's connection index to the link.
    routes: Vec<Option<(ConnectionId, LinkKey)>>,
    /// Length of the longest frame that is sent inline.
    pub(super) longest_inline: usize,
    pub(crate) budget: ReceiveBudget,
    /// Receives promised for requests that are being encoded, and those of responses that are being
    /// read: code of the application does both, and may take turns meanwhile.
    #[cfg(debug_assertions)]
    pub(super) receives_of_code: u32,
    /// Receives that the transport keeps posted, for promises and for those that are set aside.
    pub(super) posted_for: u32,
    /// The number of promises up to which those receives suffice.
    pub(super) promisable: u32,
    /// The last receives, which are kept for links with fewer unary calls than `link_share`: so that a
    /// server that does not answer leaves some to the others. 0 unless links are shared out.
    pub(super) kept_receives: u32,
    pub(super) link_share: u32,
    /// Links of which this side is the client.
    pub(super) client_links: u32,
    /// Connections that the admission may still accept, and the initial window of each. Growing
    /// windows leave this part of the budget free.
    pub(super) expected_connections: u32,
    pub(super) initial_window: u32,
    /// Time of the latest check by [`DriverState::on_idle`](super::DriverState::on_idle).
    pub(super) idle_checked_at: Option<Instant>,
    /// True once the server has begun to shut down.
    pub(super) going_away: bool,
    /// How old the connections of clients may be.
    pub(super) connection_age: Option<ConnectionAge>,
    /// Wakers to call as soon as the state is no longer borrowed.
    pub(super) wakers: Vec<Waker>,
    /// Permits of shared channels whose calls have to be polled.
    pub(crate) settled: Vec<HeldPermit>,
    /// True if the server of a link has begun to shut down, or if a link has ended, since a poller
    /// of shared channels last looked.
    pub(crate) links_changed: bool,
}

impl<T: Transport> Links<T> {
    pub(super) fn new(
        transport: T,
        counters: Arc<PollerCounters>,
        clock: Clock,
        expected_connections: u32,
    ) -> Self {
        let limits = transport.limits();
        let memory = transport.peer_memory();
        memory.share_heap(limits.waiting_memory());
        Self {
            memory,
            budget: ReceiveBudget::new(limits.promisable_receives()),
            longest_inline: limits.max_inline_len.min(INLINE_FRAME_LEN),
            initial_window: Shares::from_limits(limits).initial_window,
            #[cfg(debug_assertions)]
            receives_of_code: 0,
            transport,
            outbox: Outbox::default(),
            counters,
            clock,
            timers: Timers::default(),
            table: Table::default(),
            routes: Vec::new(),
            posted_for: 0,
            promisable: 0,
            kept_receives: 0,
            link_share: 0,
            client_links: 0,
            expected_connections,
            idle_checked_at: None,
            going_away: false,
            connection_age: None,
            wakers: Vec::new(),
            settled: Vec::new(),
            links_changed: false,
        }
    }
}

impl<T: Transport> Index<LinkKey> for Links<T> {
    type Output = Link<T::RecvBuf>;

    #[inline]
    fn index(&self, key: LinkKey) -> &Self::Output {
        &self.table[key]
    }
}

impl<T: Transport> IndexMut<LinkKey> for Links<T> {
    #[inline]
    fn index_mut(&mut self, key: LinkKey) -> &mut Self::Output {
        &mut self.table[key]
    }
}

impl<T: Transport> Links<T> {
    #[inline]
    pub(super) fn route(&self, id: ConnectionId) -> Option<LinkKey> {
        let (known, key) = (*self.routes.get(id.index as usize)?)?;
        (known == id).then_some(key)
    }

    fn add(
        &mut self,
        id: ConnectionId,
        connection: Connection,
        streams: LinkStreams,
        longest_message: MessageLimit,
        (quota, peer): (Option<ConnectionQuota>, Option<Arc<Peer>>),
    ) -> LinkKey {
        let host = peer.as_ref().map(|peer| Host::from(peer.address()));
        let memory = self.memory.of(host);
        let mut link = Link::new(id, connection, streams, longest_message, memory);
        link.accepted_at = quota.as_ref().map(|_| self.clock.now());
        link.quota = quota;
        link.peer = peer.map(LendablePeer::new);
        let key = self.table.insert(link);
        let index = id.index as usize;
        if self.routes.len() <= index {
            self.routes.resize(index + 1, None);
        }
        self.routes[index] = Some((id, key));
        key
    }

    /// Adds the client's side of a connection that the transport has established.
    pub(crate) fn add_client(
        &mut self,
        id: ConnectionId,
        connection: Connection,
        session: &ServerSession,
    ) -> LinkKey {
        self.counters.connections.connected.add(1);
        let limits = self.transport.limits();
        let inbound_window = limits.stream_window();
        let longest_message = longest_message(limits, session.max_message_len);
        let streams = LinkStreams::new(inbound_window, session.stream_window);
        self.client_links += 1;
        self.add(id, connection, streams, longest_message, (None, None))
    }

    /// Returns what may be sent on a link.
    pub(super) fn send_limits(&self, key: LinkKey) -> SendLimits {
        // Without a link, the call fails for another reason.
        let Some(link) = self.table.get(key) else {
            return SendLimits {
                frame: usize::MAX,
                message: MessageLimit::NONE,
            };
        };
        let frame = match self.transport.longest_frame(link.id) {
            // The connection has ended. This says nothing of the next one, which may send the call.
            0 => usize::MAX,
            longest => longest,
        };
        SendLimits {
            frame,
            message: link.longest_message,
        }
    }

    pub(super) fn accept(&mut self, id: ConnectionId, admitted: Admitted) {
        // This side's admission has accepted the client's parameters and written the others.
        let client = ClientSession::accept(&admitted.client_session);
        let session = ServerSession::accept(&admitted.server_session);
        let (Ok((client, _)), Ok(session)) = (client, session) else {
            return self.transport.close(id);
        };
        let connection = Connection::server(&session.agreed());
        // The window, and the receives for the client's frames that need no credit.
        if !self.promise(connection.window_len() + UNCREDITED_RECEIVES) {
            tracing::error!(
                connection = %id,
                "closing an admitted connection: no receives are left for it. This is a bug in Verbline"
            );
            return self.transport.close(id);
        }
        let longest_message = longest_message(self.transport.limits(), client.max_message_len);
        let streams = LinkStreams::new(session.stream_window, client.stream_window);
        let key = self.add(
            id,
            connection,
            streams,
            longest_message,
            (Some(admitted.quota), admitted.peer),
        );
        self.counters.connections.accepted.add(1);
        if let Some(age) = self.connection_age {
            let lifetime = Lifetime::begin(age, self.clock.now());
            self.table[key].lifetime = Some(lifetime);
        }
        if self.going_away {
            // The client was admitted just before the listener was closed.
            self.table[key].connection.go_away();
            self.owe(key);
        }
        self.expected_connections = self.expected_connections.saturating_sub(1);
        tracing::debug!(connection = %id, window = session.initial_credits, "accepted a connection");
    }

    /// Releases the receives that the peer's latest control frame has freed.
    #[cold]
    pub(super) fn release_freed(&mut self, key: LinkKey) {
        let freed = self.table[key].connection.take_freed();
        self.budget.release(freed);
    }

    /// Closes the connection of a peer that violated the protocol. Other connections are
    /// unaffected.
    #[cold]
    pub(super) fn close_for_violation(
        &mut self,
        key: LinkKey,
        buf: T::RecvBuf,
        error: ProtocolError,
    ) {
        self.release_slot(buf);
        let what = "closing a connection: the peer violated the protocol";
        self.close_failed(key, error, what);
    }

    /// Closes a connection because of its peer, unless it has ended. Other connections are unaffected.
    #[cold]
    pub(super) fn close_failed(
        &mut self,
        key: LinkKey,
        error: impl std::error::Error + Send + Sync + 'static,
        what: &str,
    ) {
        let link = &mut self.table[key];
        if link.ended.is_none() {
            log_limited!(warn, for what, connection = %link.id, %error, "{what}");
            link.ended = Some(CloseReason::Failed(Arc::new(error)));
            self.links_changed = true;
            self.transport.close(link.id);
        }
    }

    /// Ends all calls of a connection that the transport has closed. Collects the wakers to call.
    pub(super) fn close(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        block_on_waker: &Waker,
    ) -> Option<LinkKey> {
        let key = self.route(id)?;
        self.routes[id.index as usize] = None;
        self.links_changed = true;
        let link = &mut self.table[key];
        link.closed = true;
        let reason = match (reason, link.announced_end()) {
            (CloseReason::PeerGone, Some(reason)) => reason,
            (reason, _) => reason,
        };
        link.has_served = link.calls.has_completed();
        let reason = link.ended.get_or_insert(reason).clone();
        tracing::debug!(connection = %id, %reason, "connection closed");
        self.counters.closed(&reason);
        let error = CallError::new(Cause::Disconnected(reason), Execution::MayHaveRun);
        let (timers, wakers, settled) = (&mut self.timers, &mut self.wakers, &mut self.settled);
        let unanswered = link.calls.fail_all(&error, |waiting, timer| {
            waiting.collect(block_on_waker, wakers, settled);
            if let Some(timer) = timer {
                timers.cancel(timer);
            }
        });
        // Receives that a control frame has just freed, if the same frame violated a rule.
        let freed = link.connection.take_freed();
        let promised = link.connection.window_len() + UNCREDITED_RECEIVES;
        self.budget.release(unanswered + promised + freed);
        Some(key)
    }

    /// Removes a link that has ended in the transport and that no channel uses. The caller must
    /// drop the returned link while nothing is borrowed, because it contains wakers.
    #[must_use]
    pub(super) fn reap(&mut self, key: LinkKey) -> Option<Link<T::RecvBuf>> {
        let link = self.table.get(key)?;
        // Its streams may still end, some in each turn.
        if !link.closed || link.handles != 0 || link.streams.open != 0 || link.is_ending {
            return None;
        }
        let mut link = self.table.remove(key);
        self.outbox.control.remove(key);
        self.outbox.calls.remove(key);
        self.outbox.windows.remove(key);
        // The remaining entries belong to leaked futures: a call's future holds its channel, so no
        // future can poll them any more.
        for timer in link.waiters.timers() {
            self.timers.cancel(timer);
        }
        link.calls.copy_responses_out(|buf| {
            self.release_slot(buf);
            self.budget.release(1);
        });
        if link.is_server() {
            self.expected_connections += 1;
            // More receives are set aside now.
            self.post_more();
        } else {
            self.client_links -= 1;
        }
        Some(link)
    }

    /// Tells the server of a call that its client does not want any more.
    pub(super) fn cancel_call(&mut self, link: LinkKey, call: CallId) {
        let entry = &mut self.table[link];
        if entry.ended.is_none() {
            self.counters.cancels.in_flight.add(1);
            let calls = &entry.calls;
            entry
                .entries
                .cancel(call, calls.len(), |call| calls.contains(call));
            self.owe(link);
        }
    }

    /// Returns true if something is to be done at some time, whatever arrives.
    pub(super) fn awaits_time(&self) -> bool {
        !self.timers.is_empty() || self.connection_age.is_some()
    }

    /// Returns the link of a connection that this side has not closed.
    #[inline]
    pub(super) fn open_link(
        &mut self,
        id: ConnectionId,
    ) -> Option<(LinkKey, &mut Link<T::RecvBuf>)> {
        let key = self.route(id)?;
        let link = self.table.get_mut(key)?;
        link.ended.is_none().then_some((key, link))
    }

    /// As [`Outbox::flush`].
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        self.outbox.flush(&mut self.transport);
    }

    /// Notes that the server has announced the end of a connection. Returns false if it had done so
    /// before.
    #[cold]
    pub(super) fn end_is_announced(&mut self, key: LinkKey, is_evicted: bool) -> bool {
        let link = &mut self.table[key];
        if mem::replace(&mut link.going_away, true) {
            return false;
        }
        link.is_evicted = is_evicted;
        tracing::debug!(
            connection = %link.id,
            reason = link.announced_end().as_ref().map(tracing::field::display),
            "the server ends the connection"
        );
        // Waiting calls are woken so that they fail, and the credits are returned.
        self.links_changed = true;
        true
    }

    /// Handles a control frame whose entries have been handled.
    #[cold]
    pub(super) fn control_frame_received(&mut self, key: LinkKey) {
        let link = &mut self.table[key];
        // The server has returned its credits, and a stream has been opened meanwhile.
        let wants_window = link.connection.wants_window();
        // If no other frame of this turn and the next acknowledges the frame, one of its own does.
        if link.connection.wants_ack_frame() {
            link.ack_is_due = false;
            self.owe(key);
        }
        if wants_window {
            self.open_window(key);
        }
    }

    /// Sends a control frame, or an acknowledgement, if a connection needs one: see
    /// [`Outbox::send_control`].
    pub(super) fn send_control(&mut self, key: LinkKey) -> Result<Controlled, Missing> {
        let link = &mut self.table[key];
        self.outbox.send_control(link, &mut self.transport)
    }

    /// As [`Outbox::permit`].
    #[inline(always)]
    pub(super) fn permit(&mut self, class: Class, key: LinkKey) -> Result<Permit<'_, T>, Missing> {
        let link = &mut self.table[key];
        self.outbox.permit(class, link, &mut self.transport)
    }

    /// As [`Outbox::resume`].
    #[inline(always)]
    pub(super) fn resume(&mut self, class: Class, key: LinkKey) -> Permit<'_, T> {
        let link = &mut self.table[key];
        self.outbox.resume(class, link, &mut self.transport)
    }

    /// Starts the timer of a stream.
    pub(super) fn time_stream(&mut self, key: StreamKey, deadline: Instant) -> TimerKey {
        self.timers.insert(deadline, TimerTarget::Stream(key))
    }

    /// Closes a connection whose last stream has ended and that no channel uses any more.
    pub(super) fn close_if_orphaned(&mut self, key: LinkKey) {
        let link = &mut self.table[key];
        let is_last = link.streams.is_orphaned && link.streams.open == 0;
        if is_last && link.ended.is_none() {
            link.streams.is_orphaned = false;
            link.ended = Some(CloseReason::Local);
            self.transport.close(link.id);
        }
    }

    /// Notes that code of the application begins to use a promised receive.
    #[inline]
    pub(super) fn lend_receive(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.receives_of_code += 1;
        }
    }

    /// Notes that code of the application has ended with a receive that was
    /// [lent](Self::lend_receive).
    #[inline]
    pub(super) fn take_receive_back(&mut self) {
        #[cfg(debug_assertions)]
        {
            self.receives_of_code -= 1;
        }
    }
}
