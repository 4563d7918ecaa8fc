//! Credits of the driver: promises receives to peers, and sends the credits that no response
//! carries.

use super::body::{Body, Response};
use super::connections::Connections;
use super::link::LinkKey;
use super::link_streams::StreamKey;
use super::links::Links;
use super::outbox::Class;
use crate::protocol::credit::UNCREDITED_RECEIVES;
use crate::transport::Transport;

/// Receives that are kept posted beyond those that are promised, so that most calls change nothing.
const POSTED_AHEAD: u32 = 64;

/// Receives that windows leave for each link of a client: one for the response to a call, and one for
/// the first window of its streams and long responses. A call needs its receive only until it ends, but
/// a server keeps what a window has promised to it until it has been idle for a while.
const KEPT_FOR_CLIENT_LINK: u32 = 2;

/// Receives that a client promises to a server with its first stream. The window grows as it is
/// used up.
const FIRST_WINDOW: u32 = 16;

impl<T: Transport> Connections<T> {
    /// Keeps half of the receives for links with few unary calls, so that each link always gets its
    /// share of them, whatever the others have in flight.
    pub(crate) fn share_receives(&self) {
        let state = &mut *self.state.borrow_mut();
        state.links.kept_receives = state.links.budget.capacity() / 2;
        let links = state.links.transport.limits().max_connections.max(1);
        // Of the kept receives, a link may also take those for frames without a credit, and one for
        // the first window of its streams. The windows grow by other receives.
        let others = UNCREDITED_RECEIVES + 1;
        let share = state.links.kept_receives / links;
        state.links.link_share = share.saturating_sub(others).max(1);
    }
}

impl<T: Transport> Links<T> {
    /// Returns the receives by which windows may grow: those not set aside for future connections, and
    /// not kept for links that use few or for the calls of this side.
    pub(crate) fn free_for_growth(&self) -> u32 {
        let for_calls = self.client_links.saturating_mul(KEPT_FOR_CLIENT_LINK);
        let kept = self
            .set_aside()
            .saturating_add(self.kept_receives.max(for_calls));
        self.budget.left().saturating_sub(kept)
    }

    /// Returns the receives that are set aside for the first windows of future connections.
    fn set_aside(&self) -> u32 {
        self.expected_connections
            .saturating_mul(self.initial_window + UNCREDITED_RECEIVES)
    }

    /// Records that the credit of a request is owed and that no response carries it now.
    pub(crate) fn owe(&mut self, key: LinkKey) {
        self.outbox.control.insert(key);
        self.outbox.note_any();
    }

    /// Releases the slot of a frame whose promise was given back before.
    // Out of line: `release` is inlined where every call needs it, and calls seldom have such a frame.
    #[cold]
    #[inline(never)]
    pub(crate) fn release_slot(&mut self, buf: T::RecvBuf) {
        self.transport.release(buf);
    }

    /// Releases the slot of a response, and the promise made for it.
    #[inline]
    pub(crate) fn release_response(&mut self, buf: T::RecvBuf) {
        self.transport.release(buf);
        self.budget.release(1);
    }

    /// Discards a response that was taken from the call table.
    pub(crate) fn discard_response(&mut self, response: Response<T::RecvBuf>) {
        // A frame that was copied, or a long response, has released its slot before.
        if let Body::Slot(buf) = response.body {
            self.release_response(buf);
        }
    }

    /// Promises `count` receives, if necessary some that hold responses. Returns false, and promises
    /// none, if fewer are left.
    pub(crate) fn promise_receives(&mut self, count: u32) -> bool {
        if self.budget.left() < count {
            self.copy_responses_out();
        }
        self.promise(count)
    }

    /// Promises `count` receives, which are then posted. Returns false, and promises none, if fewer
    /// are left.
    #[inline]
    pub(super) fn promise(&mut self, count: u32) -> bool {
        let fits = self.budget.take(count);
        if self.budget.promised() > self.promisable {
            self.post_more();
        }
        fits
    }

    /// Posts receives for what is promised or set aside, and for promises that follow.
    #[cold]
    #[inline(never)]
    pub(super) fn post_more(&mut self) {
        self.set_posted_for(self.wanted_receives().max(self.posted_for));
    }

    /// Lets the number of posted receives fall if far fewer are wanted. Called now and then.
    pub(super) fn post_fewer(&mut self) {
        let wanted = self.wanted_receives();
        if wanted.saturating_add(POSTED_AHEAD) < self.posted_for {
            self.set_posted_for(wanted);
        }
    }

    fn set_posted_for(&mut self, receives: u32) {
        if receives != self.posted_for {
            self.posted_for = receives;
            self.transport.set_promised(receives);
        }
        self.promisable = if receives == self.budget.capacity() {
            u32::MAX
        } else {
            receives.saturating_sub(self.set_aside())
        };
    }

