//! This process as other processes see it: its GID, its links, and the directory of its queue
//! pairs.
//!
//! A GID begins with the link-local prefix and a hash of the boot, the network namespace and the
//! PID namespace (see `link.rs`). The handshake compares these bytes, so two processes that cannot
//! reach each other learn this without an attempt to connect.

pub(crate) mod domain;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::epoll;

use super::link::{Listener, OutgoingLink, new_gid};
use super::link_message::LinkMessage;
use super::multicast::Groups;
use crate::event_fd::EventFd;
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::ring::LAYOUT_VERSION;
use crate::verbs::types::{Forked, Gid, ModifyError, QpNum};
use domain::Domain;

/// The process's instance of the software device: created when the first context is opened, and
/// never dropped.
///
/// Lock order: *links*, *directory*, a context's owner word. While one of these is held, none that
/// precedes it is taken.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) gid: Gid,
    fork_guard: ForkGuard,
    /// Set when the process, a simulated one, has been killed.
    #[cfg(feature = "test-util")]
    killed: AtomicBool,
    pub(crate) epoll: OwnedFd,
    pub(crate) listener: Listener,
    /// The eventfd that makes the engine handle changes of this process.
    pub(crate) wake: EventFd,
    /// Number of connected queue pairs: the engine ticks while it is not 0.
    pub(crate) connected: AtomicU32,
    /// True if the engine ticks slowly because all contexts sleep.
    pub(crate) ticks_slowly: AtomicBool,
    pub(crate) groups: Groups,
    directory: Mutex<Directory>,
    links: Mutex<Links>,
    next_serial: AtomicU32,
    next_arena: AtomicU64,
}

#[derive(Debug, Default)]
struct Directory {
    contexts: Vec<Weak<Domain>>,
    queue_pairs: HashMap<u32, (Weak<Domain>, u32)>,
    last_qp_num: u32,
    peers: HashMap<Gid, Arc<Peer>>,
}

#[derive(Debug, Default)]
struct Links {
    by_gid: HashMap<Gid, Link>,
    /// The GID of the link that an engine event token belongs to.
    by_token: HashMap<u64, Gid>,
    next_token: u64,
}

/// A link, and the arenas and contexts that it has announced to the peer.
#[derive(Debug)]
struct Link {
    socket: OutgoingLink,
    arenas: HashSet<u64>,
    contexts: HashSet<u32>,
    token: u64,
}

/// Event tokens of the engine. Incoming links have odd tokens, outgoing links even ones.
pub(crate) const TOKEN_LISTENER: u64 = 0;
pub(crate) const TOKEN_WAKE: u64 = 1;
pub(crate) const FIRST_LINK_TOKEN: u64 = 4;

/// Range of queue-pair numbers: 0 and 1 are special, and all ones is multicast.
const QP_NUMS: std::ops::Range<u32> = 2..0x00ff_ffff;

