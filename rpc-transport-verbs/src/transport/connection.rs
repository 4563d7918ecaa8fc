//! A connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_core::Limits;
use rpc_core::transport::{Admitted, CloseReason, ConnectionQuota};
use verbline_verbs::for_transport::{Listed, hooks};
use verbline_verbs::{QueuePair, RemoteKey, RemoteMemory, Slot, WorkRequest};

use crate::transport::liveness_socket::LivenessSocket;
use crate::transport::long_messages::one_sided::OneSided;
use crate::transport::notices::LivenessKey;
use crate::transport::peer_clock::PeerClockCell;
use crate::transport::queue_pairs::{QpCountGuard, QpRts};
use crate::transport::send_queue::SendQueue;
use crate::transport::stall_watch::Awaited;

/// Time limit of a step. Far longer than a completion takes, unless the peer is stopped.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(1);

/// The bit of [`Connection::listed`] for the lane's connections with requests to flush.
pub(crate) const DIRTY: u8 = 0;

/// Its bit for the lane's connections with segments to fetch, in turn.
pub(crate) const FETCHING: u8 = 1;

/// A queue pair and its state.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) queue_pair: QueuePair,
    pub(crate) sends: SendQueue,
    pub(crate) one_sided: OneSided,
    /// The longest frame that both sides accept.
    pub(crate) frame_limit: usize,
    /// Frames shorter than this can be posted inline at once: 0 if the connection is not open or
    /// its chain has to be posted first.
    pub(crate) inline_end: usize,
    /// The value of `inline_end` while the connection is open and its chain is empty.
    open_inline_end: usize,
    /// In which of the lane's lists the connection is.
    pub(crate) listed: Listed,
    phase: Phase,
    /// True if the queue pair, in the error state, has reported that it takes no more receives.
    pub(crate) has_taken_last_receive: bool,
    pub(crate) key: LivenessKey,
    liveness: LivenessSocket,
    /// True if the peer is a process of this host, which has the same clock.
    pub(crate) is_on_this_host: bool,
    /// True if the peer executes READs, whatever other connections of the lane do: over TCP.
    pub(crate) is_read_by_peer: bool,
    /// The clock of a server on another host. `None` for clients, which get no requests with
    /// deadlines, and for peers on this host.
    pub(crate) peer_clock: Option<Arc<PeerClockCell>>,
    count_guard: QpCountGuard,
}

/// The stage of a connection's life.
#[derive(Debug)]
pub(crate) enum Phase {
    /// This side's queue pair is in RTS, but the client has not reported that its own is. The
    /// driver does not know the connection yet.
    QpRts(Box<Admitted>),
    /// Frames can be sent and received.
    Open,
    /// The connection is being closed.
    Closing(Box<Closing>),
}

/// The state of a connection that is being closed.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(super) step: Step,
    /// The time at which the next step starts even if this one is not done.
    pub(super) deadline: Instant,
    /// The reason reported to the driver; `None` if the driver has never seen the connection.
    pub(super) reason: Option<CloseReason>,
    /// The client's unit of the connection limit, if the driver has never seen the connection. The
    /// next client gets it after the queue pair is destroyed, because the lane has no more queue
    /// pairs than connections.
    pub(super) quota: Option<ConnectionQuota>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Delivering,
    Draining { quiet_polls: u32 },
    Flushing { quiet_polls: u32 },
}

impl Step {
    /// The start of the flushing step.
    pub(super) const FLUSHING: Self = Self::Flushing { quiet_polls: 0 };

    pub(super) fn is_flushing(self) -> bool {
        matches!(self, Self::Flushing { .. })
    }
}

/// What counts a connection until its queue pair is destroyed. The counts are decremented in this
/// order: a client that finds room in the second one finds it in the first one too.
pub(super) struct Guards {
    _count: QpCountGuard,
    _quota: Option<ConnectionQuota>,
}

impl Closing {
    pub(super) fn new(step: Step, reason: Option<CloseReason>) -> Self {
        Self {
            step,
            deadline: hooks::now() + STEP_LIMIT,
            reason,
            quota: None,
        }
    }

    /// Returns true if frames that arrive now go to the driver: frames that the peer sent before it
    /// ended.
    pub(crate) fn wants_frames(&self) -> bool {
        matches!(self.step, Step::Draining { .. })
    }
}

impl Connection {
    pub(crate) fn new(
        qp_rts: QpRts,
        liveness: LivenessSocket,
        key: LivenessKey,
        frame_limit: usize,
        limits: &Limits,
        phase: Phase,
    ) -> Self {
        let mut this = Self {
            queue_pair: qp_rts.queue_pair,
            sends: SendQueue::new(limits.signal_interval),
            one_sided: OneSided::new(qp_rts.read_depth),
            frame_limit,
            inline_end: 0,
            open_inline_end: frame_limit.min(limits.max_inline_len) + 1,
            listed: Listed::default(),
            has_taken_last_receive: false,
            phase,
            key,
            liveness,
            is_on_this_host: qp_rts.is_on_this_host,
            is_read_by_peer: qp_rts.is_over_tcp,
            peer_clock: None,
            count_guard: qp_rts.count_guard,
        };
        this.update_inline_end();
        this
    }

