//! The state of one context, behind its owner word.
//!
//! The holder of the owner word may access `State`. These modules implement its operations:
//! `transmit` (sends go into rings), `receive` (messages come out of rings), `issue`, `execute` and
//! `responses` (the same for requests other than plain messages), `progress` (the loop over hot
//! rings and awaited acknowledgements), `sleep` (armed completion queues), `retry` (timers),
//! `failure` (errors and flushing), `queue_pair` (set-up), `unreliable` and `message` (unreliable
//! queue pairs), `window_table` (memory windows and remote access).

use std::sync::Arc;

use slab::Slab;

use super::event_queue::EventQueue;
use super::queue_pair::SoftQueuePair;
use super::regions::Regions;
use super::window_table::Windows;
use super::work_queues::{CompletionRing, ReceiveQueue};
use crate::provider::soft::shared::memory::SharedMemory;
use crate::verbs::types::{AsyncEvent, DeviceCounters, SoftOptions};

/// The part of a context that the holder of the owner word may access.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) regions: Regions,
    pub(crate) windows: Windows,
    pub(crate) completion_queues: Slab<CompletionRing>,
    pub(crate) shared_receive_queues: Slab<SharedReceives>,
    pub(crate) queue_pairs: Slab<SoftQueuePair>,
    /// Number of the next protection domain: protection domains are plain numbers.
    pub(crate) next_protection_domain: u32,
    /// Queue pairs whose rings are polled directly.
    pub(crate) hot: Vec<u32>,
    /// Queue pairs with something that a poll has to wait for: a signaled send, a send that found
    /// no room, or a failure that has to complete in order.
    pub(crate) awaiting: Vec<u32>,
    /// Queue pairs with unacknowledged sends, signaled or not; the engine checks them at each tick.
    pub(crate) unacked: Vec<u32>,
    /// Completion queues that overran and whose queue pairs have not been failed yet.
    pub(crate) overrun: Vec<u32>,
    /// Polls so far, and polls at the engine's last tick. They differ if the application polls.
    pub(crate) polls: u64,
    pub(crate) polls_at_tick: u64,
    /// One more than the highest index of a queue pair so far.
    pub(crate) qp_index_end: usize,
    /// True if peers have to wake the engine for one-sided requests, because no thread has polled
    /// since its last tick.
    pub(crate) is_unattended: bool,
    /// True if the sleep note tells peers that no thread polls: see `sleep`.
    pub(crate) is_asleep: bool,
    pub(crate) ready: Arc<SharedMemory>,
    pub(crate) events: Arc<EventQueue>,
    pub(crate) options: SoftOptions,
    pub(crate) counters: DeviceCounters,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    pub(crate) queue: ReceiveQueue,
    pub(crate) number: u32,
    pub(crate) domain: u32,
}

impl State {
    pub(crate) fn new(
        ready: Arc<SharedMemory>,
        events: Arc<EventQueue>,
        options: SoftOptions,
    ) -> Self {
        Self {
            regions: Regions::default(),
            windows: Windows::default(),
            completion_queues: Slab::new(),
            shared_receive_queues: Slab::new(),
            queue_pairs: Slab::new(),
            next_protection_domain: 0,
            hot: Vec::new(),
            awaiting: Vec::new(),
            unacked: Vec::new(),
            overrun: Vec::new(),
            polls: 0,
            polls_at_tick: 0,
            qp_index_end: 0,
            is_unattended: false,
            is_asleep: false,
            ready,
            events,
            options,
            counters: DeviceCounters::default(),
        }
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.events.raise(event);
    }
}
