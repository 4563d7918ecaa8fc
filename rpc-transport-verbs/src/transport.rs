//! [`VerbsTransport`]: what one poller owns, and the face that the driver sees.
//!
//! Each thing it does has a file: [`setup`](crate::setup) opens it, `connect` and `accept` bring
//! connections, `transmit` and `receive` are the data path, `close` ends connections.

use std::collections::HashMap;
use std::fmt;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rpc_core::limits::Limits;
use rpc_core::transport::{
    ConnectError, Connected, ConnectionId, Counters, Event, ReserveError, SendError, Transport,
};

use crate::accept::Port;
use crate::buffer_pool::{BufferPool, SlotsByPlace};
use crate::connect;
use crate::connection::{Connection, Connections, Phase};
use crate::mailbox::{Inbox, LineKey, Mailbox};
use crate::queue_pairs::{QueuePairs, Ready};
use crate::receive_queue::ReceiveQueue;
use crate::reserve::{Reserve, ReserveCounts};
use crate::routes::Routes;
use crate::sizing::Plan;
use crate::verbs::{CompletionQueue, Context, Slot, WorkCompletion};

/// A poller's way to its peers: one context, one registration, one completion queue, one shared
/// receive queue, and a queue pair for each connection.
///
/// Opened by [`Device`](crate::Device) through [`Fabric::open`](rpc_core::transport::Fabric::open);
/// used by one thread. See [`Transport`] for the order of the calls.
pub struct VerbsTransport {
    pub(crate) plan: Plan,
    pub(crate) pool: BufferPool,
    pub(crate) connections: Connections,
    pub(crate) routes: Routes,
    pub(crate) completion_queue: CompletionQueue,
    /// The poll's batch, kept for its memory.
    pub(crate) completions: Vec<WorkCompletion>,
    pub(crate) receives: ReceiveQueue,
    /// Connections with something to flush.
    pub(crate) dirty: Vec<u32>,
    pub(crate) tally: Tally,
    pub(crate) inbox: Inbox,
    /// Connections on their way to their end.
    pub(crate) closing: Vec<u32>,
    /// By the name of their TCP connection, for notices.
    pub(crate) lines: HashMap<LineKey, u32>,
    pub(crate) queue_pairs: Arc<QueuePairs>,
    pub(crate) mailbox: Mailbox,
    pub(crate) reserve_counts: Arc<ReserveCounts>,
    pub(crate) reserve: Reserve,
    pub(crate) context: Context,
}

/// What the data path counts.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) sends: u64,
    pub(crate) signaled: u64,
    pub(crate) doorbells: u64,
    pub(crate) receives: u64,
    /// Completions that named nothing any more.
    pub(crate) stale: u64,
}

/// A send slot in hand: exactly as long as was reserved.
#[derive(Debug)]
pub struct SendBuf {
    pub(crate) slot: Slot,
    pub(crate) len: u32,
    pub(crate) connection: ConnectionId,
}

impl AsMut<[u8]> for SendBuf {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.slot[..self.len as usize]
    }
}

/// A receive slot in hand: its bytes are the frame.
#[derive(Debug)]
pub struct RecvBuf {
    pub(crate) slot: Slot,
    pub(crate) len: u32,
}

impl AsRef<[u8]> for RecvBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.slot[..self.len as usize]
    }
}

impl VerbsTransport {
    /// Where every slot of the pool is at this moment. Their sum is [`Limits::slots`]. Off the data
    /// path.
    #[must_use]
    pub fn slots_by_place(&self) -> SlotsByPlace {
        SlotsByPlace {
            receives_posted: self.receives.outstanding() as u32,
            receives_reserved: self.reserve_counts.in_hand.load(Ordering::Relaxed),
            ..self.pool.by_place()
        }
    }

    /// How often the shared receive queue's limit was armed: once at the beginning, and again after
    /// each event that had a reserve to post, or after the reserve was given back.
    #[must_use]
    pub fn limit_armings(&self) -> u64 {
        self.reserve_counts.armed.load(Ordering::Relaxed)
    }