    fn update_inline_end(&mut self) {
        self.inline_end = if self.is_open() && self.sends.is_empty() {
            self.open_inline_end
        } else {
            0
        };
    }

    pub(crate) fn phase(&self) -> &Phase {
        &self.phase
    }

    /// Returns the state of closing, if the connection is being closed.
    pub(super) fn closing(&mut self) -> Option<&mut Closing> {
        match &mut self.phase {
            Phase::Closing(closing) => Some(closing),
            Phase::QpRts(_) | Phase::Open => None,
        }
    }

    /// Enters the next stage. Returns the previous one.
    pub(crate) fn enter(&mut self, phase: Phase) -> Phase {
        let before = std::mem::replace(&mut self.phase, phase);
        self.update_inline_end();
        before
    }

    /// Returns true if an entry of the send queue is not reserved.
    #[inline]
    pub(crate) fn has_entry(&self) -> bool {
        self.sends.has_entry(self.queue_pair.send_slots_free())
    }

    /// Appends a frame to the chain. Returns true if the chain is full and must be posted now.
    pub(crate) fn push(&mut self, slot: Slot, len: usize) -> bool {
        self.inline_end = 0;
        self.sends.push(slot, len)
    }

    /// Records that the queue pair has taken `count` requests of the chain.
    pub(crate) fn chain_posted(&mut self, count: usize) {
        self.sends.chain_posted(count);
        self.update_inline_end();
    }

    /// Takes the connection apart: its queue pair, which has to be destroyed before the guards are
    /// dropped, and the reason why it was closed if the driver has seen it.
    pub(super) fn into_parts(self) -> (QueuePair, Guards, Option<CloseReason>) {
        let (quota, reason) = match self.phase {
            Phase::Closing(closing) => (closing.quota, closing.reason),
            Phase::QpRts(_) | Phase::Open => (None, None),
        };
        let guards = Guards {
            _count: self.count_guard,
            _quota: quota,
        };
        (self.queue_pair, guards, reason)
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Returns the number of send-queue entries that wait for a completion.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue_pair.capabilities().max_send_wr - self.queue_pair.send_slots_free()
    }

    /// Returns what this side waits for.
    pub(super) fn awaited(&self) -> [Option<Awaited>; 2] {
        let is_due = self.in_flight() > self.sends.uncovered();
        let send = is_due.then(|| Awaited::Send(self.queue_pair.oldest_send()));
        let message = self.queue_pair.arriving_message();
        [send, message.map(Awaited::Message)]
    }

    /// Has a completion follow everything that was posted, so that the send queue is empty once all
    /// of it was delivered. Returns false if that takes an entry of the queue and none is free.
    ///
    /// The request that does so writes no bytes: its key is not checked (InfiniBand Architecture
    /// Specification, C9-88), and the peer's application does not see it.
    pub(super) fn cover_sends(&mut self) -> bool {
        if self.sends.uncovered() == 0 {
            return true;
        }
        if self.queue_pair.send_slots_free() == 0 {
            return false;
        }
        let nowhere = RemoteMemory {
            addr: 0,
            key: RemoteKey(0),
        };
        let request = WorkRequest::write(Vec::new(), nowhere).signaled();
        self.sends.count_one_sided(true);
        if let Err(error) = self.queue_pair.post(&mut vec![request], &mut drop) {
            // The step ends at its time limit.
            tracing::debug!(%error, "the end of a connection's sends cannot be seen");
        }
        true
    }

    /// Asserts the sums of the connection. `is_dirty`: the lane will flush it.
    pub(crate) fn assert_sums(&self, is_dirty: bool) {
        let (free, in_flight) = (self.queue_pair.send_slots_free(), self.in_flight());
        let is_plain = self.is_open() && self.sends.is_empty();
        let inline_end = if is_plain { self.open_inline_end } else { 0 };
        assert_eq!(
            self.inline_end, inline_end,
            "frames are posted at once below"
        );
        // When it ends, requests are rejected, and what was rejected is counted no more.
        if self.is_open() {
            assert!(is_dirty || !self.sends.awaits_flush(), "{:?}", self.sends);
            self.sends.assert_sums(free, in_flight);
            self.one_sided.assert_sums(in_flight);
        } else {
            assert!(self.sends.is_empty() && self.sends.slots() <= in_flight);
        }
    }

    /// Shuts down the TCP connection.
    pub(crate) fn shut_down(&self) {
        self.liveness.shut_down();
    }
}
