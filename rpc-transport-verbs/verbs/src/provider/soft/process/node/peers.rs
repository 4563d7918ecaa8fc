//! The peers of this process, and the links to them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;

use super::super::claims::{AwaitedClaim, Nonce, OnClaim};
use super::super::dial;
use super::super::gid::process_of;
use super::super::greeting::{GREETING_TIME, Limits, LinkError};
use super::super::link::LinkSocket;
use super::super::link_message::LinkMessage;
use super::super::links::Access;
use super::super::outbound::{Link, SendError};
use super::super::usage::Usage;
use super::Node;
use super::domain::Domain;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::shared::memory::SharedMemory;
use crate::provider::soft::shared::wake_socket::WakeToken;
use crate::system_error::not_watched;
use crate::types::{Gid, ModifyError, QpNum};

impl Node {
    /// Returns the entry of the process with this GID; creates it if there is none.
    pub(crate) fn peer(&self, gid: Gid) -> Arc<Peer> {
        let mut directory = self.directory();
        let peer = directory.peers.entry(gid);
        Arc::clone(peer.or_insert_with(|| Arc::new(Peer::new(gid))))
    }

    /// Returns what this process keeps for all peers, and for those of the process that `gid` names.
    pub(crate) fn peer_usage(&self, gid: Gid) -> (Usage, Usage) {
        let process = process_of(gid);
        let none = Usage::default();
        let directory = self.directory();
        let peers = directory.peers.values();
        peers.fold((none, none), |(all, of_process), peer| {
            let (arenas, arena_bytes) = peer.arena_usage();
            let usage = Usage {
                arenas: arenas as u64,
                arena_bytes,
                contexts: peer.context_count() as u64,
            };
            // The process of each link was verified, so the GIDs of peers name it.
            match process_of(peer.gid) == process {
                true => (all + usage, of_process + usage),
                false => (all + usage, of_process),
            }
        })
    }

    /// Removes a peer that has ended, or that this process does not talk to any more, and closes
    /// its links. If the process still runs, a new link to it makes a new entry.
    pub(crate) fn end_peer(&self, peer: &Arc<Peer>) {
        peer.set_gone();
        let mut directory = self.directory();
        if directory
            .peers
            .get(&peer.gid)
            .is_some_and(|other| Arc::ptr_eq(other, peer))
        {
            directory.peers.remove(&peer.gid);
        }
        drop(directory);
        for link in self.links.remove(peer) {
            self.unwatch(link.socket());
            for announced in link.close() {
                self.forget_in_context(peer.gid, announced);
            }
        }
    }

    /// Releases what a context has for a peer that does not know the context any more.
    pub(crate) fn forget_in_context(&self, gid: Gid, (number, wake): (u32, WakeToken)) {
        let mut contexts = Vec::new();
        self.contexts(&mut contexts);
        for context in contexts {
            if context.number == number {
                context.forget_peer(gid, wake);
            }
        }
    }

    /// Has each context that waits for an arena look at its blocked rings, because an arena has arrived.
    pub(crate) fn arena_arrived(&self) {
        let mut contexts = Vec::new();
        self.contexts(&mut contexts);
        contexts.retain(|context| context.awaits_arena.swap(false, Ordering::Relaxed));
        for context in contexts {
            if let Ok(mut state) = context.enter() {
                state.arena_arrived();
            }
        }
    }

    /// Returns a token for a new link.
    pub(crate) fn next_token(&self) -> u64 {
        self.next_token.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the engine handle what arrives on a socket.
    pub(crate) fn watch(&self, socket: &LinkSocket, token: u64) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
    }

    /// Makes the engine also send what waits on a link, when there is room in its socket.
    fn watch_room(&self, link: &Link, is_awaited: bool) {
        let mut interest = epoll::EventFlags::IN;
        interest.set(epoll::EventFlags::OUT, is_awaited);
        let data = epoll::EventData::new_u64(link.token);
        // This fails only if the link has been closed meanwhile.
        let _ = epoll::modify(&self.epoll, link.socket(), data, interest);
    }