    /// Completions that named nothing any more and were ignored.
    #[must_use]
    pub fn stale_completions(&self) -> u64 {
        self.tally.stale
    }

    pub(crate) fn port(&self) -> Port {
        Port::new(Arc::clone(&self.queue_pairs), self.mailbox.clone())
    }

    /// Takes in a connection that this side made.
    pub(crate) fn add_connected(
        &mut self,
        ready: Ready,
        line: Arc<TcpStream>,
        key: LineKey,
        remote_frame_len: usize,
    ) -> ConnectionId {
        self.add(ready, line, key, remote_frame_len, Phase::Open)
    }

    pub(crate) fn add(
        &mut self,
        ready: Ready,
        line: Arc<TcpStream>,
        key: LineKey,
        remote_frame_len: usize,
        phase: Phase,
    ) -> ConnectionId {
        let qp_num = ready.queue_pair.qp_num();
        let slot_len = self.plan.limits.slot_len;
        let frame_limit = slot_len.min(remote_frame_len);
        if remote_frame_len < slot_len {
            tracing::info!(
                local = slot_len,
                remote = remote_frame_len,
                "frames to this peer are limited by its slots"
            );
        }
        let id = self.connections.insert(Connection::new(
            ready,
            line,
            key,
            frame_limit,
            self.plan.limits.signal_interval,
            phase,
        ));
        self.routes.insert(qp_num, id.index);
        self.lines.insert(key, id.index);
        id
    }
}

impl Transport for VerbsTransport {
    type SendBuf = SendBuf;
    type RecvBuf = RecvBuf;

    fn limits(&self) -> &Limits {
        &self.plan.limits
    }

    fn counters(&self) -> Counters {
        let rnr = match self.context.counters() {
            Ok(counters) => counters.rnr_nak_sent,
            Err(error) => {
                tracing::debug!(%error, "the device does not say its counters");
                0
            }
        };
        Counters {
            sends: self.tally.sends,
            signaled: self.tally.signaled,
            doorbells: self.tally.doorbells,
            receives: self.tally.receives,
            srq_limit_events: self.reserve_counts.events.load(Ordering::Relaxed),
            reserve_posted: self.reserve_counts.posted.load(Ordering::Relaxed),
            rnr,
        }
    }

    fn connect(
        &mut self,
        address: &str,
        session: &[u8],
        timeout: Duration,
    ) -> Result<Connected, ConnectError> {
        connect::connect(self, address, session, timeout)
    }

    #[inline]
    fn reserve(&mut self, connection: ConnectionId, len: usize) -> Result<SendBuf, ReserveError> {
        self.reserve_slot(connection, len)
    }

    #[inline]
    fn send(&mut self, connection: ConnectionId, buf: SendBuf) -> Result<(), SendError> {
        self.send_slot(connection, buf)
    }

    fn cancel(&mut self, buf: SendBuf) {
        self.cancel_slot(buf);
    }

    #[inline]
    fn flush(&mut self) {
        self.flush_chains();
    }

    #[inline]
    fn poll(&mut self, events: &mut Vec<Event<RecvBuf>>) {
        self.poll_completions(events);
    }

    #[inline]
    fn release(&mut self, buf: RecvBuf) {
        self.release_slot(buf);
    }

    fn close(&mut self, connection: ConnectionId) {
        self.close_locally(connection);
    }
}

impl Drop for VerbsTransport {
    fn drop(&mut self) {
        for connection in self.connections.drain() {
            connection.hang_up();
            // Its slots go with the registration, which ends when the last of them is dropped.
            connection.queue_pair.destroy(&mut drop);
        }
    }
}

impl fmt::Debug for VerbsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsTransport")
            .field("limits", &self.plan.limits)
            .field("slots", &self.slots_by_place())
            .finish_non_exhaustive()
    }
}
