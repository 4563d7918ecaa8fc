//! The TCP links of one context: the set of files that says which of them are readable, and the lists
//! of links that a poll looks at.
//!
//! A link that was used lately is *hot*: a poll reads from it directly. All others wait in one epoll
//! set, of which a poll asks once, however many there are.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};

use super::pending::{Matter, Pending};
use super::tcp_link::{LinkToken, TcpLink};
use crate::member_list::MemberList;
use crate::system_error::epoll_add;

/// Bytes that one read takes beyond the payload that it is in the middle of. Many short messages fit,
/// and what is read of a long one before its header is known, and has to be copied, is little.
const SCRATCH_LEN: usize = 32 * 1024;

/// Requests that are executed before they are acknowledged, though no message carries the
/// acknowledgement and the peer does not wait for it.
const ACK_INTERVAL: u64 = 32;

/// Time for which a connection is kept after a fatal NAK, and the maximum number of such connections.
const LINGER_TIME: Duration = Duration::from_secs(2);
const MAX_LINGERING: usize = 64;

/// Maximum number of hot links: with more, one system call for all of them is cheaper.
const MAX_HOT: usize = 4;

/// Empty reads after which a link is cold: some 100 µs of polling, longer than a response takes.
const EMPTY_READS: u32 = 256;
/// Reads after which a hot link of a context that is polled without a pause is silent: see
/// [`TcpLink::is_silent`].
const READS_BEFORE_SILENCE: u32 = 1024;
/// Looks at hot links for each look at the others.
const LOOKS_PER_WAIT: u32 = 4;
/// Bytes that hot links may move before the others are looked at, so that a short message waits for a
/// part of a long one only. To copy them takes far longer than a look.
const MOST_MOVED: usize = 64 * 1024;

/// Maximum number of links that one look at the epoll set finds.
const MAX_READY: usize = 64;

/// The TCP links of one context.
#[derive(Debug, Default)]
pub(crate) struct TcpLinks {
    /// `None` if the context has no links over TCP.
    files: Option<Arc<OwnedFd>>,
    engine: Option<Engine>,
    count: usize,
    /// Links that wait until they can be written to.
    blocked: usize,
    /// The links that polls read from directly.
    pub(crate) hot: Vec<HotLink>,
    /// Queue pairs whose requests are written at the next look.
    pub(crate) deferred: MemberList<0>,
    /// Number of looks at the hot links.
    looks: u32,
    /// Bytes that were read and written since the last look at the epoll set.
    pub(crate) moved: usize,
    /// Queue pairs whose peers wait for an acknowledgement.
    pub(crate) acks_due: MemberList<1>,
    /// Queue pairs that owe an acknowledgement that nothing waits for: the engine's tick sends them.
    pub(crate) acks_owed: MemberList<2>,
    /// Connections that were closed with a fatal NAK, until the peer has closed them too: a
    /// connection that is closed while bytes of the peer wait to be read is reset, and the NAK may
    /// be lost.
    lingering: VecDeque<(OwnedFd, Instant)>,
    scratch: Option<Box<[u8]>>,
    ready: Vec<ReadyLink>,
}

/// A link of which the epoll set says what can be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyLink {
    pub(crate) token: LinkToken,
    pub(crate) can_be_read: bool,
    pub(crate) can_be_written: bool,
}

/// How the engine is woken for the links of a context that no thread polls.
#[derive(Debug)]
struct Engine {
    set: Arc<OwnedFd>,
    token: u64,
}

/// A link that polls read from directly.
#[derive(Debug)]
pub(crate) struct HotLink {
    pub(crate) qp_index: u32,
    /// Consecutive reads that found nothing.
    empty_reads: u32,
    /// Reads since the link became hot.
    reads: u32,
}

/// How a link is read from after one more read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HotState {
    /// By polls, as before.
    Hot,
    /// By polls, which do so without a pause: the epoll set need not tell of it any more.
    Settled,
    /// When the epoll set tells. It was taken out of the hot links, and the last of them is at its place.
    Cold,
}

impl TcpLinks {
    /// Creates the list with the epoll set of its links, if the context may have any, and the
    /// engine's own set with the token of that set in it.
    pub(crate) fn new(
        files: Option<Arc<OwnedFd>>,
        (set, token): (Arc<OwnedFd>, u64),
    ) -> io::Result<Self> {
        let mut engine = None;
        if let Some(files) = &files {
            let data = epoll::EventData::new_u64(token);
            epoll_add(&set, files, data, epoll::EventFlags::empty())?;
            engine = Some(Engine { set, token });
        }
        Ok(Self {
            files,
            engine,
            ..Self::default()
        })
    }

