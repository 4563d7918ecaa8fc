//! This process as others see it: its GID, its links, and which context has which queue pair.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::epoll;

use super::domain::Domain;
use super::engine;
use super::link::{Listener, OutgoingLink, new_gid};
use super::link_message::LinkMessage;
use super::multicast::Groups;
use crate::event_fd::EventFd;
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::ring::LAYOUT_VERSION;
use crate::verbs::types::{Forked, Gid, ModifyError, OpenError, QpNum};

/// The process's part in the software device: made when the first context is opened, and there
/// until the process ends.
///
/// Locks are taken in the order *links*, *directory*, a context's owner word; none is held while
/// one before it is taken.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) gid: Gid,
    fork_guard: ForkGuard,
    /// Whether the process, a simulated one, has been killed.
    #[cfg(feature = "test-util")]
    killed: AtomicBool,
    pub(crate) epoll: OwnedFd,
    pub(crate) listener: Listener,
    /// Makes the engine look at what has changed.
    pub(crate) wake: EventFd,
    /// Makes it do what peers want of contexts that nobody polls; peers have it.
    pub(crate) call: EventFd,
    /// Queue pairs that are connected: while there are any, the engine ticks.
    pub(crate) connected: AtomicU32,
    /// The engine ticks slowly, since everybody sleeps.
    pub(crate) is_resting: AtomicBool,
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
    /// Which link an event of the engine's is about.
    by_token: HashMap<u64, Gid>,
    next_token: u64,
}

/// A link, and what the other side was told.
#[derive(Debug)]
struct Link {
    socket: OutgoingLink,
    arenas: HashSet<u64>,
    contexts: HashSet<u32>,
    token: u64,
}

/// Event tokens of the engine. Incoming links have odd ones, outgoing links even ones.
pub(crate) const TOKEN_LISTENER: u64 = 0;
pub(crate) const TOKEN_WAKE: u64 = 1;
pub(crate) const TOKEN_CALL: u64 = 2;
pub(crate) const FIRST_LINK_TOKEN: u64 = 4;

/// Queue-pair numbers 0 and 1 are special, and all ones is multicast.
const QP_NUMS: std::ops::Range<u32> = 2..0x00ff_ffff;

static NODE: Mutex<Option<Arc<Node>>> = Mutex::new(None);

