//! One context as its process and its peers see it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use biased_lock::{BiasedGuard, BiasedLock};
use rustix::event::epoll;

use super::Node;
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::event_queue::EventQueue;
use crate::provider::soft::context::ready_peers::ReadyPeer;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::tcp_links::TcpLinks;
use crate::provider::soft::shared::announcements::{Announced, AnnouncementPage};
use crate::provider::soft::shared::memory::{Mapping, SharedMemory};
use crate::provider::soft::shared::published::ContextNotes;
use crate::provider::soft::shared::ring::NotifierFiles;
use crate::provider::soft::shared::wake::{InSharedMemory, Mapped};
use crate::provider::soft::shared::wake_socket::{WakeSockets, WakeToken};
use crate::provider::soft::wire::hello::LinkAddress;
use crate::types::{Forked, Gid, SoftOptions, SoftPath};

/// The GIDs of a context, by their index in the port's table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gids {
    /// For shared memory or for TCP.
    One(Gid),
    Two {
        shared_memory: Gid,
        tcp: Gid,
    },
}

impl Gids {
    /// Returns the first GID, which is also that of unreliable queue pairs.
    pub(crate) fn first(self) -> Gid {
        match self {
            Self::One(gid) => gid,
            Self::Two { shared_memory, .. } => shared_memory,
        }
    }

    /// Returns the GID for TCP.
    pub(crate) fn tcp(self) -> Option<Gid> {
        match self {
            Self::One(gid) => LinkAddress::of_gid(gid).map(|_| gid),
            Self::Two { tcp, .. } => Some(tcp),
        }
    }

    /// Returns true if peers in shared memory may reach the context.
    pub(crate) fn has_shared_memory(self) -> bool {
        match self {
            Self::One(gid) => LinkAddress::of_gid(gid).is_none(),
            Self::Two { .. } => true,
        }
    }

    /// Returns the GID with this index.
    pub(crate) fn get(self, index: u8) -> Option<Gid> {
        match (self, index) {
            (
                Self::One(gid)
                | Self::Two {
                    shared_memory: gid, ..
                },
                0,
            ) => Some(gid),
            (Self::Two { tcp, .. }, 1) => Some(tcp),
            _ => None,
        }
    }

    pub(crate) fn count(self) -> u8 {
        match self {
            Self::One(_) => 1,
            Self::Two { .. } => 2,
        }
    }
}

/// One context of the software device.
#[derive(Debug)]
pub(crate) struct Domain {
    /// The node's guard, within reach of every verb.
    fork_guard: ForkGuard,
    pub(crate) node: Arc<Node>,
    /// Identifies the context to peers.
    pub(crate) number: u32,
    /// The file of the context's notes, which peers in shared memory get.
    notes: Option<OwnedFd>,
    /// The sockets with which peers wake the context.
    pub(crate) wake: WakeSockets,
    /// The context's GIDs: one for each path.
    pub(crate) gids: Gids,
    /// The epoll set of the context's TCP connections, if it may have any.
    pub(crate) tcp_files: Option<Arc<OwnedFd>>,
    /// The engine's event token of that set.
    pub(crate) token: u64,
    pub(crate) events: Arc<EventQueue>,
    /// The flag of [`Common`](super::super::super::context::state::Common), which the engine reads without
    /// the context's lock.
    pub(crate) awaits_arena: Arc<AtomicBool>,
    state: BiasedLock<State>,
    /// Arenas that peers have to map, by number; used at set-up only.
    arenas: Mutex<Vec<(u64, Arc<SharedMemory>)>>,
}

impl Domain {
    pub(crate) fn open(node: Arc<Node>, options: SoftOptions) -> io::Result<Arc<Self>> {
        let events = Arc::new(EventQueue::default());
        let token = node.next_token();
        let gids = match options.path {
            SoftPath::SharedMemory => Gids::One(node.gid),
            SoftPath::Tcp { accept_at } => Gids::One(node.tcp_gid(accept_at)?),
            SoftPath::Either { accept_at } => Gids::Two {
                shared_memory: node.gid,
                tcp: node.tcp_gid(accept_at)?,
            },
        };
        let notes_len = size_of::<ContextNotes>();
        let (notes, notes_file) = if gids.has_shared_memory() {
            let SharedMemory { mapping, fd } =
                SharedMemory::for_readers("verbline-note", notes_len)?;
            (mapping, Some(fd))
        } else {
            (Mapping::private(notes_len)?, None)
        };
        let tcp_files = match gids.tcp() {
            Some(_) => Some(Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)),
            None => None,
        };
        let engine = (Arc::clone(&node.epoll), token);
        let tcp = TcpLinks::new(tcp_files.clone(), engine)?;
        let state = State::new(mapped(notes)?, Arc::clone(&events), tcp, options);
        let awaits_arena = Arc::clone(&state.common.awaits_arena);
        let domain = Arc::new(Self {
            fork_guard: node.fork_guard,
            number: node.next_serial(),
            node,
            notes: notes_file,
            wake: WakeSockets::new()?,
            gids,
            tcp_files,
            token,
            events,
            awaits_arena,
            state: BiasedLock::new(state),
            arenas: Mutex::default(),
        });
        domain.node.add_context(&domain);
        Ok(domain)
    }

    /// Enters the context, after waiting for the thread that is inside.
    #[inline]
    pub(crate) fn enter(&self) -> Result<BiasedGuard<'_, State>, Forked> {
        self.check()?;
        Ok(self.state.enter())
    }

    /// Fails in the child of a fork. Every use of the context checks this first: there, a
    /// thread may be inside that does not exist.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        #[cfg(feature = "test-util")]
        self.node.check()?;
        self.fork_guard.check()
    }

    /// Enters the context if no thread is inside.
    pub(crate) fn try_enter(&self) -> Option<BiasedGuard<'_, State>> {
        self.state.try_enter()
    }

    /// Makes the files of [`LinkMessage::Context`](super::super::link_message::LinkMessage) for a
    /// peer: how that peer notifies this context. They replace those that the peer had. The token
    /// names them to `forget_peer`.
    pub(crate) fn files_for(&self, gid: Gid) -> io::Result<(WakeToken, NotifierFiles)> {
        let no_notes = || io::Error::other("no peer in shared memory can reach this context");
        let notes = self.notes.as_ref().ok_or_else(no_notes)?.try_clone()?;
        let len = size_of::<AnnouncementPage>();
        let page = SharedMemory::for_writers("verbline-announcements", len)?;
        let (token, peers_end) = self.wake.add()?;
        let peer = ReadyPeer {
            gid,
            page: mapped(page.mapping)?,
            announced: Announced::default(),
            wake: token,
        };
        let old = match self.enter() {
            Ok(mut state) => state.add_ready_peer(peer),
            Err(_) => Some(peer),
        };
        self.release(old);
        Ok((token, [page.fd, notes, peers_end]))
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