    /// Ends what `watch` began. Closing the socket is not enough if a forked process has it too.
    pub(crate) fn unwatch(&self, socket: &LinkSocket) {
        // This fails only if the socket is not watched.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Returns the link to a process. If there is none, dials it, or waits for the thread that is
    /// dialing it. Setting up a queue pair calls this first, so that it can fail before anything
    /// has changed.
    ///
    /// Neither dials nor waits for a process whose GID was offered to this one: see
    /// [`Claims`](super::super::claims::Claims).
    pub(crate) fn connect(&self, gid: Gid) -> Result<Arc<Link>, ModifyError> {
        if self.claims.is_offered(gid) {
            let link = self.links.open_link(gid).ok_or(LinkError::Gone);
            return link.map_err(|error| unreachable(gid, error));
        }
        self.link_to(gid, GREETING_TIME)
    }

    fn link_to(&self, gid: Gid, time: Duration) -> Result<Arc<Link>, ModifyError> {
        let start = Instant::now();
        let result = loop {
            let left = time.saturating_sub(start.elapsed());
            break match self.links.access(gid) {
                Access::Open(link) => Ok(link),
                Access::Wait(attempt) => match attempt.wait(left) {
                    // The thread that dialed had less time than this one has.
                    Some(Err(LinkError::Busy(_) | LinkError::Silent(_)))
                        if start.elapsed() < time =>
                    {
                        continue;
                    }
                    result => result.unwrap_or(Err(LinkError::Silent(time))),
                },
                Access::Dial(dialing) => dialing.finish(self.dial(gid, left)),
            };
        };
        result.map_err(|error| unreachable(gid, error))
    }

    fn dial(&self, gid: Gid, time: Duration) -> Result<Arc<Link>, LinkError> {
        let wait = |socket: &LinkSocket, left: Duration| self.wait_for_answer(socket, left);
        let (socket, limits): (LinkSocket, Limits) =
            dial::dial(gid, self.gid, time.min(GREETING_TIME), &wait)?;
        let token = self.next_token();
        // The engine ignores the token until the link is in the table.
        self.watch(&socket, token).map_err(|errno| LinkError::Os {
            action: "be watched",
            errno,
        })?;
        Ok(Arc::new(Link::new(
            self.peer(gid),
            token,
            false,
            socket,
            limits,
        )))
    }

    fn wait_for_answer(&self, socket: &LinkSocket, left: Duration) -> rustix::io::Result<bool> {
        // In a simulation, the thread that would answer is this one.
        #[cfg(feature = "test-util")]
        if let Some(greet_dialers) = self.greet_dialers {
            greet_dialers();
            return socket.wait(Duration::ZERO);
        }
        socket.wait(left)
    }

    /// Tells the peer which ring the sender of `attach` receives from, after announcing its context
    /// and the context's arenas.
    pub(crate) fn attach(
        &self,
        context: &Domain,
        link: &Link,
        attach: LinkMessage,
        ring: impl AsFd,
    ) -> io::Result<()> {
        let ring: BorrowedFd<'_> = ring.as_fd();
        let sent = link.attach(context, attach, ring);
        self.after_sending(link, sent).map_err(io::Error::other)
    }

    /// Fails the queue pair `from`, whose ring the queue pair `to` of the peer does not get.
    pub(crate) fn attach_refused(&self, gid: Gid, from: u32, to: u32) {
        if let Some((domain, qp_index)) = self.find_queue_pair(from)
            && let Ok(mut state) = domain.enter()
        {
            state.attach_refused(qp_index, from, (gid, to));
        }
    }

    /// Waits for the process of `gid` to claim it: see [`Claims`](super::super::claims::Claims).
    pub(crate) fn expect_claim(
        &self,
        gid: Gid,
        qp_num: QpNum,
        on_claim: OnClaim,
    ) -> io::Result<AwaitedClaim> {
        Ok(self.claims.expect(self.gid, gid, qp_num, on_claim)?)
    }

    /// Proves to the process of `gid` that this process has its own GID: sends back a number that
    /// the process made up for this process's offer of `qp_num`. Takes about this time at most.
    pub(crate) fn claim(
        &self,
        gid: Gid,
        nonce: Nonce,
        qp_num: QpNum,
        time: Duration,
    ) -> Result<(), ModifyError> {
        let link = self.link_to(gid, time.min(GREETING_TIME))?;
        let qp_num = qp_num.0;
        let sent = link.respond(LinkMessage::Claim { nonce, qp_num });
        self.after_sending(&link, sent)
            .map_err(|error| ModifyError::Unreachable {
                gid,
                action: "be sent a claim",
                source: io::Error::other(error),
            })
    }

    /// Announces a newly registered arena to the peers that know its context. Fails if a peer does
    /// not map so much.
    pub(crate) fn announce_arena(
        &self,
        context: &Domain,
        number: u64,
        memory: &Arc<SharedMemory>,
    ) -> io::Result<()> {
        for link in self.links.all() {
            let sent = link.announce_arena(context.number, number, memory);
            match self.after_sending(&link, sent) {
                Ok(()) => {}
                // A peer that keeps less than every process of this version does must not limit
                // what this process registers.
                Err(SendError::Limit(error)) if !link.has_unusual_limits() => {
                    return Err(io::Error::other(error));
                }
                Err(error) => self.end_link(&link, &error),
            }
        }
        Ok(())
    }

    /// Withdraws an arena from the peers that know it.
    pub(crate) fn withdraw_arena(&self, number: u64) {
        for link in self.links.all() {
            // A peer that has ended need not be told.
            let _ = self.after_sending(&link, link.withdraw_arena(number));
        }
    }

    /// Tells the peers that know a context that it was closed.
    pub(crate) fn withdraw_context(&self, number: u32) {
        for link in self.links.all() {
            let _ = self.after_sending(&link, link.withdraw_context(number));
        }
    }

    /// Closes a link on which sending failed for good, and has the engine send what waits.
    pub(crate) fn after_sending(
        &self,
        link: &Link,
        sent: Result<(), SendError>,
    ) -> Result<(), SendError> {
        if let Err(error) = &sent
            && error.ends_link()
        {
            self.end_link(link, error);
        }
        if link.awaits_room() {
            self.watch_room(link, true);
        }
        if link.is_waiting() && !self.has_waiting_links.swap(true, Ordering::AcqRel) {
            self.wake_engine();
        }
        sent
    }

    fn end_link(&self, link: &Link, error: &SendError) {
        if !link.peer.is_gone() {
            log_limited!(warn, gid = ?link.peer.gid, %error, "closed a link of the software device, and ends its connections: the peer cannot be told what it has to know");
        }
        self.end_peer(&link.peer);
    }

    /// Returns true if messages may wait on a link.
    pub(crate) fn has_waiting_links(&self) -> bool {
        self.has_waiting_links.load(Ordering::Acquire)
    }

    /// Sends what waits on the links.
    pub(crate) fn flush_links(&self, now: Instant) {
        // Cleared first: a thread that queues a message meanwhile sets it again.
        if !self.has_waiting_links.swap(false, Ordering::AcqRel) {
            return;
        }
        for link in self.links.all() {
            if link.is_waiting() {
                self.flush_link(&link, now);
            }
        }
    }

    /// Sends what waits on a link.
    pub(crate) fn flush_link(&self, link: &Link, now: Instant) {
        // Cleared first: a thread that queues a message meanwhile sets it again.
        self.watch_room(link, false);
        if let Err(error) = link.flush(now) {
            self.end_link(link, &error);
            return;
        }
        for (from, to) in link.take_failed() {
            log_limited!(warn, gid = ?link.peer.gid, qp_num = from, "the ring of a queue pair was not announced: the processes of this user have too many files in flight (RLIMIT_NOFILE)");
            self.attach_refused(link.peer.gid, from, to);
        }
        if link.awaits_room() {
            self.watch_room(link, true);
        }
        if link.is_waiting() {
            self.has_waiting_links.store(true, Ordering::Release);
        }
    }
}

fn unreachable(gid: Gid, error: LinkError) -> ModifyError {
    let source = match error {
        LinkError::Os { errno, .. } => match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Some(errno.into()),
            // No other call of a link returns it.
            Errno::NOSPC => Some(not_watched(errno)),
            _ => None,
        },
        _ => None,
    };
    match source {
        // Not for a reason of the peer's.
        Some(source) => ModifyError::Os {
            action: "make a link to the other process",
            source,
        },
        None => ModifyError::Unreachable {
            gid,
            action: "be reached",
            source: io::Error::other(error),
        },
    }
}
