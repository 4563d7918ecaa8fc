//! A greeted link, as this process sends on it.
//!
//! What the socket does not take stays in a queue of the link, in order. The engine tries again when
//! there is room, and at each tick. A thread that registers memory never waits for a peer. A thread
//! that connects a queue pair waits, for a limited time, if too much waits already. A peer that does
//! not receive for [`PATIENCE`], or for which too much waits, loses its link; other peers lose
//! nothing.
//!
//! The kernel limits the files that a user has in flight, whichever of the user's processes sent
//! them and whichever does not receive them. At the limit, messages with files wait, and so do the
//! withdrawals of what they announce; others go past them. A ring that waits for [`PATIENCE`] fails
//! its queue pair. The link stays: its peer may have received everything.
//!
//! While a thread holds the lock of a link, it makes no system call that waits for another process.
//! [`Link::attach`] makes the files of a context under it, for which it acquires the context's lock.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::greeting::{LimitReached, Limits};
use super::link::{LinkSocket, Packet, Sent};
use super::link_message::LinkMessage;
use super::node::domain::Domain;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::regions::MAX_REGIONS;
use crate::provider::soft::shared::memory::SharedMemory;
use crate::provider::soft::shared::wake_socket::WakeToken;

/// Time without any progress after which a peer loses its link. A peer receives on a thread of its
/// own, so only a process that is stopped, or starved for this long, does not receive.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of messages that wait for a peer: twice what a context can register, since each
/// region may be announced and withdrawn.
const MAX_BACKLOG: usize = 2 * MAX_REGIONS;

/// Number of waiting messages with which no further ring is announced, since each holds a file of
/// this process. The thread that announces it waits for the peer to receive, for [`PATIENCE`].
const MAX_BACKLOG_OF_ATTACH: usize = 128;

/// Time that this thread waits for the other process if that process dialed the link. It may be a
/// client that does not receive on purpose, and other clients wait for the same threads.
const PATIENCE_WITH_DIALER: Duration = Duration::from_millis(100);

/// Time after which a thread that waits for room tries to send in any case: the socket does not
/// tell when the number of files in flight has fallen.
const ROOM_PAUSE: Duration = Duration::from_millis(5);

/// Time after which an arena is announced again to a peer that could not map it.
const ARENA_PAUSE: Duration = Duration::from_millis(100);
/// Number of times that this time doubles. Queue pairs that need the arena meanwhile run out of
/// retries; others lose nothing.
const MAX_DOUBLINGS: u32 = 6;

/// A link to a process, greeted by both sides.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Arc<Peer>,
    /// The engine's event token for the socket.
    pub(crate) token: u64,
    /// True if the other process dialed it.
    pub(crate) is_incoming: bool,
    socket: LinkSocket,
    /// What the peer keeps for this process.
    limits: Limits,
    outbound: Mutex<Outbound>,
    /// True if messages wait, so that the engine has to try again.
    is_waiting: AtomicBool,
    /// True if the messages wait for room in the socket.
    awaits_room: AtomicBool,
}

#[derive(Debug, Default)]
struct Outbound {
    backlog: VecDeque<Waiting>,
    /// Time at which a tick first found the oldest message waiting.
    stuck_since: Option<Instant>,
    /// The arenas announced to the peer.
    arenas: HashMap<u64, Announced>,
    arena_bytes: u64,
    /// The contexts announced to the peer, with the sockets by which it wakes them.
    contexts: HashMap<u32, WakeToken>,
    /// True once the link was closed.
    is_closed: bool,
    /// Arenas that the peer could not map, with the time to announce each again; `None` until the
    /// next tick.
    refused: Vec<(u64, Option<Instant>)>,
    /// Rings that could not be announced in time: the numbers of the queue pairs, as in
    /// [`LinkMessage::Attach`].
    failed: Vec<(u32, u32)>,
}

/// An arena that the peer was told of.
#[derive(Debug)]
struct Announced {
    len: u64,
    memory: Weak<SharedMemory>,
    refusals: u32,
}

/// A message that the socket has not taken yet.
#[derive(Debug)]
struct Waiting {
    message: LinkMessage,
    files: Vec<WaitingFile>,
    /// Time at which a tick first found it waiting for other files in flight.
    refused_since: Option<Instant>,
}

#[derive(Debug)]
enum WaitingFile {
    Own(OwnedFd),
    Memory(Arc<SharedMemory>),
}

