//! [`Lane`]: a poller's resources on one device.
//!
//! Its methods are in several files: [`setup`](crate::device::setup) opens it, `connect` and
//! `accept` add connections, `transmit` and `receive` are the data path, and `close` closes
//! connections.
//!
//! A lane owns everything that belongs to one device: context, registration, pool, completion
//! queue, shared receive queue, reserve with its event thread, queue pairs and connections.
//!
//! The poller does not poll the device of a lane without connections; it only checks whether the
//! lane has a notice. A lane whose completion queue, shared receive queue or device has failed creates
//! no more queue pairs, so new connections use the next lane.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rpc_core::transport::{ConnectionId, Event, PeerClock, SlotsByState};
use verbline_verbs::for_transport::MemberList;
use verbline_verbs::log_limited;
use verbline_verbs::{CompletionChannel, CompletionQueue, Context};

use crate::transport::buf::RecvBuf;
use crate::transport::buffer_pool::BufferPool;
use crate::transport::connection::{Connection, DIRTY, Phase};
use crate::transport::connections::Connections;
use crate::transport::counters::{DeviceCounterReader, LaneCounterReader, LaneCounters};
use crate::transport::events::EventThread;
use crate::transport::liveness_socket::LivenessSocket;
use crate::transport::long_messages::state::LongMessages;
use crate::transport::notices::{LivenessKey, NoticeReceiver, NoticeSender};
use crate::transport::peer_clock::{PeerClockCell, monotonic_us};
use crate::transport::pending::Pending;
use crate::transport::plan::Plan;
use crate::transport::queue_pairs::{QpRts, QueuePairs};
use crate::transport::receive_queue::ReceiveQueue;
use crate::transport::reserve::{ReserveCounters, ReserveHandle};
use crate::transport::routes::Routes;
use crate::transport::stall_watch::StallWatch;

/// A poller's resources on one device: one context, one memory region, one completion queue, one
/// shared receive queue, and a queue pair for each connection over this device.
pub(crate) struct Lane {
    /// The lane's index among the poller's lanes, from 0.
    pub(crate) number: u32,
    /// True if all peers are processes of this host, which have the same clock.
    pub(crate) is_on_one_host: bool,
    /// What the lane has to do besides polling its device.
    pub(crate) pending: Arc<Pending>,
    /// True if the completion queue was armed when the poller last prepared to sleep.
    pub(crate) is_armed: bool,
    pub(crate) plan: Plan,
    pub(crate) pool: BufferPool,
    pub(crate) connections: Connections,
    pub(crate) routes: Routes,
    pub(crate) completion_queue: CompletionQueue,
    /// The channel on which the poller sleeps; `None` if it never sleeps.
    pub(crate) channel: Option<CompletionChannel>,
    /// Events for the driver that are older than any completion that has not been polled.
    pub(crate) queued: VecDeque<Event<RecvBuf>>,
    /// True if one of them is a call for which copies of long messages end early.
    pub(crate) has_queued_call: bool,
    pub(crate) receives: ReceiveQueue,
    pub(crate) long_messages: LongMessages,
    /// Connections with requests to flush.
    pub(crate) dirty: MemberList<DIRTY>,
    pub(crate) counters: Arc<LaneCounters>,
    pub(crate) device_counters: Arc<DeviceCounterReader>,
    pub(crate) notice_receiver: NoticeReceiver,
    /// Connections that are being closed.
    pub(crate) closing: Vec<u32>,
    /// Connection indexes by the key of their TCP connection, to handle notices. One entry for each
    /// connection.
    pub(crate) liveness_index: HashMap<LivenessKey, u32>,
    /// For sends that are stuck in the device.
    pub(crate) send_watch: StallWatch,
    /// For peers that stall while new clients wait.
    pub(crate) stall_watch: StallWatch,
    pub(crate) queue_pairs: Arc<QueuePairs>,
    pub(crate) notice_sender: NoticeSender,
    pub(crate) reserve_counters: Arc<ReserveCounters>,
    pub(crate) reserve: ReserveHandle,
    /// Kept alive as long as the lane. Only a simulation calls it.
    #[cfg_attr(not(feature = "test-util"), allow(dead_code))]
    pub(crate) events: EventThread,
    pub(crate) context: Context,
}

