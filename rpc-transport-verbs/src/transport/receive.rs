//! The receive path: polls the completion queue and handles completions and notices.

use std::sync::Arc;

use rpc_core::transport::{CloseReason, ConnectionId, Event, Stalled};
use verbline_verbs::{CompletionStatus, QpNum, Slot, WorkCompletion, WorkKind};

use super::buf::RecvBuf;
use crate::transport::connection::{Connection, Phase};
use crate::transport::device_event::DeviceEvent;
use crate::transport::failure::{self, LaneFailure, LivenessFailure, QueuePairFailure, StuckSends};
use crate::transport::lane::Lane;
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice};
use crate::transport::pending::Pending;
use crate::transport::stall_watch::{Awaited, STALLED_AFTER, STUCK_AFTER, WATCHED_TIME};

/// The status of a request that was carried out, as a number.
const SUCCESS: u32 = 0;

impl Lane {
    /// Returns the next event, if there is one.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Option<Event<RecvBuf>> {
        if cfg!(debug_assertions) {
            self.assert_sums();
        }
        if self.pending.is_any() {
            self.poll_with_pending()
        } else {
            self.poll_device::<true>()
        }
    }

    /// Polls, and does what else the lane has to do.
    #[cold]
    #[inline(never)]
    fn poll_with_pending(&mut self) -> Option<Event<RecvBuf>> {
        self.connections.begin_poll();
        if self.pending.has(Pending::NOTICES) {
            self.read_notices();
        }
        if self.pending.has(Pending::SENDS) {
            self.look_at_sends();
        }
        // The queued events are older than what the device has.
        if let Some(event) = self.take_queued() {
            if self.pending.has(Pending::LONG_MESSAGES) {
                self.advance_long_messages(Some(&event));
            }
            return Some(event);
        }
        if self.pending.has(Pending::IDLE) {
            return None;
        }
        self.pending.clear(Pending::MORE);
        // Before connections are destroyed below: their last completions are polled once more.
        let had_no_connections = self.pending.has(Pending::NO_CONNECTIONS);
        let event = self.poll_device::<true>();
        let found_nothing = event.is_none() && !self.pending.has(Pending::MORE);
        if self.pending.has(Pending::CLOSING) {
            self.advance_closing(found_nothing);
        }
        let event = event.or_else(|| self.take_queued());
        if self.pending.has(Pending::LONG_MESSAGES) {
            self.advance_long_messages(event.as_ref());
        }
        if found_nothing && had_no_connections {
            self.pending.set(Pending::IDLE);
        }
        event
    }

    /// Polls the device until a completion is an event for the driver, or none is left. Some rare
    /// completions queue an event. Unless `TAKES_QUEUED`, it stays in the queue.
    // Always inlined: each turn is one call, and the compiler decides otherwise now and then.
    #[inline(always)]
    fn poll_device<const TAKES_QUEUED: bool>(&mut self) -> Option<Event<RecvBuf>> {
        let mut left = self.plan.poll_batch;
        loop {
            match self.completion_queue.poll_one() {
                Ok(Some(completion)) if completion.wr_id().is(WorkKind::Receive) => {
                    let (qp_num, status) = (completion.qp_num(), completion.status_code());
                    // Claim the slot first, whichever connection it is for: slots of the shared
                    // receive queue belong to the poller.
                    if let Ok((slot, len)) = self.receives.claim(completion) {
                        if status == SUCCESS
                            && let Some(index) = self.routes.get(qp_num)
                            && let Some(connection) = self.connections.open_at(index)
                        {
                            let buf = self.hold(slot, len);
                            return Some(Event::Received { connection, buf });
                        }
                        let queues = self.complete_rare_receive(qp_num, status, slot, len);
                        if TAKES_QUEUED && queues {
                            return self.take_queued();
                        }
                    } else {
                        self.count_stale();
                    }
                }
                Ok(Some(completion)) => self.complete_other(completion),
                Ok(None) => {
                    self.refill();
                    return None;
                }
                Err(error) => {
                    self.fail_all(Arc::new(LaneFailure::Completions(error)));
                    return None;
                }
            }
            left -= 1;
            if left == 0 {
                self.pending.set(Pending::MORE);
                return None;
            }
        }
    }

    /// Looks whether a call has arrived on another connection than `id`, in the middle of work for
    /// `id` that takes this thread's time. The next polls return what has arrived, in the order of each
    /// connection, and the call first. Returns true until a poll has returned the call.
    pub(super) fn has_call_beside(&mut self, id: ConnectionId) -> bool {
        if !self.has_queued_call
            && let Some(event) = self.poll_device::<false>()
        {
            // What arrives for `id` is mostly about this work.
            let is_other = matches!(event, Event::Received { connection, .. } if connection != id);
            self.has_queued_call = is_other && self.is_call(&event);
            self.queue_event(event);
            if self.has_queued_call {
                self.queue_last_first();
            }
        }
        self.has_queued_call
    }

    /// Queues an event for the next polls.
    #[cold]
    pub(crate) fn queue_event(&mut self, event: Event<RecvBuf>) {
        self.queued.push_back(event);
        self.pending.set(Pending::EVENTS);
    }

    /// Moves the event that was queued last before those of other connections, unless one of its own
    /// connection is queued.
    fn queue_last_first(&mut self) {
        let Some(last) = self.queued.pop_back() else {
            return;
        };
        let connection = last.connection();
        match self.queued.iter().any(|it| it.connection() == connection) {
            true => self.queued.push_back(last),
            false => self.queued.push_front(last),
        }
    }

    #[cold]
    fn take_queued(&mut self) -> Option<Event<RecvBuf>> {
        let event = self.queued.pop_front();
        if self.has_queued_call {
            let is_the_call = event.as_ref().is_some_and(|event| self.is_call(event));
            self.has_queued_call = !is_the_call && !self.queued.is_empty();
        }
        match &event {
            Some(Event::Closed { connection, .. }) => {
                self.connections.free_at_next_poll(connection.index);
            }
            Some(_) => {}
            None if self.connections.has_closed() => {}
            None => self.pending.clear(Pending::EVENTS),
        }
        event
    }

    // Always inlined into its only caller.
    #[inline(always)]
    pub(crate) fn release_slot(&mut self, buf: RecvBuf) {
        self.pool.release_receive(buf.slot);
        self.receives.count_released(&mut self.pool, &self.reserve);
    }

    /// Takes back the slot of a receive that the driver does not get.
    fn recycle(&mut self, slot: Slot) {
        self.pool.receives.push(slot);
        self.receives.count_released(&mut self.pool, &self.reserve);
    }

    /// Sets how many receives the core may promise, and posts those that are missing.
    pub(crate) fn set_promised(&mut self, receives: u32) {
        let set = self
            .receives
            .set_promised(receives, &mut self.pool, &self.reserve);
        if let Err(error) = set {
            self.fail_all(Arc::new(LaneFailure::Receives(error)));
        }
    }

    /// Posts free receives if there are enough for a batch. Called when the poller has answered
    /// what it has received.
    #[inline]
    pub(crate) fn refill(&mut self) {
        if let Err(error) = self.receives.refill(&mut self.pool, &self.reserve) {
            self.fail_all(Arc::new(LaneFailure::Receives(error)));
        }
    }

    /// Hands a receive slot to the driver.
    #[inline]
    fn hold(&mut self, slot: Slot, len: usize) -> RecvBuf {
        self.counters.receives.add(1);
        self.pool.hold_receive();
        RecvBuf {
            slot,
            // Fits in 32 bits, as a slot's length does.
            len: len as u32,
            lane: self.number,
        }
    }

    /// Completes a receive that failed, or whose connection is not open. Returns true if events are
    /// queued.
    #[cold]
    #[inline(never)]
    fn complete_rare_receive(
        &mut self,
        qp_num: QpNum,
        status: u32,
        slot: Slot,
        len: usize,
    ) -> bool {
        if status != SUCCESS {
            self.recycle(slot);
            if let Some(index) = self.routes.get(qp_num) {
                self.fail_completion(index, WorkKind::Receive, status);
            }
            return false;
        }
        let index = self.routes.get(qp_num).or_else(|| {
            // The notice of a connection is queued before its client is answered, but this thread
            // may not have read the notice yet.
            self.read_notices();
            self.routes.get(qp_num)
        });
        match index.and_then(|index| self.receiver_at(index)) {
            Some(connection) => {
                let buf = self.hold(slot, len);
                // Behind the event that the connection was accepted.
                self.queue_event(Event::Received { connection, buf });
            }
            None => {
                self.recycle(slot);
                if index.is_none() {
                    self.count_stale();
                }
            }
        }
        !self.queued.is_empty()
    }

    #[cold]
    fn count_stale(&self) {
        self.counters.stale.add(1);
    }

    /// Returns the id of a connection if the driver receives its frames.
    fn receiver_at(&mut self, index: u32) -> Option<ConnectionId> {
        let (id, connection) = self.connections.at(index)?;
        let is_receiver = match connection.phase() {
            // A frame proves that the client is ready, even if `Ready` has not arrived over TCP
            // yet.
            Phase::QpRts(_) => {
                self.accept(index);
                true
            }
            Phase::Open => true,
            Phase::Closing(closing) => closing.wants_frames(),
        };
        is_receiver.then_some(id)
    }

    /// Completes a send.
    // The opcode does not tell a send from a receive: in an error completion only wr_id, status,
    // qp_num and vendor_err are valid.
    #[inline(never)]
    fn complete_other(&mut self, completion: WorkCompletion) {
        if !completion.wr_id().is(WorkKind::Send) {
            return self.count_stale();
        }
        let (qp_num, status) = (completion.qp_num(), completion.status_code());
        let number = completion.wr_id().number();
        let connection = self
            .routes
            .get(qp_num)
            .and_then(|index| Some((index, self.connections.at(index)?.1)));
        let Some((index, connection)) = connection else {
            // A completion of a queue pair that was destroyed after its time limit; its slots were
            // freed then.
            return self.count_stale();
        };
        let (pool, sends) = (&mut self.pool, &mut connection.sends);
        let claimed = connection
            .queue_pair
            .complete_send(completion, &mut |slot| {
                pool.complete_send(slot);
                sends.slots_returned(1);
            });
        if claimed.is_err() {
            self.count_stale();
        } else if status != SUCCESS {
            self.note_failed_binding(index, number, status);
            self.fail_completion(index, WorkKind::Send, status);
        } else if connection.one_sided.awaits_completion() {
            self.complete_one_sided(index, number);
        }
    }

    #[cold]
    fn fail_completion(&mut self, index: u32, kind: WorkKind, status: u32) {
        let status = CompletionStatus::from_code(status);
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        // Flush completions are expected while a queue pair is being closed.
        if matches!(connection.phase(), Phase::Closing(_)) {
            return;
        }
        let (port, queue_pair) = (self.queue_pairs.port(), &connection.queue_pair);
        let failure = failure::examine(&self.context, port, queue_pair, kind, status);
        self.fail(index, CloseReason::Failed(Arc::new(failure)));
    }

    /// Ends the connections whose sends are stuck in the device.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_at_sends(&mut self) {
        self.pending.clear(Pending::SENDS);
        let waiting = self.connections.iter().filter_map(|(id, connection)| {
            let is_due = connection.in_flight() > connection.sends.uncovered();
            is_due.then(|| (id, Awaited::Send(connection.queue_pair.oldest_send())))
        });
        self.send_watch.look(waiting);
        let stuck: Vec<_> = self.send_watch.found_at(STUCK_AFTER).collect();
        for id in stuck {
            let Some(connection) = self.connections.get(id) else {
                continue;
            };
            let stuck = StuckSends {
                qp_num: connection.queue_pair.qp_num(),
                in_flight: connection.in_flight(),
                time: WATCHED_TIME,
            };
            // A connection that is being closed has a time limit for each step, and stays as it is.
            self.fail(id.index, CloseReason::Failed(Arc::new(stuck)));
        }
    }

    /// Looks for connections whose peers keep this side waiting. Others may follow if they have done so
    /// at `looks` looks before this one.
    pub(crate) fn stalled_connections(&mut self, looks: u32) -> Stalled {
        let awaited = self.connections.iter().flat_map(|(id, connection)| {
            let awaited = connection.awaited();
            awaited.map(|awaited| Some((id, awaited?)))
        });
        self.stall_watch.look(awaited.flatten());
        let connections: Vec<_> = self.stall_watch.found_at(STALLED_AFTER).collect();
        let may_follow = self.stall_watch.found_at(looks + 1).count() > connections.len();
        Stalled {
            connections,
            may_follow,
        }
    }

    /// Returns true if nothing more is to be expected of the peer.
    pub(crate) fn has_stalled(&self, id: ConnectionId) -> bool {
        let awaited = self.connections.get_ref(id).map(Connection::awaited);
        let mut awaited = awaited.into_iter().flatten().flatten();
        awaited.any(|awaited| self.stall_watch.looks(id, awaited) >= STALLED_AFTER)
    }

    #[cold]
    pub(crate) fn read_notices(&mut self) {
        while let Some(notice) = self.notice_receiver.take() {
            match notice {
                Notice::QpRts(connection) => {
                    let connection = *connection;
                    let id = self.add(
                        connection.qp_rts,
                        connection.liveness,
                        connection.key,
                        connection.remote_frame_len,
                        Phase::QpRts(Box::new(connection.admitted)),
                    );
                    // The lane failed while the notice was in the queue.
                    if let Some(failure) = self.queue_pairs.failure() {
                        let failure = Arc::clone(failure);
                        self.fail(id.index, CloseReason::Failed(failure));
                    }
                }
                Notice::Open(key) => {
                    if let Some(index) = self.liveness_index.get(&key).copied() {
                        self.accept(index);
                    }
                }
                Notice::Ended(key, end) => self.liveness_ended(key, end),
                Notice::QueuePairFailed(qp_num, event) => self.queue_pair_failed(qp_num, event),
                Notice::LastReceiveTaken(qp_num) => {
                    if let Some(index) = self.routes.get(qp_num)
                        && let Some((_, connection)) = self.connections.at(index)
                    {
                        connection.has_taken_last_receive = true;
                    }
                }
                Notice::LaneFailed(failure) => self.fail_all(failure),
                Notice::RoomWanted(wanted) => {
                    self.queue_event(Event::RoomWanted(Box::new(wanted)));
                }
            }
        }
    }

    /// Reports a connection in RTS to the driver, once.
    fn accept(&mut self, index: u32) {
        let Some((id, connection)) = self.connections.at(index) else {
            return;
        };
        if let Phase::QpRts(_) = connection.phase()
            && let Phase::QpRts(admitted) = connection.enter(Phase::Open)
        {
            self.queue_event(Event::Accepted {
                connection: id,
                admitted,
            });
        }
    }

    fn liveness_ended(&mut self, key: LivenessKey, end: LivenessEnd) {
        // The control thread also reports the end of a TCP connection that this side shut down;
        // by then the connection may no longer exist.
        let Some(index) = self.liveness_index.get(&key).copied() else {
            return;
        };
        let failure = match end {
            LivenessEnd::Gone => return self.peer_gone(index),
            LivenessEnd::Bytes => LivenessFailure::Bytes,
            LivenessEnd::Record(error) => LivenessFailure::Record(error),
            LivenessEnd::Refused(reason) => LivenessFailure::Refused(reason),
            LivenessEnd::Silent(silence) => {
                self.counters.silent_peers.add(1);
                LivenessFailure::Silent { silence }
            }
        };
        self.fail(index, CloseReason::Failed(Arc::new(failure)));
    }

    fn queue_pair_failed(&mut self, qp_num: QpNum, event: DeviceEvent) {
        if let Some(index) = self.routes.get(qp_num)
            && let Some((_, connection)) = self.connections.at(index)
        {
            let (port, queue_pair) = (self.queue_pairs.port(), &connection.queue_pair);
            let failure = QueuePairFailure::new(event, &self.context, port, queue_pair);
            self.fail(index, CloseReason::Failed(Arc::new(failure)));
        }
    }

    /// Handles the failure of a resource that all connections share: closes all connections and
    /// accepts no new ones.
    #[cold]
    #[inline(never)]
    fn fail_all(&mut self, failure: Arc<LaneFailure>) {
        self.queue_pairs.retire(self.device(), Arc::clone(&failure));
        let all: Vec<_> = self.connections.iter().map(|(id, _)| id.index).collect();
        for index in all {
            self.fail(index, CloseReason::Failed(failure.clone()));
        }
        self.advance_closing(true);
        // Every later poll will fail the same way: stop polling when no connection is left.
        if self.liveness_index.is_empty() {
            self.pending.set(Pending::IDLE);
        }
    }
}