impl AsFd for WaitingFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(file) => file.as_fd(),
            Self::Memory(memory) => memory.fd.as_fd(),
        }
    }
}

/// Why a message could not be sent, now or later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// The link stays.
    #[error(transparent)]
    Limit(#[from] LimitReached),
    /// The link stays.
    #[error("{0} messages wait for the peer to receive them: it is stopped, or overloaded")]
    Congested(usize),
    /// Files could not be made or duplicated. The link stays.
    #[error("this process lacks files or memory for it: {0}")]
    Files(#[source] io::Error),
    /// The link has to be closed.
    #[error("the link failed: {0}")]
    Socket(#[from] Errno),
    /// The link has to be closed.
    #[error("more than {MAX_BACKLOG} messages wait for the peer to receive them")]
    Overflow,
    /// The link has to be closed.
    #[error("it has not received for {PATIENCE:?}: it is stopped, or overloaded")]
    Stuck,
}

impl SendError {
    /// Returns true if the link cannot be used any more.
    pub(crate) fn ends_link(&self) -> bool {
        match self {
            Self::Limit(_) | Self::Congested(_) | Self::Files(_) => false,
            Self::Socket(_) | Self::Overflow | Self::Stuck => true,
        }
    }
}

impl Link {
    pub(crate) fn new(
        peer: Arc<Peer>,
        token: u64,
        is_incoming: bool,
        socket: LinkSocket,
        limits: Limits,
    ) -> Self {
        let wake = LinkMessage::Wake.encode();
        peer.engine.set_link(socket.shared(), wake);
        Self {
            peer,
            token,
            is_incoming,
            socket,
            limits,
            outbound: Mutex::default(),
            is_waiting: AtomicBool::new(false),
            awaits_room: AtomicBool::new(false),
        }
    }

    fn outbound(&self) -> MutexGuard<'_, Outbound> {
        // The lists stay consistent at each step, so a panic under the lock does no harm.
        self.outbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn receive(&self) -> rustix::io::Result<Packet> {
        self.socket.receive()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.socket.has_ended()
    }

    pub(crate) fn socket(&self) -> &LinkSocket {
        &self.socket
    }

    /// Returns true if messages wait, which the engine has to send.
    pub(crate) fn is_waiting(&self) -> bool {
        // Relaxed: whoever sets it wakes the engine afterwards.
        self.is_waiting.load(Ordering::Relaxed)
    }

    /// Returns true if the engine can send what waits as soon as there is room in the socket.
    pub(crate) fn awaits_room(&self) -> bool {
        self.is_waiting() && self.awaits_room.load(Ordering::Relaxed)
    }

    /// Sends a message without files.
    pub(crate) fn respond(&self, message: LinkMessage) -> Result<(), SendError> {
        self.send(&mut self.outbound(), message, &[], None)
    }

    /// Announces the ring of a queue pair, after its context and the context's arenas.
    pub(crate) fn attach(
        &self,
        context: &Domain,
        attach: LinkMessage,
        ring: BorrowedFd<'_>,
    ) -> Result<(), SendError> {
        self.wait_for_room()?;
        let outbound = &mut *self.outbound();
        if outbound.is_closed {
            return Err(SendError::Socket(Errno::PIPE));
        }
        if !outbound.contexts.contains_key(&context.number) {
            LimitReached::check_contexts(self.limits, outbound.contexts.len() + 1)?;
            let message = LinkMessage::Context {
                number: context.number,
            };
            let made = context.files_for(self.peer.gid);
            let (wake, files) = made.map_err(SendError::Files)?;
            let files = files.each_ref().map(AsFd::as_fd);
            if let Err(error) = self.send(outbound, message, &files, None) {
                context.forget_peer(self.peer.gid, wake);
                return Err(error);
            }
            outbound.contexts.insert(context.number, wake);
        }
        for (number, memory) in context.arenas() {
            self.announce(outbound, number, &memory)?;
        }
        self.send(outbound, attach, &[ring], None)
    }

    /// Waits until not too much waits on the link. Holds no lock while it waits.
    fn wait_for_room(&self) -> Result<(), SendError> {
        let start = Instant::now();
        let patience = match self.is_incoming {
            true => PATIENCE_WITH_DIALER,
            false => PATIENCE,
        };
        loop {
            let waiting = self.outbound().backlog.len();
            if waiting < MAX_BACKLOG_OF_ATTACH {
                return Ok(());
            }
            let now = Instant::now();
            if now.saturating_duration_since(start) >= patience {
                return Err(SendError::Congested(waiting));
            }
            self.socket.wait_for_room(ROOM_PAUSE)?;
            self.flush(now)?;
        }
    }

    /// Announces an arena if the peer knows its context.
    pub(crate) fn announce_arena(
        &self,
        context: u32,
        number: u64,
        memory: &Arc<SharedMemory>,
    ) -> Result<(), SendError> {
        let outbound = &mut *self.outbound();
        if !outbound.contexts.contains_key(&context) {
            return Ok(());
        }
        self.announce(outbound, number, memory)
    }

    fn announce(
        &self,
        outbound: &mut Outbound,
        number: u64,
        memory: &Arc<SharedMemory>,
    ) -> Result<(), SendError> {
        if outbound.arenas.contains_key(&number) {
            return Ok(());
        }
        let len = memory.mapping.len() as u64;
        let (count, bytes) = (outbound.arenas.len() + 1, outbound.arena_bytes + len);
        LimitReached::check_arenas(self.limits, count, bytes)?;
        self.send_arena(outbound, number, memory)?;
        let announced = Announced {
            len,
            memory: Arc::downgrade(memory),
            refusals: 0,
        };
        outbound.arenas.insert(number, announced);
        outbound.arena_bytes = bytes;
        Ok(())
    }

    fn send_arena(
        &self,
        outbound: &mut Outbound,
        number: u64,
        memory: &Arc<SharedMemory>,
    ) -> Result<(), SendError> {
        let (message, file) = (LinkMessage::Arena { number }, memory.fd.as_fd());
        self.send(outbound, message, &[file], Some(memory))
    }

    /// Returns true if the peer keeps less for this process than this version keeps for a peer.
    pub(crate) fn has_unusual_limits(&self) -> bool {
        !self.limits.are_usual()
    }

    /// Withdraws an arena if it was announced.
    pub(crate) fn withdraw_arena(&self, number: u64) -> Result<(), SendError> {
        let outbound = &mut *self.outbound();
        let Some(announced) = outbound.arenas.remove(&number) else {
            return Ok(());
        };
        outbound.arena_bytes -= announced.len;
        outbound.refused.retain(|(refused, _)| *refused != number);
        // The peer need not know an arena of which it has not been told. So what waits at the limit
        // of files in flight does not grow with each region that was registered and deregistered.
        let arena = LinkMessage::Arena { number };
        let mut backlog = outbound.backlog.iter();
        if let Some(index) = backlog.position(|waiting| waiting.message == arena) {
            outbound.backlog.remove(index);
            return Ok(());
        }
        self.send(outbound, LinkMessage::ArenaGone { number }, &[], None)
    }

    /// Withdraws a context if it was announced.
    pub(crate) fn withdraw_context(&self, number: u32) -> Result<(), SendError> {
        let outbound = &mut *self.outbound();
        if outbound.contexts.remove(&number).is_none() {
            return Ok(());
        }
        self.send(outbound, LinkMessage::ContextGone { number }, &[], None)
    }

    /// Handles the peer's refusal of an arena, which is announced again later.
    pub(crate) fn arena_refused(&self, number: u64) {
        let outbound = &mut *self.outbound();
        // One that has been withdrawn meanwhile needs nothing.
        if let Some(announced) = outbound.arenas.get_mut(&number) {
            announced.refusals = announced.refusals.saturating_add(1);
            if !outbound.refused.iter().any(|(other, _)| *other == number) {
                outbound.refused.push((number, None));
            }
            self.is_waiting.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the rings that could not be announced in time.
    pub(crate) fn take_failed(&self) -> Vec<(u32, u32)> {
        std::mem::take(&mut self.outbound().failed)
    }

    /// Handles the peer's refusal of a context: the next ring of the context announces it again.
    pub(crate) fn context_refused(&self, number: u32) -> Option<WakeToken> {
        self.outbound().contexts.remove(&number)
    }

    /// Closes the link for both sides. Nothing is announced on it afterwards. Returns the contexts
    /// that were announced.
    pub(crate) fn close(&self) -> HashMap<u32, WakeToken> {
        let outbound = &mut *self.outbound();
        outbound.is_closed = true;
        outbound.backlog.clear();
        self.socket.shut_down();
        std::mem::take(&mut outbound.contexts)
    }

    /// Sends a message, or queues it behind those that wait. For an arena's file, `memory` is what
    /// keeps it open; other files are duplicated if they have to wait.
    fn send(
        &self,
        outbound: &mut Outbound,
        message: LinkMessage,
        files: &[BorrowedFd<'_>],
        memory: Option<&Arc<SharedMemory>>,
    ) -> Result<(), SendError> {
        let may_be_next = outbound.backlog.is_empty() || message.may_overtake();
        if may_be_next && self.try_send(message, files)? == Sent::Whole {
            return Ok(());
        }
        if outbound.backlog.len() >= MAX_BACKLOG {
            return Err(SendError::Overflow);
        }
        let files = match memory {
            Some(memory) => vec![WaitingFile::Memory(Arc::clone(memory))],
            None => {
                let duplicate = |file: &BorrowedFd<'_>| file.try_clone_to_owned();
                let files: io::Result<Vec<_>> = files.iter().map(duplicate).collect();
                let files = files.map_err(SendError::Files)?;
                files.into_iter().map(WaitingFile::Own).collect()
            }
        };
        outbound.backlog.push_back(Waiting {
            message,
            files,
            refused_since: None,
        });
        self.is_waiting.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a message now, unless it has to wait.
    fn try_send(&self, message: LinkMessage, files: &[BorrowedFd<'_>]) -> rustix::io::Result<Sent> {
        let sent = self.socket.send(message, files)?;
        self.awaits_room
            .store(sent == Sent::NoRoom, Ordering::Relaxed);
        Ok(sent)
    }

    /// Sends what waits, as far as the peer has received. An error ends the link.
    pub(crate) fn flush(&self, now: Instant) -> Result<(), SendError> {
        let outbound = &mut *self.outbound();
        self.repeat_refused(outbound, now)?;
        while let Some(Waiting { message, files, .. }) = outbound.backlog.front() {
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            let sent = self.try_send(*message, &files)?;
            if sent == Sent::Whole {
                outbound.stuck_since = None;
                outbound.backlog.pop_front();
                continue;
            }
            if sent == Sent::TooManyFiles {
                self.pass_files(outbound, now);
                // A peer that has received everything is not stuck, whatever waits.
                if self.socket.is_all_received() {
                    outbound.stuck_since = None;
                    return Ok(());
                }
            }
            let since = *outbound.stuck_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= PATIENCE {
                return Err(SendError::Stuck);
            }
            return Ok(());
        }
        let has_more = !outbound.refused.is_empty() || !outbound.failed.is_empty();
        self.is_waiting.store(has_more, Ordering::Relaxed);
        Ok(())
    }

    /// While this user has too many files in flight: sends the messages that may go past the others,
    /// and gives up the rings that have waited for too long.
    fn pass_files(&self, outbound: &mut Outbound, now: Instant) {
        outbound.backlog.retain_mut(|waiting| {
            if let LinkMessage::Attach { from, to, .. } = waiting.message {
                let since = *waiting.refused_since.get_or_insert(now);
                let is_late = now.saturating_duration_since(since) >= PATIENCE;
                if is_late {
                    outbound.failed.push((from, to));
                }
                return !is_late;
            }
            // If the socket has failed, the first message that waits fails as well.
            let is_sent = || self.try_send(waiting.message, &[]) != Ok(Sent::NoRoom);
            !(waiting.message.may_overtake() && is_sent())
        });
    }

    /// Announces arenas again that the peer could not map.
    fn repeat_refused(&self, outbound: &mut Outbound, now: Instant) -> Result<(), SendError> {
        let mut due = Vec::new();
        let arenas = &outbound.arenas;
        outbound.refused.retain_mut(|(number, at)| {
            let refusals = arenas.get(number).map_or(0, |announced| announced.refusals);
            let doublings = refusals.saturating_sub(1).min(MAX_DOUBLINGS);
            let is_due = *at.get_or_insert(now + ARENA_PAUSE * (1 << doublings)) <= now;
            if is_due {
                due.push(*number);
            }
            !is_due
        });
        for number in due {
            let memory = outbound.arenas.get(&number);
            if let Some(memory) = memory.and_then(|announced| announced.memory.upgrade()) {
                self.send_arena(outbound, number, &memory)?;
            }
        }
        Ok(())
    }
}
