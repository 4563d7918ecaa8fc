//! One context as its process and its peers see it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::Node;
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::event_queue::EventQueue;
use crate::provider::soft::context::owner::{Owned, OwnerGuard};
use crate::provider::soft::context::ready_peers::ReadyPeer;
use crate::provider::soft::context::state::State;
use crate::provider::soft::shared::memory::{Mapping, SharedMemory};
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::ring::NotifierFiles;
use crate::provider::soft::shared::wake::{DomainReadyBits, InSharedMemory, Mapped};
use crate::provider::soft::shared::wake_socket::{WakeSockets, WakeToken};
use crate::verbs::types::{Forked, Gid, SoftOptions};

/// One context of the software device.
#[derive(Debug)]
pub(crate) struct Domain {
    /// The node's guard, within reach of every verb.
    fork_guard: ForkGuard,
    pub(crate) node: Arc<Node>,
    /// Identifies the context to peers.
    pub(crate) number: u32,
    /// The file of the context's notes, which peers get.
    notes: OwnedFd,
    /// The sockets with which peers wake the context.
    pub(crate) wake: WakeSockets,
    pub(crate) events: Arc<EventQueue>,
    state: Owned<State>,
    /// Arenas that peers have to map, by number; used at set-up only.
    arenas: Mutex<Vec<(u64, Arc<SharedMemory>)>>,
}

impl Domain {
    pub(crate) fn open(node: Arc<Node>, options: SoftOptions) -> io::Result<Arc<Self>> {
        let notes = SharedMemory::for_readers("verbline-notes", size_of::<ContextNotes>())?;
        let events = Arc::new(EventQueue::default());
        let state = State::new(mapped(notes.mapping)?, Arc::clone(&events), options);
        let domain = Arc::new(Self {
            fork_guard: node.fork_guard,
            number: node.next_serial(),
            node,
            notes: notes.fd,
            wake: WakeSockets::new()?,
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

    /// Makes the files of [`LinkMessage::Context`](super::super::link_message::LinkMessage) for a
    /// peer: how that peer notifies this context. They replace those that the peer had. The token
    /// names them to `forget_peer`.
    pub(crate) fn files_for(&self, gid: Gid) -> io::Result<(WakeToken, NotifierFiles)> {
        let notes = self.notes.try_clone()?;
        let bits = SharedMemory::for_writers("verbline-ready", size_of::<DomainReadyBits>())?;
        let mapped_bits = mapped(bits.mapping)?;
        let (token, peers_end) = self.wake.add()?;
        let peer = ReadyPeer {
            gid,
            bits: mapped_bits,
            wake: token,
        };
        let old = match self.enter() {
            Ok(mut state) => state.common.ready.add(peer),
            Err(_) => Some(peer),
        };
        self.release(old);
        Ok((token, [bits.fd, notes, peers_end]))
    }

    /// Releases what `files_for` made for a peer that has gone, unless newer ones have replaced it.
    pub(crate) fn forget_peer(&self, gid: Gid, wake: WakeToken) {
        let old = match self.enter() {
            Ok(mut state) if state.common.ready.wake_of(&gid) == Some(wake) => {
                state.forget_ready_peer(&gid)
            }
            _ => None,
        };
        self.release(old);
    }

    fn release(&self, peer: Option<ReadyPeer>) {
        if let Some(peer) = peer {
            self.wake.remove(peer.wake);
        }
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

fn mapped<T: InSharedMemory>(memory: Mapping) -> io::Result<Mapped<T>> {
    // The memory was made for the value.
    Mapped::new(Arc::new(memory)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
