//! The end of a connection.
//!
//! ```text
//!  close()      --> Delivering --> Flushing --> gone, Closed{Local}
//!  peer gone    --> Draining   --> Flushing --> gone, Closed{PeerGone}
//!  device error -----------------> Flushing --> gone, Closed{Failed}
//! ```
//!
//! *Delivering*: what was sent before `close` is on its way; its completions are waited for.
//! *Draining*: the peer is gone, and what it had sent before is still taken from the device.
//! *Flushing*: the queue pair is in error, and each request comes back with a completion. Each step
//! has a time limit, since some devices never say that a queue is empty. Then the queue pair is
//! destroyed, which gives back whatever is left.

use std::time::{Duration, Instant};

use rpc_core::transport::{CloseReason, ConnectionId, Event};

use super::buf::RecvBuf;
use crate::hooks;
use crate::transport::connection::{Closing, Connection, Phase, STEP_LIMIT, Step};
use crate::transport::lane::Lane;

/// Polls that did not fill their batch, after the peer's end, until nothing more is expected of it.
/// The first may have begun before its last frames could be seen.
const QUIET_POLLS: u32 = 2;

/// How long a queue pair in error may take to say that it has taken its last receive. Network cards
/// say it at once; Soft-RoCE never does.
const LAST_RECEIVE_LIMIT: Duration = Duration::from_millis(20);

impl Lane {
    pub(crate) fn close_locally(&mut self, id: ConnectionId) {
        match self.connections.get(id) {
            Some(connection) if connection.is_open() => {}
            _ => return,
        }
        self.ring(id.index);
        // Ringing may have failed, and begun another end.
        if let Some(connection) = self.connections.get(id)
            && connection.is_open()
        {
            self.begin(id.index, Step::Delivering, CloseReason::Local);
        }
    }

    pub(crate) fn peer_gone(&mut self, index: u32) {
        self.begin(
            index,
            Step::Draining { quiet_polls: 0 },
            CloseReason::PeerGone,
        );
    }

    pub(crate) fn fail(&mut self, index: u32, reason: CloseReason) {
        self.begin(index, Step::FLUSHING, reason);
    }

    /// The first reason stands; what follows from it is not another one.
    fn begin(&mut self, index: u32, step: Step, reason: CloseReason) {
        let Some((id, connection)) = self.connections.at(index) else {
            return;
        };
        let reason = match &connection.phase {
            Phase::Closing(_) => return,
            Phase::Prepared(_) => None,
            Phase::Open => Some(reason),
        };
        // A client that went away in the handshake has sent nothing that anyone wants.
        let step = if reason.is_none() {
            Step::FLUSHING
        } else {
            step
        };
        tracing::debug!(connection = %id, ?reason, "a connection ends");
        if let Some(CloseReason::Failed(error)) = &reason {
            tracing::warn!(connection = %id, %error, "a connection has failed");
        }
        connection.phase = Phase::Closing(Box::new(Closing::new(step, reason)));
        let pool = &mut self.pool;
        for slot in connection.sends.abandon() {
            pool.complete_send(slot);
        }
        if step.is_flushing() {
            put_in_error(connection);
        }
        self.closing.push(index);
    }

    /// Takes each ending connection as far as it can go. `quiet`: the poll did not fill its batch.
    #[cold]
    pub(crate) fn advance_closing(&mut self, quiet: bool, events: &mut Vec<Event<RecvBuf>>) {
        let now = hooks::now();
        let mut closing = std::mem::take(&mut self.closing);
        closing.retain(|&index| !self.advance(index, quiet, now, events));
        // Nothing above begins another end, but what it may call might one day.
        closing.append(&mut self.closing);
        self.closing = closing;
    }

    /// `true`: it is gone.
    fn advance(
        &mut self,
        index: u32,
        quiet: bool,
        now: Instant,
        events: &mut Vec<Event<RecvBuf>>,
    ) -> bool {
        let Some((_, connection)) = self.connections.at(index) else {
            return true;
        };
        let (in_flight, uncovered) = (connection.in_flight(), connection.sends.uncovered());
        let has_taken_last_receive = connection.has_taken_last_receive;
        let Phase::Closing(closing) = &mut connection.phase else {
            return true;
        };
        let is_late = now >= closing.deadline;
        let is_done = match &mut closing.step {
            // An unsignaled tail holds no slot, and no completion will tell of it.
            Step::Delivering => in_flight <= uncovered,
            Step::Draining { quiet_polls } => {
                *quiet_polls += u32::from(quiet);
                *quiet_polls >= QUIET_POLLS
            }
            // The peer may have taken an unsignaled tail before its end: then there is nothing to
            // flush, and no completion comes.
            //
            // Receives that it had taken from the shared queue come back with completions too, and
            // some devices drop those of a queue pair that is destroyed: the slots would be lost.
            Step::Flushing { quiet_polls } => {
                *quiet_polls += u32::from(quiet);
                let has_said_all = has_taken_last_receive
                    || closing.deadline.saturating_duration_since(now)
                        <= STEP_LIMIT - LAST_RECEIVE_LIMIT;
                in_flight <= uncovered && *quiet_polls >= QUIET_POLLS && has_said_all
            }
        };
        if !is_done && !is_late {
            return false;
        }
        if !closing.step.is_flushing() {
            closing.step = Step::FLUSHING;
            closing.deadline = now + STEP_LIMIT;
            put_in_error(connection);
            return false;
        }
        if !is_done {
            tracing::debug!(in_flight, "a queue pair is destroyed before it was empty");
        }
        self.bury(index, events);
        true
    }

    /// Destroys the queue pair, takes its slots back, and tells the driver.
    fn bury(&mut self, index: u32, events: &mut Vec<Event<RecvBuf>>) {
        let Some((id, _)) = self.connections.at(index) else {
            return;
        };
        let Some(connection) = self.connections.remove(index) else {
            return;
        };
        self.routes.remove(connection.queue_pair.qp_num());
        self.lines.remove(&connection.key);
        let pool = &mut self.pool;
        connection
            .queue_pair
            .destroy(&mut |slot| pool.complete_send(slot));
        if let Phase::Closing(closing) = connection.phase
            && let Some(reason) = closing.reason
        {
            events.push(Event::Closed {
                connection: id,
                reason,
            });
        }
    }
}

/// The TCP connection first: the peer then learns of the end as an end, and not from a send that
/// is never answered.
fn put_in_error(connection: &mut Connection) {
    connection.hang_up();
    if let Err(error) = connection.queue_pair.to_error() {
        // It is destroyed next, whatever state it is in.
        tracing::debug!(%error, "a queue pair cannot be put in error");
    }
}
