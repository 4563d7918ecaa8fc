//! Closing a connection.
//!
//! ```text
//!  close()      --> Delivering --> Flushing --> gone, Closed{Local}
//!  peer gone    --> Draining   --> Flushing --> gone, Closed{PeerGone}
//!  device error -----------------> Flushing --> gone, Closed{Failed}
//! ```
//!
//! *Delivering*: waits for the completions of everything sent before `close`. Requests that no
//! completion covers are covered by one more, a WRITE of no bytes: a queue pair that enters the error
//! state flushes what has not left. *Draining*: the peer
//! is gone; frames that it had sent before are still received from the device. *Flushing*: the
//! queue pair is in the error state, and each request comes back with a flush completion. Each step
//! has a time limit, because some devices never report that a queue is empty. Then the queue pair
//! is destroyed, which frees the remaining slots.

use std::time::{Duration, Instant};

use rpc_core::transport::{CloseReason, ConnectionId, Event};
use verbline_verbs::for_transport::hooks;
use verbline_verbs::log_limited;

use crate::transport::connection::{Closing, Connection, Phase, STEP_LIMIT, Step};
use crate::transport::lane::Lane;
use crate::transport::pending::Pending;

/// Number of polls that must find the completion queue empty before it counts as empty. One is not
/// enough: it may have started before the last completions were visible.
const QUIET_POLLS: u32 = 2;

/// How long a queue pair in the error state may take to report its last receive. Network cards
/// report it at once; Soft-RoCE never does.
const LAST_RECEIVE_LIMIT: Duration = Duration::from_millis(20);

impl Lane {
    pub(crate) fn close_locally(&mut self, id: ConnectionId) {
        match self.connections.get(id) {
            Some(connection) if connection.is_open() => {}
            _ => return,
        }
        self.post_chain(id.index);
        // `post_chain` may have failed and started closing the connection for another reason.
        if let Some(connection) = self.connections.get(id)
            && connection.is_open()
        {
            // What a peer does not acknowledge is not delivered either.
            let step = match self.has_stalled(id) {
                true => Step::FLUSHING,
                false => Step::Delivering,
            };
            self.start_closing(id.index, step, CloseReason::Local);
        }
    }

    pub(crate) fn peer_gone(&mut self, index: u32) {
        self.start_closing(
            index,
            Step::Draining { quiet_polls: 0 },
            CloseReason::PeerGone,
        );
    }

    pub(crate) fn fail(&mut self, index: u32, reason: CloseReason) {
        self.start_closing(index, Step::FLUSHING, reason);
    }

    /// Starts closing a connection. Only the first reason counts: later ones are consequences of
    /// it.
    fn start_closing(&mut self, index: u32, step: Step, reason: CloseReason) {
        let Some((id, connection)) = self.connections.at(index) else {
            return;
        };
        let reason = match connection.phase() {
            Phase::Closing(_) => return,
            Phase::QpRts(_) => None,
            Phase::Open => Some(reason),
        };
        // A client that left during the handshake has sent no frames that the driver would receive.
        let step = if reason.is_none() {
            Step::FLUSHING
        } else {
            step
        };
        tracing::debug!(connection = %id, ?reason, "closing a connection");
        if let Some(CloseReason::Failed(error)) = &reason {
            log_limited!(warn, connection = %id, %error, "a connection has failed");
        }
        let before = connection.enter(Phase::Closing(Box::new(Closing::new(step, reason))));
        if let (Phase::QpRts(admitted), Some(closing)) = (before, connection.closing()) {
            closing.quota = Some(admitted.quota);
        }
        let pool = &mut self.pool;
        for slot in connection.sends.abandon() {
            pool.complete_send(slot);
        }
        if step.is_flushing() {
            move_to_error(connection);
        }
        self.closing.push(index);
        self.pending.set(Pending::CLOSING);
    }