impl Node {
    /// The process's node, made at the first call.
    pub(crate) fn get() -> Result<Arc<Self>, OpenError> {
        let mut node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = &*node {
            node.check()?;
            return Ok(Arc::clone(node));
        }
        let fail = |action| {
            move |source| OpenError::Os {
                name: "soft".into(),
                action,
                source,
            }
        };
        let fork_guard = ForkGuard::new().map_err(fail("be set up"))?;
        let made = Arc::new(Self::new(fork_guard).map_err(fail("be set up"))?);
        engine::start(Arc::clone(&made)).map_err(fail("start its engine thread"))?;
        *node = Some(Arc::clone(&made));
        Ok(made)
    }

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
        let call = EventFd::new()?;
        let data = epoll::EventData::new_u64(TOKEN_CALL);
        epoll::add(&epoll, &call, data, readable)?;
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
            call,
            connected: AtomicU32::new(0),
            is_resting: AtomicBool::new(false),
            directory: Mutex::new(Directory {
                last_qp_num: start,
                ..Directory::default()
            }),
            groups: Groups::default(),
            links: Mutex::new(Links {
                next_token: FIRST_LINK_TOKEN,
                ..Links::default()
            }),
            // From a random start, so that a key of another process is not one here.
            next_serial: AtomicU32::new(u32::from_le_bytes([d, e, f, g]) ^ u32::from(h)),
            next_arena: AtomicU64::new(1),
        })
    }

    /// An error in the child of a fork, which has only the memory of the process that opened the
    /// device, and after a simulated process was killed, which has nothing any more.
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

    /// A number that differs from every other one given in this process for a long time.
    pub(crate) fn next_serial(&self) -> u32 {
        self.next_serial.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_arena(&self) -> u64 {
        self.next_arena.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the engine look around now.
    pub(crate) fn wake_engine(&self) {
        self.wake.write();
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        // Maps are changed in one step each, so a panic under the lock leaves them whole.
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

    /// Appends every context there is to `contexts`, which the engine keeps from tick to tick: what
    /// runs beside a poller does not allocate either.
    pub(crate) fn contexts(&self, contexts: &mut Vec<Arc<Domain>>) {
        let directory = self.directory();
        contexts.extend(directory.contexts.iter().filter_map(Weak::upgrade));
    }

    /// A number for a new queue pair: the next one up, so that the numbers of those that are gone
    /// stay unused for as long as can be.
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
                // Its place in the context follows in `set_place`.
                entry.insert((Arc::downgrade(context), u32::MAX));
                return Some(next);
            }
        }
        None
    }

    pub(crate) fn set_place(&self, qp_num: u32, place: u32) {
        if let Some((_, entry)) = self.directory().queue_pairs.get_mut(&qp_num) {
            *entry = place;
        }
    }

    pub(crate) fn free_qp_num(&self, qp_num: u32) {
        self.groups.forget(QpNum(qp_num));
        self.directory().queue_pairs.remove(&qp_num);
    }

    pub(crate) fn find_queue_pair(&self, qp_num: u32) -> Option<(Arc<Domain>, u32)> {
        let directory = self.directory();
        let (context, place) = directory.queue_pairs.get(&qp_num)?;
        Some((context.upgrade()?, *place))
    }

    // ---- peers and links ----

    /// What is known of the process with this GID.
    pub(crate) fn peer(&self, gid: Gid) -> Arc<Peer> {
        let mut directory = self.directory();
        Arc::clone(
            directory
                .peers
                .entry(gid)
                .or_insert_with(|| Arc::new(Peer::new(gid))),
        )
    }

    /// The process with this GID has ended. No other will ever have it.
    pub(crate) fn forget_peer(&self, gid: Gid) {
        let mut links = self.links();
        if let Some(link) = links.by_gid.remove(&gid) {
            links.by_token.remove(&link.token);
        }
        drop(links);
        if let Some(peer) = self.directory().peers.remove(&gid) {
            peer.set_gone();
        }
    }

    /// The process that an outgoing link leads to.
    pub(crate) fn gid_of_token(&self, token: u64) -> Option<Gid> {
        self.links().by_token.get(&token).copied()
    }

    /// Makes sure that there is a link to `gid`, so that setting a queue pair up can fail before
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
            // Only its end is of interest: the other side never speaks on it.
            let interest = epoll::EventFlags::RDHUP;
            epoll::add(
                &self.epoll,
                &socket,
                epoll::EventData::new_u64(token),
                interest,
            )
            .map_err(|error| fail("be watched")(error.into()))?;
            links.by_token.insert(token, gid);
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

    /// Tells the peer where the sender of `attach` receives: after it was told of the context's arenas.
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
        link.contexts.insert(context.number);
        for (number, memory) in context.arenas() {
            if link.arenas.insert(number) {
                let message = LinkMessage::Arena { number };
                link.socket.send(message, &[memory.fd.as_fd()])?;
            }
        }
        let files = [
            ring.as_fd(),
            context.ready.fd.as_fd(),
            context.wake.as_fd(),
            self.call.as_fd(),
        ];
        link.socket.send(attach, &files)
    }

    /// Tells those who know this context of an arena that it registered just now.
    pub(crate) fn announce_arena(&self, context: &Domain, number: u64, fd: impl AsFd) {
        for link in self.links().by_gid.values_mut() {
            if link.contexts.contains(&context.number) && link.arenas.insert(number) {
                let message = LinkMessage::Arena { number };
                if let Err(error) = link.socket.send(message, &[fd.as_fd()]) {
                    // It has ended, and the engine will hear of it; or it is stopped, and long
                    // messages from this arena wait for ever.
                    tracing::warn!(%error, "a peer could not be told of an arena");
                }
            }
        }
    }

    /// Tells those who know of an arena that it is gone.
    pub(crate) fn withdraw_arena(&self, number: u64) {
        for link in self.links().by_gid.values_mut() {
            if link.arenas.remove(&number) {
                // A peer that has ended needs no telling; one that cannot be told keeps the
                // mapping until it ends.
                let _ = link.socket.send(LinkMessage::ArenaGone { number }, &[]);
            }
        }
    }
}
