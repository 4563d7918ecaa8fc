//! [`HeldRequests`]: requests that do not begin while their host leaves much unread.
//!
//! A method whose handlers have made a long message is likely to make another one. While a host leaves as
//! many unread as it may (`peer_memory.rs`), further requests of such methods wait here, out of their slots.
//! They begin as the host reads. If none of their connection has begun for [`PATIENCE`], they are refused: a
//! client may read a stream only after another one has begun, which is held.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use super::bodies::Sending;
use super::body::Body;
use super::link::LinkKey;
use super::links::Links;
use super::request_queue::QueuedRequest;
use super::run_queue::RunQueue;
use super::waiting::ReadySet;
use crate::peer_memory::{Charge, Use};
use crate::protocol::frame::{CallId, Flags};
use crate::transport::Transport;

/// How long a connection's requests are held until they are refused, if none of them begins.
const PATIENCE: Duration = Duration::from_secs(15);

/// Connections of which a turn looks at one request.
const LOOKS_PER_TURN: usize = 16;

/// The connections with requests that are held.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    links: ReadySet<LinkKey>,
    /// The server refuses all requests, and holds none.
    is_stopped: bool,
}

/// The requests of one connection that are held, oldest first.
#[derive(Debug)]
pub(super) struct HeldOfLink<B> {
    requests: VecDeque<HeldRequest<B>>,
    /// When the latest of them went on, or the first one came.
    since: Option<Instant>,
}

#[derive(Debug)]
struct HeldRequest<B> {
    request: QueuedRequest<B>,
    /// Counts the copy of its frame.
    _memory: Charge,
}

impl<B> Default for HeldOfLink<B> {
    fn default() -> Self {
        Self {
            requests: VecDeque::new(),
            since: None,
        }
    }
}

impl<B> HeldOfLink<B> {
    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if the request of a call is held.
    pub(super) fn contains(&self, call: CallId) -> bool {
        let mut requests = self.requests.iter();
        requests.any(|held| held.request.header.call == call)
    }

    fn take_first(&mut self) -> Option<QueuedRequest<B>> {
        self.requests.pop_front().map(|held| held.request)
    }

    fn are_in_vain(&self, now: Instant) -> bool {
        self.since
            .is_some_and(|since| now.saturating_duration_since(since) >= PATIENCE)
    }
}

impl HeldRequests {
    /// Returns the number of connections.
    pub(super) fn links(&self) -> usize {
        self.links.len()
    }

    /// Returns true if a request for a method is to be held.
    pub(super) fn takes<T: Transport>(
        &self,
        links: &Links<T>,
        sending: &Sending,
        link: LinkKey,
        method: u16,
    ) -> bool {
        let has_much_unread = links[link].memory.has_much_unread();
        has_much_unread && !self.is_stopped && sending.makes_long(method)
    }

    /// Takes the next request of a connection out of the run queue, if it is to be held.
    #[cold]
    pub(super) fn take_next<T: Transport>(
        &self,
        links: &mut Links<T>,
        sending: &Sending,
        run_queue: &mut RunQueue,
        link: LinkKey,
    ) -> Option<QueuedRequest<T::RecvBuf>> {
        let method = links[link].requests.oldest()?.header.selector;
        match self.takes(links, sending, link, method) {
            true => run_queue.take_oldest(links, link),
            false => None,
        }
    }

    /// Holds a request, whose slot was released. Returns false if its host may use no more memory.
    #[must_use]
    pub(super) fn hold<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        request: QueuedRequest<T::RecvBuf>,
    ) -> bool {
        let copied = match &request.body {
            Body::Copied(frame) => frame.len(),
            // Its memory is counted elsewhere.
            Body::Slot(_) | Body::Long(_) => 0,
        };
        let len = copied + size_of::<HeldRequest<T::RecvBuf>>();
        let now = links.clock.now();
        let entry = &mut links[link];
        let mut memory = entry.memory.charge(Use::Heap, 0);
        if !memory.resize(len as u64) {
            return false;
        }
        let held = &mut entry.held;
        if held.requests.is_empty() {
            held.since = Some(now);
        }
        held.requests.push_back(HeldRequest {
            request,
            _memory: memory,
        });
        self.links.insert(link);
        links.outbox.note_any();
        true
    }

    /// Queues requests whose hosts have read enough. Returns those that were held in vain.
    pub(super) fn resume<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        run_queue: &mut RunQueue,
    ) -> Vec<(LinkKey, QueuedRequest<T::RecvBuf>)> {
        let now = links.clock.now();
        let mut in_vain = Vec::new();
        for _ in 0..self.links.len().min(LOOKS_PER_TURN) {
            let Some(link) = self.links.pop() else {
                break;
            };
            let entry = &mut links[link];
            if !entry.memory.has_much_unread() {
                entry.held.since = Some(now);
                if let Some(request) = entry.held.take_first() {
                    run_queue.queue_request(links, link, request);
                }
            } else if entry.held.are_in_vain(now) {
                let request = entry.held.take_first();
                in_vain.extend(request.map(|request| (link, request)));
            }
            if links[link].held.len() > 0 {
                self.links.insert(link);
            }
        }
        in_vain
    }

    /// Queues all requests, because the server refuses all from now on, in their turns.
    pub(super) fn resume_all<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        run_queue: &mut RunQueue,
    ) {
        self.is_stopped = true;
        while let Some(link) = self.links.pop() {
            while let Some(request) = links[link].held.take_first() {
                run_queue.queue_request(links, link, request);
            }
        }
    }

    /// Takes the request of a call that is to end, if it has these flags and is held, or waits for its turn.
    pub(super) fn take<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        run_queue: &mut RunQueue,
        link: LinkKey,
        (call, flags): (CallId, Flags),
    ) -> Option<QueuedRequest<T::RecvBuf>> {
        let held = &mut links[link].held;
        let mut requests = held.requests.iter();
        let Some(index) = requests.position(|held| held.request.is_of(call, flags)) else {
            return run_queue.take_queued(links, link, call, flags);
        };
        let taken = held.requests.remove(index);
        if held.requests.is_empty() {
            self.links.remove(link);
        }
        taken.map(|held| held.request)
    }

    /// Takes the requests of a connection that has ended.
    pub(super) fn take_all_of<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
    ) -> impl Iterator<Item = QueuedRequest<T::RecvBuf>> + use<T> {
        self.links.remove(link);
        let held = mem::take(&mut links[link].held.requests);
        held.into_iter().map(|held| held.request)
    }
}
