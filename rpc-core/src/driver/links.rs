//! Connections of the driver: adds, ends and removes them.

use std::sync::Arc;
use std::task::Waker;

use super::age::{ConnectionAge, Lifetime};
use super::call_table::CallTable;
use super::deferred::collect;
use super::handle::SendLimits;
use super::link::{Link, LinkKey, LinkState};
use super::link_streams::LinkStreams;
use super::link_transfers::LinkTransfers;
use super::request_queue::RequestQueue;
use super::waiters::Waiters;
use super::{Driver, State};
use crate::call_error::{CallError, Cause, Execution};
use crate::limits::MessageLimit;
use crate::peer::{LendablePeer, Peer};
use crate::protocol::connection::{Connection, ProtocolError};
use crate::protocol::credit::UNCREDITED_RECEIVES;
use crate::protocol::frame::{CallId, EVICTED, Flags, FrameHeader, FrameKind, HEADER_LEN};
use crate::protocol::session::{ClientSession, ServerSession, longest_message};
use crate::transport::{Admitted, CloseReason, ConnectionId, ConnectionQuota, Transport};

impl<T: Transport> Driver<T> {
    /// Closes a link, because its last channel was dropped. It is removed when its calls have
    /// ended.
    pub(crate) fn close_link(&self, key: LinkKey) {
        let mut borrowed = self.state.borrow_mut();
        let state = &mut *borrowed;
        if let Some(link) = state.links.get_mut(key)
            && link.ended.is_none()
        {
            link.ended = Some(CloseReason::Local);
            state.transport.close(link.id);
        }
        let reaped = state.reap(key);
        drop(borrowed);
        drop(reaped);
    }

    /// Closes a link whose last channel was dropped, as soon as it has no streams.
    pub(crate) fn close_unused_link(&self, key: LinkKey) {
        let mut state = self.state.borrow_mut();
        let link = state.links.get_mut(key);
        if let Some(link) = link.filter(|link| link.streams.open > 0) {
            link.streams.is_orphaned = true;
            return;
        }
        drop(state);
        self.close_link(key);
    }

    /// Returns the state of a link.
    pub(crate) fn link_state(&self, key: LinkKey) -> LinkState {
        match self.state.borrow().links.get(key) {
            Some(link) if link.ended.is_none() && link.going_away => LinkState::GoingAway,
            Some(link) if link.ended.is_none() => LinkState::Up,
            _ => LinkState::Ended,
        }
    }

    /// Returns what may be sent on a link.
    pub(crate) fn send_limits(&self, key: LinkKey) -> SendLimits {
        self.state.borrow().send_limits(key)
    }

    /// Returns the reason that a link has ended, or is about to.
    pub(crate) fn close_reason(&self, key: LinkKey) -> Option<CloseReason> {
        let state = self.state.borrow();
        state.links.get(key)?.end()
    }

    /// Returns true if a call of a link has got its response.
    pub(crate) fn has_served(&self, key: LinkKey) -> bool {
        let state = self.state.borrow();
        let link = state.links.get(key);
        link.is_some_and(|link| match link.closed {
            true => link.has_served,
            false => link.calls.has_completed(),
        })
    }

    /// Returns the number of a link's calls whose response has not arrived or has not been taken.
    pub(crate) fn calls_in_flight(&self, key: LinkKey) -> usize {
        let state = self.state.borrow();
        state.links.get(key).map_or(0, |link| link.calls.len())
    }

    /// Returns the number of a link's streams that have not ended on both sides.
    pub(crate) fn streams_open(&self, key: LinkKey) -> u32 {
        let state = self.state.borrow();
        let link = state.links.get(key);
        link.map_or(0, |link| link.streams.open)
    }

    /// Ends the connections of clients that connect from now on at this age.
    pub(crate) fn limit_connection_age(&self, age: ConnectionAge) {
        self.state.borrow_mut().connection_age = Some(age);
    }

    /// Begins the server's shutdown: announces it to current clients and to any accepted later.
    pub(crate) fn go_away(&self) {
        let state = &mut *self.state.borrow_mut();
        state.going_away = true;
        let connections = state.links.len();
        tracing::info!(
            connections,
            "shutting down: notifying clients to start no more calls"
        );
        for (key, link) in state.links.iter_mut() {
            if link.is_server() {
                link.connection.go_away();
                state.owing.insert(key);
            }
        }
        state.send_owed_credits();
        state.flush();
    }

    /// Returns true if no client can send further requests or still expects a response.
    pub(crate) fn are_clients_finished(&self) -> bool {
        let state = self.state.borrow();
        let mut links = state.links.values();
        links.all(|link| !link.is_server() || link.ended.is_some() || link.is_finished())
    }

    /// Closes all connections, for a poller that stops.
    pub(crate) fn close_all(&self) {
        let state = &mut *self.state.borrow_mut();
        for link in state.links.values_mut() {
            if link.ended.is_none() {
                link.ended = Some(CloseReason::Local);
                state.transport.close(link.id);
            }
        }
    }

