//! The state of one context, behind its owner word.
//!
//! `State` is what the owner may access. These modules implement its operations: `transmit` (sends
//! go into rings), `receive` (messages come out of rings), `issue`, `execute` and `answers` (the
//! same for requests other than plain messages), `progress` (the loop over hot rings and awaited
//! acknowledgements), `sleep` (armed completion queues), `retry` (timers), `failure` (errors and
//! flushing), `queue_pair` (set-up), `unreliable` and `message` (unreliable queue pairs),
//! `window_table` (memory windows and remote access).

use std::sync::{Arc, Mutex, PoisonError};

use slab::Slab;

use super::event_queue::EventQueue;
use super::node::Node;
use super::owner::{Inside, Owned};
use super::queue_pair::SoftQueuePair;
use super::regions::Regions;
use super::ring::RingSender;
use super::shared_memory::SharedMemory;
use super::wake::DomainReadyBits;
use super::wake_file::WakeFile;
use super::window_table::Windows;
use super::work_queues::{CompletionRing, ReceiveQueue};
use crate::verbs::{DeviceCounters, Forked, Gid, SoftOptions};

/// One context of the software device.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) node: Arc<Node>,
    /// Identifies the context to peers.
    pub(super) number: u32,
    /// The ready bits, which peers set.
    pub(super) ready: Arc<SharedMemory>,
    /// The eventfd that peers write to wake the context.
    pub(super) wake: WakeFile,
    pub(super) events: Arc<EventQueue>,
    state: Owned<State>,
    /// Arenas that peers have to map, by number; used at set-up only.
    arenas: Mutex<Vec<(u64, Arc<SharedMemory>)>>,
}

/// The part of a context that the holder of the owner word may access.
#[derive(Debug)]
pub(super) struct State {
    pub(super) regions: Regions,
    pub(super) windows: Windows,
    pub(super) completion_queues: Slab<CompletionRing>,
    pub(super) shared_receive_queues: Slab<SharedReceives>,
    pub(super) queue_pairs: Slab<SoftQueuePair>,
    /// Number of the next protection domain: protection domains are plain numbers.
    pub(super) next_protection_domain: u32,
    /// Queue pairs whose rings are polled directly.
    pub(super) hot: Vec<u32>,
    /// Queue pairs with something that a poll has to wait for: a signaled send, a send that found
    /// no room, or a failure that has to complete in order.
    pub(super) awaiting: Vec<u32>,
    /// Queue pairs with unacknowledged sends, signaled or not; the engine checks them at each tick.
    pub(super) unacked: Vec<u32>,
    /// Completion queues that overran and whose queue pairs have not been failed yet.
    pub(super) overrun: Vec<u32>,
    /// Polls so far, and polls at the engine's last tick. They differ if the application polls.
    pub(super) polls: u64,
    pub(super) polls_at_tick: u64,
    /// One more than the highest index of a queue pair so far.
    pub(super) places: usize,
    /// True if peers have to wake the engine for one-sided requests, because no thread has polled
    /// since its last tick.
    pub(super) is_unattended: bool,
    /// True if peers are told that no thread polls: see `sleep`.
    pub(super) is_asleep: bool,
    pub(super) ready: Arc<SharedMemory>,
    pub(super) events: Arc<EventQueue>,
    pub(super) options: SoftOptions,
    pub(super) counters: DeviceCounters,
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct SharedReceives {
    pub(super) queue: ReceiveQueue,
    pub(super) number: u32,
    pub(super) domain: u32,
}

/// A ring to send into, as received over a link.
#[derive(Debug)]
pub(super) struct NewRing {
    pub(super) gid: Gid,
    pub(super) qp_num: u32,
    pub(super) sender: RingSender,
}

impl Domain {
    pub(super) fn open(node: Arc<Node>, options: SoftOptions) -> std::io::Result<Arc<Self>> {
        let len = size_of::<DomainReadyBits>();
        let ready = Arc::new(SharedMemory::for_writers("verbline-ready", len)?);
        let events = Arc::new(EventQueue::default());
        let state = State {
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
            places: 0,
            is_unattended: false,
            is_asleep: false,
            ready: Arc::clone(&ready),
            events: Arc::clone(&events),
            options,
            counters: DeviceCounters::default(),
        };
        let domain = Arc::new(Self {
            number: node.next_serial(),
            node,
            ready,
            wake: WakeFile::new()?,
            events,
            state: Owned::new(state),
            arenas: Mutex::default(),
        });
        domain.node.add_context(&domain);
        Ok(domain)
    }

    /// Becomes the owner, waiting until the current owner has left.
    #[inline]
    pub(super) fn enter(&self) -> Result<Inside<'_, State>, Forked> {
        // First: in the child of a fork, a thread that does not exist there may hold the word.
        self.node.check()?;
        Ok(self.state.enter())
    }

    /// Becomes the owner if the word is free.
    pub(super) fn try_enter(&self) -> Option<Inside<'_, State>> {
        self.state.try_enter()
    }

    pub(super) fn arenas(&self) -> Vec<(u64, Arc<SharedMemory>)> {
        self.arenas
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn add_arena(&self, number: u64, memory: Arc<SharedMemory>) {
        self.arenas
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((number, memory));
    }

    pub(super) fn remove_arena(&self, number: u64) {
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.retain(|(arena, _)| *arena != number);
    }
}
