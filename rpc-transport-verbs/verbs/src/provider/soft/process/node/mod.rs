//! This process as other processes see it: its GID, its links, and the directory of its queue
//! pairs.
//!
//! A GID begins with the link-local prefix and a hash of the boot and of some namespaces (see
//! `gid.rs`). The handshake compares these bytes, so two processes that cannot
//! reach each other learn this without an attempt to connect.

pub(crate) mod domain;
mod peers;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::event::epoll;

use super::claims::Claims;
use super::gid::new_gid;
use super::link::Listener;
use super::links::Links;
use super::multicast::Groups;
use super::tcp_port::{self, TOKEN_TCP_LISTENER, TcpPort};
use crate::event_fd::EventFd;
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::peer::Peer;
use crate::system_error::epoll_add;
use crate::types::{Forked, Gid, QpNum};
use domain::Domain;

/// The process's instance of the software device: created when the first context is opened, and
/// never dropped.
///
/// Lock order: what a link sends, *directory*, a context's lock. While one of these is held,
/// none that precedes it is taken. While a thread holds the lock of the links' maps, it takes none.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) gid: Gid,
    fork_guard: ForkGuard,
    /// Set when the process, a simulated one, has been killed.
    #[cfg(feature = "test-util")]
    killed: AtomicBool,
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) listener: Listener,
    /// The eventfd that makes the engine handle changes of this process.
    pub(crate) wake: EventFd,
    /// Number of connected queue pairs: the engine ticks while it is not 0.
    pub(crate) connected: AtomicU32,
    /// True if the engine ticks slowly because all contexts sleep.
    pub(crate) ticks_slowly: AtomicBool,
    pub(crate) groups: Groups,
    pub(super) claims: Claims,
    directory: Mutex<Directory>,
    pub(super) links: Links,
    /// Where the process accepts TCP connections; absent until a context says so.
    tcp_port: OnceLock<TcpPort>,
    next_token: AtomicU64,
    /// True if messages may wait on a link, for the engine to send.
    has_waiting_links: AtomicBool,
    /// In a simulation, what makes the peers answer while this process dials.
    #[cfg(feature = "test-util")]
    pub(crate) greet_dialers: Option<fn()>,
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

/// Event tokens of the engine; links have the others.
pub(crate) const TOKEN_LISTENER: u64 = 0;
pub(crate) const TOKEN_WAKE: u64 = 1;
const FIRST_LINK_TOKEN: u64 = TOKEN_TCP_LISTENER + 1;

/// Range of queue-pair numbers: 0 and 1 are special, and all ones is multicast.
const QP_NUMS: std::ops::Range<u32> = 2..0x00ff_ffff;

impl Node {
    pub(crate) fn new(fork_guard: ForkGuard) -> io::Result<Self> {
        let gid = new_gid()?;
        let listener = Listener::bind(gid)?;
        let wake = EventFd::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll_add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(TOKEN_LISTENER),
            readable,
        )?;
        epoll_add(
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
            epoll: Arc::new(epoll),
            listener,
            wake,
            connected: AtomicU32::new(0),
            ticks_slowly: AtomicBool::new(false),
            directory: Mutex::new(Directory {
                last_qp_num: start,
                ..Directory::default()
            }),
            groups: Groups::default(),
            claims: Claims::default(),
            links: Links::default(),
            tcp_port: OnceLock::new(),
            next_token: AtomicU64::new(FIRST_LINK_TOKEN),
            has_waiting_links: AtomicBool::new(false),
            #[cfg(feature = "test-util")]
            greet_dialers: None,
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

    // ---- the TCP port ----

    pub(crate) fn tcp_port(&self) -> Option<&TcpPort> {
        self.tcp_port.get()
    }

    /// Returns the GID of a context whose queue pairs are connected over TCP. Begins to accept
    /// connections if the context asks for it and no earlier one did.
    pub(crate) fn tcp_gid(&self, accept_at: Option<SocketAddrV4>) -> io::Result<Gid> {
        let Some(address) = accept_at else {
            // A GID that says no address.
            return tcp_port::new_gid(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        };
        // Under the lock, so that two threads do not bind two ports.
        let _directory = self.directory();
        if let Some(port) = self.tcp_port.get() {
            return Ok(port.gid());
        }
        let port = TcpPort::bind(address)?;
        port.watch(&self.epoll)?;
        Ok(self.tcp_port.get_or_init(|| port).gid())
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
}
