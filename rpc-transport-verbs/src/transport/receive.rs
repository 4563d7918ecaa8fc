//! The receive path: polls the completion queue and handles completions and notices.

use std::sync::Arc;

use rpc_core::transport::{CloseReason, Event};

use super::buf::RecvBuf;
use crate::transport::connection::Phase;
use crate::transport::device_event::DeviceEvent;
use crate::transport::failure::{self, LaneFailure, LivenessFailure, QueuePairFailure};
use crate::transport::lane::Lane;
use crate::transport::notices::{LivenessEnd, LivenessKey, Notice};
use crate::verbs::{CompletionStatus, QpNum, WorkCompletion, WorkKind};

type Events = Vec<Event<RecvBuf>>;

impl Lane {
    #[inline]
    pub(crate) fn poll_completions(&mut self, events: &mut Events) {
        if self.notice_receiver.is_flagged() {
            self.read_notices(events);
        }
        if self.is_idle {
            return;
        }
        let batch = self.plan.poll_batch as usize;
        let count = match self.completion_queue.poll(&mut self.completions, batch) {
            Ok(count) => count,
            Err(error) => return self.fail_all(Arc::new(LaneFailure::Completions(error)), events),
        };
        if count == 1 {
            // The usual case of a quiet connection. Draining the vector would cost more than
            // handling the one completion.
            if let Some(completion) = self.completions.pop() {
                self.complete(completion, events);
            }
        } else if count > 1 {
            let mut completions = std::mem::take(&mut self.completions);
            for completion in completions.drain(..) {
                self.complete(completion, events);
            }
            self.completions = completions;
        }
        let refilled = if count == 0 {
            self.is_idle = self.liveness_index.is_empty();
            self.receives.refill_idle(&mut self.pool, &self.reserve)
        } else {
            self.receives.refill(&mut self.pool, &self.reserve)
        };
        if let Err(error) = refilled {
            self.fail_all(Arc::new(LaneFailure::Receives(error)), events);
        }
        if !self.closing.is_empty() {
            self.advance_closing(count < batch, events);
        }
    }

    #[inline]
    pub(crate) fn release_slot(&mut self, buf: RecvBuf) {
        self.pool.release_receive(buf.slot);
        // Refill now, not in the next poll: a handler may block before then. Slots that cannot be
        // posted stay free, and the next poll reports the error.
        let _ = self.receives.refill(&mut self.pool, &self.reserve);
    }

    #[inline]
    fn complete(&mut self, completion: WorkCompletion, events: &mut Events) {
        // Don't use the opcode: in an error completion only wr_id, status, qp_num and vendor_err
        // are valid.
        match completion.wr_id().kind() {
            Some(WorkKind::Receive) => self.complete_receive(completion, events),
            Some(WorkKind::Send) => self.complete_send(completion),
            None => {
                self.counters.stale.add(1);
            }
        }
    }

    #[inline]
    fn complete_receive(&mut self, completion: WorkCompletion, events: &mut Events) {
        let (qp_num, status, success) = (
            completion.qp_num(),
            completion.status_code(),
            completion.is_success(),
        );
        // Claim the slot first, whichever connection it is for: slots of the shared receive queue
        // belong to the poller.
        let Ok((slot, len)) = self.receives.claim(completion) else {
            self.counters.stale.add(1);
            return;
        };
        if !success {
            self.pool.receives.push(slot);
            if let Some(index) = self.routes.get(qp_num) {
                self.fail_completion(index, WorkKind::Receive, status);
            }
            return;
        }
        let Some(index) = self.routes.get(qp_num).or_else(|| {
            // The notice of a connection is queued before its client is answered, but this thread
            // may not have read the notice yet.
            self.read_notices(events);
            self.routes.get(qp_num)
        }) else {
            self.pool.receives.push(slot);
            self.counters.stale.add(1);
            return;
        };
        if let Some((id, connection)) = self.connections.at(index) {
            if !connection.is_open() && !self.may_receive(index, events) {
                self.pool.receives.push(slot);
                return;
            }
            self.counters.receives.add(1);
            self.pool.hold_receive();
            events.push(Event::Received {
                connection: id,
                buf: RecvBuf {
                    slot,
                    // Fits in 32 bits, as a slot's length does.
                    len: len as u32,
                    lane: self.number,
                },
            });
        }
    }

    /// Returns true if the driver receives the frames of this connection, which is not open.
    #[cold]
    fn may_receive(&mut self, index: u32, events: &mut Events) -> bool {
        let Some((_, connection)) = self.connections.at(index) else {
            return false;
        };
        match &connection.phase {
            // A frame proves that the client is ready, even if `Ready` has not arrived over TCP
            // yet.
            Phase::QpRts(_) => {
                self.accept(index, events);
                true
            }
            Phase::Open => true,
            Phase::Closing(closing) => closing.wants_frames(),
        }
    }

    #[inline]
    fn complete_send(&mut self, completion: WorkCompletion) {
        let (qp_num, status) = (completion.qp_num(), completion.status_code());
        let success = completion.is_success();
        let connection = self
            .routes
            .get(qp_num)
            .and_then(|index| Some((index, self.connections.at(index)?.1)));
        let Some((index, connection)) = connection else {
            // A completion of a queue pair that was destroyed after its time limit; its slots were
            // freed then.
            self.counters.stale.add(1);
            return;
        };
        let pool = &mut self.pool;
        let claimed = connection
            .queue_pair
            .complete_send(completion, &mut |slot| pool.complete_send(slot));
        if claimed.is_err() {
            self.counters.stale.add(1);
        } else if !success {
            self.fail_completion(index, WorkKind::Send, status);
        }
    }

    #[cold]
    fn fail_completion(&mut self, index: u32, kind: WorkKind, status: u32) {
        let status = CompletionStatus::from_code(status);
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        // Flush completions are expected while a queue pair is being closed.
        if matches!(connection.phase, Phase::Closing(_)) {
            return;
        }
        let (port, queue_pair) = (self.queue_pairs.port(), &connection.queue_pair);
        let failure = failure::examine(&self.context, port, queue_pair, kind, status);
        self.fail(index, CloseReason::Failed(Arc::new(failure)));
    }

    #[cold]
    pub(crate) fn read_notices(&mut self, events: &mut Events) {
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
                        self.accept(index, events);
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
                Notice::LaneFailed(failure) => self.fail_all(failure, events),
            }
        }
    }

    /// Reports a connection in RTS to the driver, once.
    fn accept(&mut self, index: u32, events: &mut Events) {
        let Some((id, connection)) = self.connections.at(index) else {
            return;
        };
        if let Phase::QpRts(_) = &connection.phase
            && let Phase::QpRts(admitted) = std::mem::replace(&mut connection.phase, Phase::Open)
        {
            events.push(Event::Accepted {
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
    fn fail_all(&mut self, failure: Arc<LaneFailure>, events: &mut Events) {
        self.queue_pairs.retire(self.device(), Arc::clone(&failure));
        for index in self.connections.indexes() {
            self.fail(index, CloseReason::Failed(failure.clone()));
        }
        self.advance_closing(true, events);
        // Every later poll will fail the same way: stop polling when no connection is left.
        self.is_idle = self.liveness_index.is_empty();
    }
}