impl Node {
    pub(crate) fn new(fork_guard: ForkGuard) -> io::Result<Self> {
        let gid = new_gid()?;
        let listener = Listener::bind(gid)?;
        let wake = EventFd::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(TOKEN_LISTENER),
            readable,
        )?;
        epoll::add(
            &epoll,
            &wake,
            epoll::EventData::new_u64(TOKEN_WAKE),
            readable,
        )?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let [a, b, c, d, e, f, g, h] = random;
        let start =
            QP_NUMS.start + u32::from_le_bytes([a, b, c, 0]) % (QP_NUMS.end - QP_NUMS.start);
        Ok(Self {
            gid,
            fork_guard,
            #[cfg(feature = "test-util")]
            killed: false.into(),
            epoll,
            listener,
            wake,
            connected: AtomicU32::new(0),
            ticks_slowly: AtomicBool::new(false),
            directory: Mutex::new(Directory {
                last_qp_num: start,
                ..Directory::default()
            }),
            groups: Groups::default(),
            links: Mutex::new(Links {
                next_token: FIRST_LINK_TOKEN,
                ..Links::default()
            }),
            // A random start, so that a key of another process is unlikely to be valid here.
            next_serial: AtomicU32::new(u32::from_le_bytes([d, e, f, g]) ^ u32::from(h)),
            next_arena: AtomicU64::new(1),
        })
    }

    /// Fails in the child of a fork, which has only the memory of the process that opened the
    /// device, and after a simulated process was killed.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Forked> {
        #[cfg(feature = "test-util")]
        if self.killed.load(Ordering::Relaxed) {
            return Err(Forked);
        }
        self.fork_guard.check()
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn set_killed(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }

    /// Returns a serial number. It differs, for a long time, from every other one returned in this
    /// process.
    pub(crate) fn next_serial(&self) -> u32 {
        self.next_serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_arena(&self) -> u64 {
        self.next_arena.fetch_add(1, Ordering::Relaxed)
    }

    /// Wakes the engine.
    pub(crate) fn wake_engine(&self) {
        self.wake.write();
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        // Maps are changed in one step each, so a panic under the lock leaves them consistent.
        self.directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- contexts and queue pairs ----

    pub(crate) fn add_context(&self, context: &Arc<Domain>) {
        let mut directory = self.directory();
        directory
            .contexts
            .retain(|context| context.strong_count() > 0);
        directory.contexts.push(Arc::downgrade(context));
    }

    /// Appends all live contexts to `contexts`, a vector that the engine reuses at each tick: code
    /// that runs beside a poller should not allocate either.
    pub(crate) fn contexts(&self, contexts: &mut Vec<Arc<Domain>>) {
        let directory = self.directory();
        contexts.extend(directory.contexts.iter().filter_map(Weak::upgrade));
    }

    /// Allocates a number for a new queue pair: the next higher one, so that the numbers of
    /// destroyed queue pairs stay unused for as long as possible.
    pub(crate) fn allocate_qp_num(&self, context: &Arc<Domain>) -> Option<u32> {
        let mut directory = self.directory();
        let candidates = QP_NUMS.end - QP_NUMS.start;
        for _ in 0..candidates {
            let next = directory.last_qp_num + 1;
            let next = if QP_NUMS.contains(&next) {
                next
            } else {
                QP_NUMS.start
            };
            directory.last_qp_num = next;
            if let Entry::Vacant(entry) = directory.queue_pairs.entry(next) {
                // `set_qp_index` sets its index in the context later.
                entry.insert((Arc::downgrade(context), u32::MAX));
                return Some(next);
            }
        }
        None
    }

    pub(crate) fn set_qp_index(&self, qp_num: u32, qp_index: u32) {
        if let Some((_, entry)) = self.directory().queue_pairs.get_mut(&qp_num) {
            *entry = qp_index;
        }
    }

    pub(crate) fn free_qp_num(&self, qp_num: u32) {
        self.groups.forget(QpNum(qp_num));
        self.directory().queue_pairs.remove(&qp_num);
    }

    pub(crate) fn find_queue_pair(&self, qp_num: u32) -> Option<(Arc<Domain>, u32)> {
        let directory = self.directory();
        let (context, qp_index) = directory.queue_pairs.get(&qp_num)?;
        Some((context.upgrade()?, *qp_index))
    }

    // ---- peers and links ----

    /// Returns the entry of the process with this GID; creates it if there is none.
    pub(crate) fn peer(&self, gid: Gid) -> Arc<Peer> {
        let mut directory = self.directory();
        Arc::clone(
            directory
                .peers
                .entry(gid)
                .or_insert_with(|| Arc::new(Peer::new(gid))),
        )
    }

    /// Removes the process with this GID, which has ended. No other process will ever have the GID.
    pub(crate) fn forget_peer(&self, gid: Gid) {
        let mut links = self.links();
        if let Some(link) = links.by_gid.remove(&gid) {
            links.by_token.remove(&link.token);
        }
        drop(links);
        let peer = self.directory().peers.remove(&gid);
        if let Some(peer) = peer {
            peer.set_gone();
        }
        let mut contexts = Vec::new();
        self.contexts(&mut contexts);
        for context in contexts {
            context.forget_peer(gid);
        }
    }

    /// Returns the GID of the process that an outgoing link leads to.
    pub(crate) fn gid_of_token(&self, token: u64) -> Option<Gid> {
        self.links().by_token.get(&token).copied()
    }

    /// Makes sure that a link to `gid` exists, so that setting up a queue pair can fail before
    /// anything has changed.
    pub(crate) fn connect(&self, gid: Gid) -> Result<Arc<Peer>, ModifyError> {
        let fail = |action| {
            move |source| ModifyError::Unreachable {
                gid,
                action,
                source,
            }
        };
        let mut links = self.links();
        if !links.by_gid.contains_key(&gid) {
            let socket = OutgoingLink::connect(gid).map_err(fail("be reached"))?;
            let hello = LinkMessage::Hello {
                layout_version: LAYOUT_VERSION,
                gid: self.gid,
            };
            socket.send(hello, &[]).map_err(fail("be greeted"))?;
            let token = links.next_token & !1;
            links.next_token += 2;
            // Only the end of the link matters: the other side never sends on it.
            let interest = epoll::EventFlags::RDHUP;
            epoll::add(
                &self.epoll,
                &socket,
                epoll::EventData::new_u64(token),
                interest,
            )
            .map_err(|error| fail("be watched")(error.into()))?;
            links.by_token.insert(token, gid);
            self.peer(gid)
                .engine
                .set_link(socket.shared(), LinkMessage::Wake.encode());
            let link = Link {
                socket,
                arenas: HashSet::new(),
                contexts: HashSet::new(),
                token,
            };
            links.by_gid.insert(gid, link);
        }
        Ok(self.peer(gid))
    }

    /// Tells the peer which ring the sender of `attach` receives from, after announcing the
    /// context's arenas.
    pub(crate) fn attach(
        &self,
        context: &Domain,
        gid: Gid,
        attach: LinkMessage,
        ring: impl AsFd,
    ) -> io::Result<()> {
        let mut links = self.links();
        let link = links
            .by_gid
            .get_mut(&gid)
            .ok_or(io::ErrorKind::NotConnected)?;
        if !link.contexts.contains(&context.number) {
            let message = LinkMessage::Context {
                number: context.number,
            };
            let files = context.files_for(gid)?;
            link.socket
                .send(message, &files.each_ref().map(AsFd::as_fd))?;
            link.contexts.insert(context.number);
        }
        for (number, memory) in context.arenas() {
            if link.arenas.insert(number) {
                let message = LinkMessage::Arena { number };
                link.socket.send(message, &[memory.fd.as_fd()])?;
            }
        }
        link.socket.send(attach, &[ring.as_fd()])
    }

    /// Announces a newly registered arena to the peers that know this context.
    pub(crate) fn announce_arena(&self, context: &Domain, number: u64, fd: impl AsFd) {
        for link in self.links().by_gid.values_mut() {
            if link.contexts.contains(&context.number) && link.arenas.insert(number) {
                let message = LinkMessage::Arena { number };
                if let Err(error) = link.socket.send(message, &[fd.as_fd()]) {
                    // Either the peer has ended, and the engine will find out; or it is stopped,
                    // and long messages from this arena wait forever.
                    tracing::warn!(%error, "a peer could not be told of an arena");
                }
            }
        }
    }

    /// Withdraws an arena from the peers that know it.
    pub(crate) fn withdraw_arena(&self, number: u64) {
        for link in self.links().by_gid.values_mut() {
            if link.arenas.remove(&number) {
                // A peer that has ended need not be told. A peer that cannot be told keeps the
                // mapping until it ends.
                let _ = link.socket.send(LinkMessage::ArenaGone { number }, &[]);
            }
        }
    }

    /// Tells the peers that know a context that it was closed.
    pub(crate) fn withdraw_context(&self, number: u32) {
        for link in self.links().by_gid.values_mut() {
            if link.contexts.remove(&number) {
                let _ = link.socket.send(LinkMessage::ContextGone { number }, &[]);
            }
        }
    }
}