    /// Returns the number of receives to keep posted. A client whose connection was admitted may
    /// send before this poller accepts it, so its first window counts as promised.
    fn wanted_receives(&self) -> u32 {
        let promised = self.budget.promised().saturating_add(self.set_aside());
        let wanted = promised.saturating_add(POSTED_AHEAD);
        wanted.min(self.budget.capacity())
    }

    /// Copies the responses that have not been taken yet out of their slots, because no receive is
    /// left to promise.
    #[cold]
    pub(super) fn copy_responses_out(&mut self) {
        let mut slots = Vec::new();
        for link in self.table.values_mut() {
            link.calls.copy_responses_out(|buf| slots.push(buf));
        }
        for buf in slots {
            self.release_response(buf);
        }
    }

    /// Returns true if requests or messages of streams of a connection wait for credits.
    pub(super) fn others_wait_for_credits(&self, link: LinkKey) -> bool {
        !self.table[link].waiters.has_no_waiters() || self.outbox.streams.len_of(link) > 0
    }

    /// Returns the number of credits of a link that frames of a class may take now.
    pub(super) fn credits_for(&mut self, class: Class, key: LinkKey) -> usize {
        let others_wait = self.others_wait_for_credits(key);
        let link = &mut self.table[key];
        let available = link.connection.messages_allowed() as usize;
        class.credits(available, others_wait, &mut link.bodies.last_credit)
    }

    /// Makes sure that the server holds receives for messages and responses of streams.
    pub(super) fn has_window_for_streams(&mut self, link: LinkKey) -> bool {
        if self.table[link].connection.window_len() > 0 {
            return true;
        }
        let receives = FIRST_WINDOW.min(self.free_for_growth().max(1));
        let fits = self.promise(receives);
        if fits {
            self.table[link].connection.open_window(receives);
        }
        fits
    }

    /// Promises receives to a server that has messages or their rest to send and holds none. If none
    /// are free, a later turn tries again.
    #[cold]
    pub(super) fn open_window(&mut self, link: LinkKey) {
        if self.has_window_for_streams(link) {
            self.owe(link);
        } else {
            self.outbox.windows.insert(link);
            self.outbox.note_any();
        }
    }

    pub(super) fn open_windows(&mut self) {
        for _ in 0..self.outbox.windows.len() {
            let Some(key) = self.outbox.windows.pop() else {
                break;
            };
            let link = &self.table[key];
            if link.ended.is_none() && link.connection.wants_window() {
                self.open_window(key);
            }
        }
    }

    /// Takes back what a request had until its handler's first poll has ended: its credit, which is recorded
    /// as owed, and perhaps its reference to the peer.
    #[inline(always)]
    pub(super) fn take_back(&mut self, link: LinkKey) {
        if let Some(entry) = self.table.get_mut(link) {
            if let Some(peer) = &mut entry.peer {
                peer.take_back();
            }
            if entry.owe_credit() {
                self.grow_window(link);
            }
        }
    }

    #[cold]
    pub(super) fn grow_window(&mut self, link: LinkKey) {
        let free = self.free_for_growth();
        let Some(entry) = self.table.get(link) else {
            return;
        };
        let growth = entry.connection.wants_growth(free);
        if growth > 0 && self.promise(growth) {
            self.table[link].connection.grow(growth);
        }
    }

    /// Releases the slot of a frame that took a credit, and records the credit as owed.
    #[inline(always)]
    pub(super) fn release_received(&mut self, link: LinkKey, buf: T::RecvBuf) {
        self.transport.release(buf);
        if let Some(entry) = self.table.get_mut(link)
            && (entry.owe_credit() || entry.connection.wants_control_frame())
        {
            self.after_owing(link);
        }
    }

    /// Grows the window of a client that uses all of it, and owes a control frame if many credits are owed:
    /// fewer wait for a frame that carries them.
    #[cold]
    fn after_owing(&mut self, link: LinkKey) {
        self.grow_window(link);
        let entry = self.table.get(link);
        if entry.is_some_and(|entry| entry.connection.wants_control_frame()) {
            self.owe(link);
        }
    }

    /// Lets a stream wait for a credit.
    pub(super) fn stall(&mut self, link: LinkKey, key: StreamKey) {
        let is_new = self.outbox.streams.insert(link, key);
        self.outbox.note_any();
        self.counters.streams.stalled.add(is_new.into());
    }

    /// Promises receives, or more of them, to a server that had too few credits to send its response at
    /// once. The next frame grants them. Half of the receives are left for calls: without credits, a
    /// response is read.
    pub(super) fn open_window_for_next(&mut self, link: LinkKey) {
        if self.free_for_growth() > self.budget.capacity() / 2 {
            match self.table[link].connection.window_len() {
                0 => self.open_window(link),
                _ => self.grow_window(link),
            }
        }
    }
}