    /// Advances every closing connection as far as possible. `quiet`: the completion queue was
    /// empty.
    #[cold]
    pub(crate) fn advance_closing(&mut self, quiet: bool) {
        let now = hooks::now();
        let mut closing = std::mem::take(&mut self.closing);
        closing.retain(|&index| !self.advance(index, quiet, now));
        // `advance` starts closing no other connection today; if that changes, keep the new
        // entries.
        closing.append(&mut self.closing);
        self.closing = closing;
        if self.closing.is_empty() {
            self.pending.clear(Pending::CLOSING);
        }
    }

    /// Advances one closing connection. Returns true if it is gone.
    fn advance(&mut self, index: u32, quiet: bool, now: Instant) -> bool {
        let Some((_, connection)) = self.connections.at(index) else {
            return true;
        };
        let is_delivering = connection
            .closing()
            .is_some_and(|closing| closing.step == Step::Delivering);
        let is_covered = is_delivering && connection.cover_sends();
        let (in_flight, uncovered) = (connection.in_flight(), connection.sends.uncovered());
        let has_taken_last_receive = connection.has_taken_last_receive;
        let Some(closing) = connection.closing() else {
            return true;
        };
        let is_late = now >= closing.deadline;
        let is_done = match &mut closing.step {
            Step::Delivering => is_covered && in_flight == 0,
            Step::Draining { quiet_polls } => {
                *quiet_polls += u32::from(quiet);
                *quiet_polls >= QUIET_POLLS
            }
            // The peer may have received the unsignaled requests before it ended. Then there is
            // nothing to flush, and no completion arrives.
            //
            // Receives that the queue pair had taken from the shared receive queue also come back
            // with completions. Some devices drop these completions when the queue pair is
            // destroyed, and the slots would be lost.
            Step::Flushing { quiet_polls } => {
                *quiet_polls += u32::from(quiet);
                let has_drained_receives = has_taken_last_receive
                    || closing.deadline.saturating_duration_since(now)
                        <= STEP_LIMIT - LAST_RECEIVE_LIMIT;
                in_flight <= uncovered && *quiet_polls >= QUIET_POLLS && has_drained_receives
            }
        };
        if !is_done && !is_late {
            return false;
        }
        if !closing.step.is_flushing() {
            closing.step = Step::FLUSHING;
            closing.deadline = now + STEP_LIMIT;
            move_to_error(connection);
            return false;
        }
        if !is_done {
            tracing::debug!(
                in_flight,
                "destroying a queue pair with requests in flight: they did not complete in time"
            );
        }
        self.destroy(index);
        true
    }

    /// Destroys the queue pair, takes back its slots and reports the closed connection to the
    /// driver.
    fn destroy(&mut self, index: u32) {
        let Some((id, mut connection)) = self.connections.remove(index) else {
            return;
        };
        self.routes.remove(connection.queue_pair.qp_num());
        self.liveness_index.remove(&connection.key);
        self.dirty.remove(&mut connection.listed, index);
        self.long_messages.unlist(index, &mut connection.listed);
        let (queue_pair, guards, reason) = connection.into_parts();
        let pool = &mut self.pool;
        let is_destroyed = queue_pair.destroy(&mut |slot| pool.complete_send(slot));
        self.end_long_messages_of(id, is_destroyed);
        drop(guards);
        if self.liveness_index.is_empty() {
            self.pending.set(Pending::NO_CONNECTIONS);
        }
        match reason {
            // The driver frees the index by polling after it has seen this event: it may use the
            // index in tables of its own until then.
            Some(reason) => self.queue_event(Event::Closed {
                connection: id,
                reason,
            }),
            None => self.connections.free(index),
        }
    }
}

/// Moves the queue pair to the error state. Shuts down the TCP connection first, so the peer sees
/// an orderly end rather than a send that is never acknowledged.
fn move_to_error(connection: &mut Connection) {
    connection.shut_down();
    if let Err(error) = connection.queue_pair.to_error() {
        // Continue: the queue pair is destroyed next, in whatever state it is.
        tracing::debug!(%error, "a queue pair cannot be moved to the error state; destroying it");
    }
}