impl Lane {
    /// Returns the device's name.
    pub(crate) fn device(&self) -> &str {
        &self.plan.limits.device
    }

    /// Returns true if the lane's device is not polled, because the lane has no connections.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.has(Pending::IDLE)
    }

    /// Adds a connection whose queue pair is in RTS.
    pub(crate) fn add(
        &mut self,
        qp_rts: QpRts,
        liveness: impl Into<LivenessSocket>,
        key: LivenessKey,
        remote_frame_len: usize,
        phase: Phase,
    ) -> ConnectionId {
        let qp_num = qp_rts.queue_pair.qp_num();
        let slot_len = self.plan.limits.slot_len;
        let frame_limit = slot_len.min(remote_frame_len);
        if remote_frame_len < slot_len {
            log_limited!(
                info,
                local = slot_len,
                remote = remote_frame_len,
                "the peer's slots are shorter: frames to it are limited to their length"
            );
        }
        let id = self.connections.insert(Connection::new(
            qp_rts,
            liveness.into(),
            key,
            frame_limit,
            &self.plan.limits,
            phase,
        ));
        self.routes.insert(qp_num, id.index);
        self.liveness_index.insert(key, id.index);
        self.pending.clear(Pending::NO_CONNECTIONS | Pending::IDLE);
        id
    }

    /// Records where the clock of a connection's server is published.
    pub(crate) fn set_peer_clock(&mut self, id: ConnectionId, clock: Arc<PeerClockCell>) {
        if let Some(connection) = self.connections.get(id) {
            connection.peer_clock = Some(clock);
        }
    }

    /// Returns the clock of a connection's peer, if it is known well enough.
    #[inline]
    pub(crate) fn peer_clock(&self, id: ConnectionId) -> Option<PeerClock> {
        if self.is_on_one_host {
            return Some(PeerClock::SAME_HOST);
        }
        let connection = self.connections.get_ref(id)?;
        if connection.is_on_this_host {
            return Some(PeerClock::SAME_HOST);
        }
        connection
            .peer_clock
            .as_ref()?
            .load()
            .peer_clock(monotonic_us())
    }

    pub(crate) fn slots_by_state(&self) -> SlotsByState {
        SlotsByState {
            receives_posted: self.receives.outstanding() as u32,
            receives_reserved: self.reserve_counters.held.load(Ordering::Relaxed),
            ..self.pool.by_state()
        }
    }

    pub(crate) fn limit_armings(&self) -> u64 {
        self.reserve_counters.armed.load(Ordering::Relaxed)
    }

    /// Returns how many look-ups have not found what must be there.
    pub(crate) fn misses(&self) -> u64 {
        self.connections.misses() + self.long_messages.misses()
    }

    pub(crate) fn counter_reader(&self) -> LaneCounterReader {
        LaneCounterReader {
            counters: Arc::clone(&self.counters),
            reserve: Arc::clone(&self.reserve_counters),
            device: Arc::downgrade(&self.device_counters),
        }
    }

    /// Publishes the counters that are cheap to read on this thread only.
    pub(crate) fn publish_counters(&self) {
        self.counters.missed.set(self.misses());
        if self.context.counts_on_data_path() {
            self.counters.rnr.set(self.device_counters.rnr());
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Store the last values for counter readers that outlive the lane.
        self.counters.missed.set(self.misses());
        self.counters.rnr.set(self.device_counters.rnr());
        let mut are_destroyed = true;
        for connection in self.connections.drain() {
            connection.shut_down();
            // The slots' memory is freed with the region, when the last slot is dropped.
            are_destroyed &= connection.queue_pair.destroy(&mut drop);
        }
        if !are_destroyed {
            self.leak_exposures();
        }
        // The memory of long messages goes next, with `long_messages`: no queue pair uses it.
    }
}