    /// Returns true if no connection is open.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.borrow().links.values().all(|link| link.closed)
    }
}

impl<T: Transport> State<T> {
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
        let key = self.links.insert(Link {
            id,
            connection,
            calls: CallTable::default(),
            waiters: Waiters::default(),
            requests: RequestQueue::default(),
            streams,
            transfers: LinkTransfers::default(),
            longest_message,
            handles: 0,
            going_away: false,
            is_evicted: false,
            has_served: false,
            idle_since: None,
            unused_since: None,
            unused_looks: 0,
            ended: None,
            closed: false,
            ack_is_due: false,
            accepted_at: quota.as_ref().map(|_| self.clock.now()),
            lifetime: None,
            quota,
            peer: peer.map(LendablePeer::new),
        });
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
        let Some(link) = self.links.get(key) else {
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
            self.links[key].lifetime = Some(lifetime);
        }
        if self.going_away {
            // The client was admitted just before the listener was closed.
            self.links[key].connection.go_away();
            self.owe(key);
        }
        self.expected_connections = self.expected_connections.saturating_sub(1);
        tracing::debug!(connection = %id, window = session.initial_credits, "accepted a connection");
    }

    /// Handles the flags of a frame that few frames have. The fields of its header are passed one by one:
    /// a reference to the header would keep all headers in memory.
    #[cold]
    pub(super) fn handle_rare_flags(
        &mut self,
        key: LinkKey,
        flags: Flags,
        kind: FrameKind,
        selector: u16,
    ) {
        let link = &mut self.links[key];
        // Waiting calls are woken so that they fail, and the credits are returned.
        if flags.contains(Flags::GOING_AWAY) && !link.going_away {
            link.going_away = true;
            link.is_evicted = (kind, selector) == (FrameKind::Control, EVICTED);
            tracing::debug!(
                connection = %link.id,
                reason = link.announced_end().as_ref().map(tracing::field::display),
                "the server ends the connection"
            );
            self.links_changed = true;
            // Those that have not been opened fail.
            self.resume_all(key);
        }
        let link = &mut self.links[key];
        // The shutdown and the end of a stream leave credits to return. An acknowledgement permits
        // the next control frame.
        if link.connection.wants_control_frame() || self.entries_owed(key) > 0 {
            self.owe(key);
        }
    }

    /// Handles a control frame whose header has been validated. Returns the calls that the client
    /// has cancelled.
    #[cold]
    pub(super) fn handle_control(
        &mut self,
        key: LinkKey,
        header: &FrameHeader,
        buf: T::RecvBuf,
    ) -> Vec<CallId> {
        self.release_freed(key);
        // The header was parsed, so the frame has one.
        let received = match header.control_entries(&buf.as_ref()[HEADER_LEN..]) {
            Ok(entries) => self.receive_control(key, entries),
            Err(error) => Err(error.into()),
        };
        let cancelled = match received {
            Ok(cancelled) => cancelled,
            Err(error) => {
                self.close_for_violation(key, buf, error);
                return Vec::new();
            }
        };
        self.release_slot(buf);
        let Link {
            connection,
            ack_is_due,
            ..
        } = &mut self.links[key];
        // The server has returned its credits, and a stream has been opened meanwhile.
        let wants_window = connection.wants_window();
        // If no other frame of this turn and the next acknowledges the frame, one of its own does.
        if connection.wants_ack_frame() {
            *ack_is_due = false;
            self.owe(key);
        }
        if wants_window {
            self.open_window(key);
        }
        cancelled
    }

    /// Releases the receives that the peer's latest control frame has freed.
    #[cold]
    pub(super) fn release_freed(&mut self, key: LinkKey) {
        let freed = self.links[key].connection.take_freed();
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
        let link = &mut self.links[key];
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
        let link = &mut self.links[key];
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
            collect(waiting, block_on_waker, wakers, settled);
            if let Some(timer) = timer {
                timers.cancel(timer);
            }
        });
        // Receives that a control frame has just freed, if the same frame violated a rule.
        let freed = link.connection.take_freed();
        let promised = link.connection.window_len() + UNCREDITED_RECEIVES;
        self.budget.release(unanswered + promised + freed);
        if !self.transfers.is_empty() {
            self.end_transfers(key);
        }
        Some(key)
    }

    /// Removes a link that has ended in the transport and that no channel uses. The caller must
    /// drop the returned link while nothing is borrowed, because it contains wakers.
    #[must_use]
    pub(super) fn reap(&mut self, key: LinkKey) -> Option<Link<T::RecvBuf>> {
        let link = self.links.get(key)?;
        if !(link.closed && link.handles == 0) {
            return None;
        }
        let mut link = self.links.remove(key);
        self.owing.remove(key);
        self.waiting.remove(key);
        self.transfers.awaiting_window.remove(key);
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
}