    /// Has the engine woken once when a link can be read from, or not woken any more.
    pub(crate) fn set_watched_by_engine(&self, is_watched: bool) {
        let (Some(files), Some(Engine { set, token })) = (&self.files, &self.engine) else {
            return;
        };
        let flags = match is_watched {
            true => epoll::EventFlags::IN | epoll::EventFlags::ONESHOT,
            false => epoll::EventFlags::empty(),
        };
        // If this fails, the engine looks at its next tick.
        let _ = epoll::modify(set, files, epoll::EventData::new_u64(*token), flags);
    }

    /// Returns the number of links, and of those that wait until they can be written to.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.count, self.blocked)
    }

    /// Returns true if there are links that only the epoll set tells about: those that are not hot,
    /// and those that wait until they can be written to.
    fn needs_wait(&self) -> bool {
        self.hot.len() < self.count || self.blocked > 0
    }

    /// Adds the link of a queue pair, and has polls look at the links. It is hot at first, unless many
    /// are.
    pub(crate) fn add(
        &mut self,
        pending: &mut Pending,
        link: &mut TcpLink,
        token: LinkToken,
    ) -> io::Result<()> {
        let files = self.files.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let data = epoll::EventData::new_u64(token.encode());
        epoll_add(files, link.stream.readable(), data, epoll::EventFlags::IN)?;
        link.token = token;
        self.count += 1;
        pending.add(Matter::TcpLinks);
        self.make_hot(token.qp_index);
        Ok(())
    }

    /// Sets whether the set also waits until the link can be written to.
    pub(crate) fn set_blocked(&mut self, link: &mut TcpLink, is_blocked: bool) {
        if link.outbound.is_blocked == is_blocked {
            return;
        }
        link.outbound.is_blocked = is_blocked;
        // A link to itself can be written to again when it has been read from.
        if link.stream.is_to_itself() {
            return;
        }
        match is_blocked {
            true => self.blocked += 1,
            false => self.blocked = self.blocked.saturating_sub(1),
        }
        self.watch(link);
    }

    /// Sets whether the set is silent about what the link can be read from.
    pub(crate) fn set_silent(&mut self, link: &mut TcpLink, is_silent: bool) {
        if link.is_silent != is_silent {
            link.is_silent = is_silent;
            self.watch(link);
        }
    }

    /// Has the set watch what the link's state says.
    fn watch(&self, link: &TcpLink) {
        let Some(files) = &self.files else { return };
        let mut flags = epoll::EventFlags::empty();
        if !link.is_silent {
            flags |= epoll::EventFlags::IN;
        }
        if link.is_watched_for_writing() {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(link.token.encode());
        if let Err(error) = epoll::modify(files, link.stream.readable(), data, flags) {
            // The engine's tick looks at the link.
            tracing::debug!(%error, qp_num = %link.token.qp_num, "a link cannot be watched");
        }
    }

    /// Removes a link: its file is not watched any more, and no list has it. Does nothing if it was removed
    /// when its connection ended.
    pub(crate) fn remove(&mut self, pending: &mut Pending, link: &mut TcpLink) {
        let qp_index = link.token.qp_index;
        if let Some(files) = &self.files
            && epoll::delete(files, link.stream.readable()).is_ok()
        {
            self.count -= 1;
            if link.is_watched_for_writing() {
                self.blocked = self.blocked.saturating_sub(1);
            }
        }
        if self.count == 0 {
            pending.remove(Matter::TcpLinks);
        }
        self.hot.retain(|link| link.qp_index != qp_index);
        self.deferred.remove(&mut link.listed, qp_index);
        self.acks_due.remove(&mut link.listed, qp_index);
        self.acks_owed.remove(&mut link.listed, qp_index);
    }

    /// Keeps a connection until the peer has closed it, for a limited time.
    pub(crate) fn linger(&mut self, socket: OwnedFd, now: Instant) {
        if rustix::net::shutdown(&socket, Shutdown::Write).is_ok() {
            self.lingering.push_back((socket, now + LINGER_TIME));
        }
        if self.lingering.len() > MAX_LINGERING {
            self.lingering.pop_front();
        }
    }

    /// Discards what arrives on the connections that are kept, and closes those that the peer has
    /// closed or whose time is over. Called by the engine.
    pub(crate) fn end_lingering(&mut self, now: Instant) {
        let mut scratch = self.take_scratch();
        self.lingering.retain(|(socket, until)| {
            let read = rustix::net::recv(socket, &mut *scratch, RecvFlags::DONTWAIT);
            let is_open = match read {
                Ok((_, len)) => len > 0,
                Err(error) => error == Errno::AGAIN || error == Errno::INTR,
            };
            is_open && now < *until
        });
        self.put_scratch_back(scratch);
    }

    pub(crate) fn has_lingering(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// Finds links that can be read from or written to. The result is given back with
    /// [`put_back`](Self::put_back).
    pub(crate) fn take_ready(&mut self) -> Vec<ReadyLink> {
        self.moved = 0;
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        let mut space = [const { MaybeUninit::uninit() }; MAX_READY];
        let at_once = Timespec::default();
        let files = self.files.as_ref();
        // An interrupted wait finds nothing, and neither does a failed one: the links' own reads
        // report what is wrong with them.
        if let Some(Ok((events, _))) =
            files.map(|files| epoll::wait(files, &mut space, Some(&at_once)))
        {
            ready.extend(events.iter().map(|event| {
                let epoll::Event { flags, data, .. } = *event;
                ReadyLink {
                    token: LinkToken::decode(data.u64()),
                    // The end of a connection, or an error, is found by a read.
                    can_be_read: flags != epoll::EventFlags::OUT,
                    can_be_written: flags.contains(epoll::EventFlags::OUT),
                }
            }));
        }
        ready
    }

    pub(crate) fn put_back(&mut self, ready: Vec<ReadyLink>) {
        self.ready = ready;
    }

    /// Takes the memory that reads go to; given back with [`put_scratch_back`](Self::put_scratch_back).
    pub(crate) fn take_scratch(&mut self) -> Box<[u8]> {
        self.scratch
            .take()
            .unwrap_or_else(|| vec![0; SCRATCH_LEN].into())
    }

    pub(crate) fn put_scratch_back(&mut self, scratch: Box<[u8]>) {
        self.scratch = Some(scratch);
    }

    /// Has a queue pair's requests written at the next look.
    pub(crate) fn defer(&mut self, link: &mut TcpLink) {
        self.deferred.insert(&mut link.listed, link.token.qp_index);
    }

    /// Lists a link that has executed a request, until the peer is told.
    pub(crate) fn owe_ack(&mut self, link: &mut TcpLink) {
        let inbound = &link.inbound;
        let is_due =
            inbound.is_ack_requested || inbound.expected - inbound.acknowledged >= ACK_INTERVAL;
        let (listed, qp_index) = (&mut link.listed, link.token.qp_index);
        match is_due {
            true => self.acks_due.insert(listed, qp_index),
            false => self.acks_owed.insert(listed, qp_index),
        };
    }

    /// Records a look at the hot links, before which polls of the others are put off. Returns true if the
    /// others are due now: a context that is not polled perhaps makes no second look.
    pub(crate) fn are_others_due(&mut self, is_polled: bool) -> bool {
        self.looks = self.looks.wrapping_add(1);
        let is_due = !is_polled
            || self.hot.is_empty()
            || self.looks.is_multiple_of(LOOKS_PER_WAIT)
            || self.moved >= MOST_MOVED;
        is_due && self.needs_wait()
    }

    /// Records what a read of the hot link at this place has found: `is_idle` if nothing.
    pub(crate) fn after_read(&mut self, place: usize, is_idle: bool, is_polled: bool) -> HotState {
        let link = &mut self.hot[place];
        link.empty_reads = if is_idle { link.empty_reads + 1 } else { 0 };
        // Otherwise a message has to wake the thread, or the engine.
        link.reads = link.reads.saturating_add(u32::from(is_polled));
        let is_settled = is_polled && link.reads == READS_BEFORE_SILENCE;
        // A lone link stays hot: the set would cost as much.
        if link.empty_reads >= EMPTY_READS && self.count > 1 {
            self.hot.swap_remove(place);
            return HotState::Cold;
        }
        if is_settled {
            return HotState::Settled;
        }
        HotState::Hot
    }

    /// Begins to count reads again, before the context is not polled for a while. Returns true if the
    /// hot link at this place was settled.
    pub(crate) fn unsettle(&mut self, place: usize) -> bool {
        let link = &mut self.hot[place];
        std::mem::take(&mut link.reads) >= READS_BEFORE_SILENCE
    }

    /// Has polls read from a link directly, unless they do so from many.
    pub(crate) fn make_hot(&mut self, qp_index: u32) {
        let count = self.hot.len();
        match self.hot.iter_mut().find(|link| link.qp_index == qp_index) {
            Some(link) => link.empty_reads = 0,
            None if count >= MAX_HOT => {}
            None => self.hot.push(HotLink {
                qp_index,
                empty_reads: 0,
                reads: 0,
            }),
        }
    }
}
