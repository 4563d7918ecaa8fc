//! One context as its process and its peers see it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::link_message::CONTEXT_FILES;
use super::Node;
use crate::event_fd::EventFd;
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::event_queue::EventQueue;
use crate::provider::soft::context::owner::{Owned, OwnerGuard};
use crate::provider::soft::context::state::State;
use crate::provider::soft::shared::memory::SharedMemory;
use crate::provider::soft::shared::wake::DomainReadyBits;
use crate::verbs::types::{Forked, SoftOptions};

/// One context of the software device.
#[derive(Debug)]
pub(crate) struct Domain {
    /// The node's guard, within reach of every verb.
    fork_guard: ForkGuard,
    pub(crate) node: Arc<Node>,
    /// Identifies the context to peers.
    pub(crate) number: u32,
    /// The ready bits, which peers set.
    pub(crate) ready: Arc<SharedMemory>,
    /// The eventfd that peers write to wake the context.
    pub(crate) wake: EventFd,
    pub(crate) events: Arc<EventQueue>,
    state: Owned<State>,
    /// Arenas that peers have to map, by number; used at set-up only.
    arenas: Mutex<Vec<(u64, Arc<SharedMemory>)>>,
}

impl Domain {
    pub(crate) fn open(node: Arc<Node>, options: SoftOptions) -> std::io::Result<Arc<Self>> {
        let len = size_of::<DomainReadyBits>();
        let ready = Arc::new(SharedMemory::for_writers("verbline-ready", len)?);
        let events = Arc::new(EventQueue::default());
        let state = State::new(Arc::clone(&ready), Arc::clone(&events), options);
        let domain = Arc::new(Self {
            fork_guard: node.fork_guard,
            number: node.next_serial(),
            node,
            ready,
            wake: EventFd::new()?,
            events,
            state: Owned::new(state),
            arenas: Mutex::default(),
        });
        domain.node.add_context(&domain);
        Ok(domain)
    }

    /// Acquires the owner word, after waiting for its current holder to release it.
    #[inline]
    pub(crate) fn enter(&self) -> Result<OwnerGuard<'_, State>, Forked> {
        self.check()?;
        Ok(self.state.enter())
    }

    /// Fails in the child of a fork. Every use of the context checks this first: there, the owner
    /// word may be held by a thread that does not exist.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        #[cfg(feature = "test-util")]
        self.node.check()?;
        self.fork_guard.check()
    }

    /// Acquires the owner word if it is free.
    pub(crate) fn try_enter(&self) -> Option<OwnerGuard<'_, State>> {
        self.state.try_enter()
    }

    /// Returns the files of [`LinkMessage::Context`](super::super::link_message::LinkMessage): how
    /// peers notify this context.
    pub(super) fn files_for_peers(&self) -> [BorrowedFd<'_>; CONTEXT_FILES] {
        [
            self.ready.fd.as_fd(),
            self.wake.as_fd(),
            self.node.peer_wake.as_fd(),
        ]
    }

    pub(crate) fn arenas(&self) -> Vec<(u64, Arc<SharedMemory>)> {
        self.arenas
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn add_arena(&self, number: u64, memory: Arc<SharedMemory>) {
        self.arenas
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((number, memory));
    }

    pub(crate) fn remove_arena(&self, number: u64) {
        let mut arenas = self.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.retain(|(arena, _)| *arena != number);
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // The child of a fork must not speak for its parent.
        if self.check().is_ok() {
            self.node.withdraw_context(self.number);
        }
    }
}
