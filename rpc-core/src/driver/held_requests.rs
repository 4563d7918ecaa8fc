//! [`HeldRequests`]: requests that do not begin while their host leaves much unread.
//!
//! A method whose handlers have made a long message is likely to make another one. While a host leaves as
//! many unread as it may (`peer_memory.rs`), further requests of such methods wait here, out of their slots.
//! They begin as the host reads. If none of their connection has begun for [`PATIENCE`], they are refused: a
//! client may read a stream only after another one has begun, which is held.

use std::collections::{HashMap, VecDeque};
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

/// The requests that are held.
#[derive(Debug)]
pub(super) struct HeldRequests<B> {
    /// Connections that have some.
    links: ReadySet<LinkKey>,
    of_links: HashMap<LinkKey, HeldOfLink<B>>,
    /// The server refuses all requests, and holds none.
    is_stopped: bool,
}

/// The requests of one connection that are held, oldest first.
#[derive(Debug)]
struct HeldOfLink<B> {
    requests: VecDeque<HeldRequest<B>>,
    /// When the latest of them went on, or the first one came.
    since: Instant,
}

#[derive(Debug)]
struct HeldRequest<B> {
    request: QueuedRequest<B>,
    /// Counts the copy of its frame.
    _memory: Charge,
}

impl<B> Default for HeldRequests<B> {
    fn default() -> Self {
        Self {
            links: ReadySet::default(),
            of_links: HashMap::new(),
            is_stopped: false,
        }
    }
}

impl<B: AsRef<[u8]>> HeldRequests<B> {
    /// Returns the number of connections.
    pub(super) fn links(&self) -> usize {
        self.links.len()
    }

    /// Returns the number of requests of a connection.
    #[cfg(any(debug_assertions, feature = "test-util"))]
    pub(super) fn len_of(&self, link: LinkKey) -> usize {
        let of_link = self.of_links.get(&link);
        of_link.map_or(0, |held| held.requests.len())
    }

    /// Returns true if the request of a call is held.
    pub(super) fn contains(&self, link: LinkKey, call: CallId) -> bool {
        let is_it = |held: &HeldRequest<B>| held.request.header.call == call;
        let of_link = self.of_links.get(&link);
        of_link.is_some_and(|held| held.requests.iter().any(is_it))
    }

    /// Takes the first request of a connection.
    fn pop(&mut self, link: LinkKey) -> Option<QueuedRequest<B>> {
        let held = self.of_links.get_mut(&link)?;
        let first = held.requests.pop_front();
        self.forget_if_empty(link);
        first.map(|held| held.request)
    }

    fn forget_if_empty(&mut self, link: LinkKey) {
        if self.of_links[&link].requests.is_empty() {
            self.of_links.remove(&link);
            self.links.remove(link);
        }
    }

    /// Returns true if a request for a method is to be held.
    pub(super) fn takes<T: Transport<RecvBuf = B>>(
        &self,
        links: &Links<T>,
        sending: &Sending,
        link: LinkKey,
        method: u16,
    ) -> bool {
        links.leaves_much_unread(link) && !self.is_stopped && sending.makes_long(method)
    }

    /// Takes the next request of a connection out of the run queue, if it is to be held.
    // Always inlined: each request asks, and mostly that is all.
    #[inline(always)]
    pub(super) fn take_next<T: Transport<RecvBuf = B>>(
        &self,
        links: &mut Links<T>,
        sending: &Sending,
        run_queue: &mut RunQueue,
        link: LinkKey,
    ) -> Option<QueuedRequest<B>> {
        match links.leaves_much_unread(link) {
            true => self.take_long(links, sending, run_queue, link),
            false => None,
        }
    }

    #[cold]
    fn take_long<T: Transport<RecvBuf = B>>(
        &self,
        links: &mut Links<T>,
        sending: &Sending,
        run_queue: &mut RunQueue,
        link: LinkKey,
    ) -> Option<QueuedRequest<B>> {
        let method = links[link].requests.oldest()?.header.selector;
        let is_held = self.takes(links, sending, link, method);
        is_held
            .then(|| run_queue.take_oldest(links, link))
            .flatten()
    }

    /// Holds a request, whose slot was released. Returns false if its host may use no more memory.
    #[must_use]
    pub(super) fn hold<T: Transport<RecvBuf = B>>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        request: QueuedRequest<B>,
    ) -> bool {
        let copied = match &request.body {
            Body::Copied(frame) => frame.len(),
            // Its memory is counted elsewhere.
            Body::Slot(_) | Body::Long(_) => 0,
        };
        let len = copied + size_of::<HeldRequest<B>>();
        let mut memory = links[link].memory.charge(Use::Heap, 0);
        if !memory.resize(len as u64) {
            return false;
        }
        let held = self.of_links.entry(link).or_insert_with(|| HeldOfLink {
            requests: VecDeque::new(),
            since: links.clock.now(),
        });
        held.requests.push_back(HeldRequest {
            request,
            _memory: memory,
        });
        self.links.insert(link);
        links.outbox.note_any();
        true
    }

    /// Queues requests whose hosts have read enough. Returns those that were held in vain.
    pub(super) fn resume<T: Transport<RecvBuf = B>>(
        &mut self,
        links: &mut Links<T>,
        run_queue: &mut RunQueue,
    ) -> Vec<(LinkKey, QueuedRequest<B>)> {
        let now = links.clock.now();
        let mut in_vain = Vec::new();
        for _ in 0..self.links.len().min(LOOKS_PER_TURN) {
            // It is then the last one.
            let Some(link) = self.links.pop() else {
                break;
            };
            self.links.insert(link);
            let held = self.of_links.get_mut(&link);
            let held = held.expect("a connection in the list has some");
            if !links.leaves_much_unread(link) {
                held.since = now;
                if let Some(request) = self.pop(link) {
                    run_queue.queue_request(links, link, request);
                }
            } else if now.saturating_duration_since(held.since) >= PATIENCE {
                let request = self.pop(link);
                in_vain.extend(request.map(|request| (link, request)));
            }
        }
        in_vain
    }

    /// Queues all requests, because the server refuses all from now on, in their turns.
    pub(super) fn resume_all<T: Transport<RecvBuf = B>>(
        &mut self,
        links: &mut Links<T>,
        run_queue: &mut RunQueue,
    ) {
        self.is_stopped = true;
        while let Some(link) = self.links.first() {
            while let Some(request) = self.pop(link) {
                run_queue.queue_request(links, link, request);
            }
        }
    }

    /// Takes the request of a call that is to end, if it has these flags and is held, or waits for its turn.
    pub(super) fn take<T: Transport<RecvBuf = B>>(
        &mut self,
        links: &mut Links<T>,
        run_queue: &mut RunQueue,
        link: LinkKey,
        (call, flags): (CallId, Flags),
    ) -> Option<QueuedRequest<B>> {
        let held = self.of_links.get_mut(&link).and_then(|held| {
            let mut requests = held.requests.iter();
            let index = requests.position(|held| held.request.is_of(call, flags))?;
            held.requests.remove(index)
        });
        match held {
            Some(held) => {
                self.forget_if_empty(link);
                Some(held.request)
            }
            None => run_queue.take_queued(links, link, call, flags),
        }
    }

    /// Takes the requests of a connection that has ended.
    pub(super) fn take_all_of(
        &mut self,
        link: LinkKey,
    ) -> impl Iterator<Item = QueuedRequest<B>> + use<B> {
        self.links.remove(link);
        let held = self.of_links.remove(&link).into_iter();
        held.flat_map(|held| held.requests).map(|held| held.request)
    }
}
