//! The state of one context, behind its lock.
//!
//! The holder of the context's lock may access [`State`]: the queue pairs, and what they have in common
//! ([`Common`]). Most operations concern one queue pair. They are methods of `SoftQueuePair` that
//! get `Common` beside it, so that a function finds its queue pair once.
//!
//! A queue pair has two halves, which know the rules and no carrier: the
//! [`initiator`](super::initiator), which says whether a request may begin and completes it, and the
//! [`responder`](super::responder), which says whether a peer's request is executed and where its bytes
//! go. Its [`link`](super::link) is a pair of rings or a TCP connection, which carries requests and knows
//! no rules: `rings` and `tcp`. `reliable` brings them together, for one queue pair and for all.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use slab::Slab;

use super::completion_queues::CompletionQueues;
use super::event_queue::EventQueue;
use super::lists::Lists;
use super::memory::Memory;
use super::pending::Pending;
use super::queue_pair::SoftQueuePair;
use super::queue_pairs::QueuePairs;
use super::ready_peers::ReadyPeers;
use super::receive_queue::SharedReceives;
use super::tcp_links::TcpLinks;
use crate::provider::soft::shared::commit::Commit;
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::wake::Mapped;
use crate::types::{DeviceCounters, QpNum, SoftOptions};

/// The part of a context that the holder of the context's lock may access.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) queue_pairs: QueuePairs,
    pub(crate) common: Common,
}

/// What the queue pairs of a context have in common.
#[derive(Debug)]
pub(crate) struct Common {
    /// What polls have to do besides looking at rings.
    pub(crate) pending: Pending,
    /// Polls so far, and polls at the engine's last tick. They differ if the application polls.
    pub(crate) polls: u64,
    pub(crate) polls_at_tick: u64,
    pub(crate) lists: Lists,
    /// Messages that polls have taken without looking beyond rings, since they last did.
    pub(crate) streak: u32,
    pub(crate) ready: ReadyPeers,
    pub(crate) tcp: TcpLinks,
    /// What peers can read of the context.
    pub(crate) notes: Mapped<ContextNotes>,
    pub(crate) counters: DeviceCounters,
    pub(crate) memory: Memory,
    pub(crate) completion_queues: CompletionQueues,
    pub(crate) shared_receive_queues: Slab<SharedReceives>,
    /// Number of the next protection domain: protection domains are plain numbers.
    pub(crate) next_protection_domain: u32,
    /// The value of `polls` from which polls look at acknowledgements that nothing else depends on.
    pub(crate) acks_due: u64,
    /// When the engine last checked the queue pairs with unacknowledged sends.
    pub(crate) timers_expired_at: Option<Instant>,
    pub(crate) events: Arc<EventQueue>,
    /// Set when a ring is blocked. When an arena arrives, the engine clears it and calls
    /// [`State::arena_arrived`].
    pub(crate) awaits_arena: Arc<AtomicBool>,
    pub(crate) options: SoftOptions,
}

/// What a poll has found with its first look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// There is nothing to do.
    Nothing,
    /// A message lies in the only hot ring.
    Message(Commit),
    /// There may be something else.
    Unclear,
}

impl State {
    pub(crate) fn new(
        notes: Mapped<ContextNotes>,
        events: Arc<EventQueue>,
        tcp: TcpLinks,
        options: SoftOptions,
    ) -> Self {
        Self {
            queue_pairs: QueuePairs::new(),
            common: Common {
                pending: Pending::default(),
                polls: 0,
                polls_at_tick: 0,
                lists: Lists::default(),
                streak: 0,
                ready: ReadyPeers::default(),
                tcp,
                memory: Memory::new(
                    notes.clone(),
                    #[cfg(feature = "test-util")]
                    options.window_fault,
                ),
                notes,
                counters: DeviceCounters::default(),
                completion_queues: CompletionQueues::default(),
                shared_receive_queues: Slab::new(),
                next_protection_domain: 0,
                acks_due: 0,
                timers_expired_at: None,
                events,
                awaits_arena: Arc::default(),
                options,
            },
        }
    }

    /// Returns a queue pair, which has not been destroyed, and what it has in common with the
    /// others.
    #[inline]
    pub(crate) fn split(&mut self, qp_index: u32) -> (&mut SoftQueuePair, &mut Common) {
        (&mut self.queue_pairs[qp_index], &mut self.common)
    }

    /// Finds a queue pair by its index and its number: of what comes from outside of the context, the
    /// index may belong to another queue pair by now.
    pub(crate) fn find(
        &mut self,
        qp_index: u32,
        number: QpNum,
    ) -> Option<(&mut SoftQueuePair, &mut Common)> {
        let qp = self.queue_pairs.find(qp_index, number)?;
        Some((qp, &mut self.common))
    }

    /// Finds a queue pair that a list has.
    #[inline]
    #[track_caller]
    pub(crate) fn at(&mut self, qp_index: u32) -> Option<(&mut SoftQueuePair, &mut Common)> {
        let qp = self.queue_pairs.at(qp_index)?;
        Some((qp, &mut self.common))
    }
}
