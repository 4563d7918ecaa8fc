//! The state of one context, behind its owner word.
//!
//! The holder of the owner word may access [`State`]: the queue pairs, and what they have in common
//! ([`Common`]). Most operations concern one queue pair. They are methods of `SoftQueuePair` that
//! get `Common` beside it, so that a function finds its queue pair once.
//!
//! A queue pair has two halves, which know the rules and no carrier: the
//! [`initiator`](super::initiator), which says whether a request may begin and completes it, and the
//! [`responder`](super::responder), which says whether a peer's request is executed and where its bytes
//! go. Its [`link`](super::link) is a pair of rings or a TCP connection. These modules carry requests
//! between them: `post` (into the send queue), `transmit` and `issue` (into the ring), `receive` and
//! `execute` (out of it), `responses` and `acks` (back), and for TCP those of `reliable::tcp`. `retry`
//! has the timers, `failure` errors and flushing, `transitions` the set-up.
//!
//! The operations on all queue pairs are methods of `State`: `poll`, `progress` (the loop over hot rings
//! and awaited acknowledgements) and `sleep` (armed completion queues).

use std::sync::Arc;
use std::time::Instant;

use slab::Slab;

use super::cold_rings::ColdRings;
use super::completion_queues::{Completion, CompletionQueues};
use super::event_queue::EventQueue;
use super::memory::Memory;
use super::pending::{Matter, Pending};
use super::queue_pair::SoftQueuePair;
use super::ready_peers::ReadyPeers;
use super::receive_queue::SharedReceives;
use super::tcp_links::TcpLinks;
use crate::provider::soft::shared::commit::Commit;
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::ring::NextMessage;
use crate::provider::soft::shared::wake::Mapped;
use crate::types::{AsyncEvent, DeviceCounters, SoftOptions};

/// The part of a context that the holder of the owner word may access.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) queue_pairs: Slab<SoftQueuePair>,
    pub(crate) common: Common,
}

/// What the queue pairs of a context have in common.
#[derive(Debug)]
pub(crate) struct Common {
    /// What polls have to do besides looking at hot rings.
    pub(crate) pending: Pending,
    /// Polls so far, and polls at the engine's last tick. They differ if the application polls.
    pub(crate) polls: u64,
    pub(crate) polls_at_tick: u64,
    /// The rings that are polled directly.
    pub(crate) hot: Vec<HotRing>,
    /// The rings that are not: their senders announce messages by ready bits.
    pub(crate) cold: ColdRings,
    /// Index in `hot` of the ring that the next poll looks at first.
    pub(crate) first_look: usize,
    /// Messages that polls have taken without looking beyond hot rings, since they last did.
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
    /// Queue pairs with something that a poll has to wait for: a signaled send, a send that found
    /// no room, or a failure that has to complete in order. The matter `Awaiting` is pending
    /// exactly while there are any.
    pub(crate) awaiting: Vec<u32>,
    /// The value of `polls` from which polls look at acknowledgements that nothing else depends on.
    pub(crate) acks_due: u64,
    /// Queue pairs with unacknowledged sends, signaled or not; the engine checks them at each tick.
    pub(crate) unacked: Vec<u32>,
    /// When the engine last checked them.
    pub(crate) timers_expired_at: Option<Instant>,
    /// One more than the highest index of a queue pair so far.
    pub(crate) qp_index_end: usize,
    pub(crate) events: Arc<EventQueue>,
    pub(crate) options: SoftOptions,
}

/// A ring that is polled directly.
#[derive(Debug)]
pub(crate) struct HotRing {
    /// Where the ring's next message will appear. The code that takes messages keeps it in step
    /// with the queue pair's receiver.
    pub(crate) next: NextMessage,
    pub(crate) qp_index: u32,
    /// Consecutive polls that found the ring empty.
    pub(crate) empty_polls: u32,
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
            queue_pairs: Slab::new(),
            common: Common {
                pending: Pending::default(),
                polls: 0,
                polls_at_tick: 0,
                hot: Vec::new(),
                cold: ColdRings::default(),
                first_look: 0,
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
                awaiting: Vec::new(),
                acks_due: 0,
                unacked: Vec::new(),
                timers_expired_at: None,
                qp_index_end: 0,
                events,
                options,
            },
        }
    }

    /// Returns a queue pair, which has not been destroyed, and what it has in common with the
    /// others.
    #[inline]
    pub(crate) fn split(&mut self, qp_index: u32) -> (&mut SoftQueuePair, &mut Common) {
        (&mut self.queue_pairs[qp_index as usize], &mut self.common)
    }
}

impl Common {
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.events.raise(event);
    }

    /// Adds a completion to a completion queue.
    #[inline]
    pub(crate) fn complete(&mut self, cq: usize, completion: Completion) {
        self.pending.add(Matter::Completions);
        self.completion_queues.push(cq, completion);
    }

    /// Makes polls look at the links over TCP as long as there are any.
    pub(crate) fn note_tcp_links(&mut self) {
        if self.tcp.is_empty() {
            self.pending.remove(Matter::TcpLinks);
        } else {
            self.pending.add(Matter::TcpLinks);
        }
    }

    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.pending.has(Matter::Asleep)
    }

    /// Returns true if a thread polls the context.
    pub(crate) fn is_polled(&self) -> bool {
        !self.is_asleep() && !self.pending.has(Matter::Unattended)
    }
}
