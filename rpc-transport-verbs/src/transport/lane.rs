//! [`Lane`]: what a poller owns of one device.
//!
//! Each thing it does has a file: [`setup`](crate::device::setup) opens it, `connect` brings
//! connections, `transmit` and `receive` are the data path, `close` ends connections.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rpc_core::transport::{ConnectionId, SlotsByPlace};

use crate::transport::buffer_pool::BufferPool;
use crate::transport::connection::{Connection, Connections, Phase};
use crate::transport::counters::{DeviceCounts, LaneMeter, Tally};
use crate::transport::events::EventThread;
use crate::transport::lifeline::Lifeline;
use crate::transport::mailbox::{Inbox, LineKey, Mailbox};
use crate::transport::plan::Plan;
use crate::transport::queue_pairs::{QueuePairs, Ready};
use crate::transport::receive_queue::ReceiveQueue;
use crate::transport::reserve::{Reserve, ReserveCounts};
use crate::transport::routes::Routes;
use crate::verbs::{CompletionChannel, CompletionQueue, Context, WorkCompletion};

/// A poller's share of one device: one context, one registration, one completion queue, one shared
/// receive queue, and a queue pair for each connection that goes over this device.
pub(crate) struct Lane {
    /// Its place among the poller's lanes, from 0.
    pub(crate) number: u32,
    /// No connections, and nothing has come from the device since the last of them ended: there is
    /// nothing to poll for until a notice brings the next one.
    pub(crate) is_idle: bool,
    /// Its completion queue was armed when the poller last made ready to sleep.
    pub(crate) is_armed: bool,
    pub(crate) plan: Plan,
    pub(crate) pool: BufferPool,
    pub(crate) connections: Connections,
    pub(crate) routes: Routes,
    pub(crate) completion_queue: CompletionQueue,
    /// What the poller sleeps at; `None` if it never does.
    pub(crate) channel: Option<CompletionChannel>,
    /// The poll's batch, kept for its memory.
    pub(crate) completions: Vec<WorkCompletion>,
    pub(crate) receives: ReceiveQueue,
    /// Connections with something to flush.
    pub(crate) dirty: Vec<u32>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) device_counts: Arc<DeviceCounts>,
    pub(crate) inbox: Inbox,
    /// Connections on their way to their end.
    pub(crate) closing: Vec<u32>,
    /// By the name of their TCP connection, for notices: one entry for each connection.
    pub(crate) lines: HashMap<LineKey, u32>,
    pub(crate) queue_pairs: Arc<QueuePairs>,
    pub(crate) mailbox: Mailbox,
    pub(crate) reserve_counts: Arc<ReserveCounts>,
    pub(crate) reserve: Reserve,
    /// Held for as long as the lane; only a simulation steps it.
    #[cfg_attr(not(feature = "test-util"), allow(dead_code))]
    pub(crate) events: EventThread,
    pub(crate) context: Context,
}

impl Lane {
    /// The device's name.
    pub(crate) fn device(&self) -> &str {
        &self.plan.limits.device
    }

    /// Takes in a connection that stands ready.
    pub(crate) fn add(
        &mut self,
        ready: Ready,
        line: impl Into<Lifeline>,
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
            line.into(),
            key,
            frame_limit,
            self.plan.limits.signal_interval,
            phase,
        ));
        self.routes.insert(qp_num, id.index);
        self.lines.insert(key, id.index);
        self.is_idle = false;
        id
    }

    pub(crate) fn slots_by_place(&self) -> SlotsByPlace {
        SlotsByPlace {
            receives_posted: self.receives.outstanding() as u32,
            receives_reserved: self.reserve_counts.in_hand.load(Ordering::Relaxed),
            ..self.pool.by_place()
        }
    }

    pub(crate) fn limit_armings(&self) -> u64 {
        self.reserve_counts.armed.load(Ordering::Relaxed)
    }

    pub(crate) fn meter(&self) -> LaneMeter {
        LaneMeter {
            tally: Arc::clone(&self.tally),
            reserve: Arc::clone(&self.reserve_counts),
            device: Arc::downgrade(&self.device_counts),
        }
    }

    /// Says what only this thread reads at little cost.
    pub(crate) fn publish(&self) {
        if self.context.counts_on_data_path() {
            self.tally.rnr.set(self.device_counts.rnr());
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // For meters that are read later.
        self.tally.rnr.set(self.device_counts.rnr());
        for connection in self.connections.drain() {
            connection.hang_up();
            // Its slots go with the registration, which ends when the last of them is dropped.
            connection.queue_pair.destroy(&mut drop);
        }
    }
}
