//! Credits of the driver: promises receives to peers, and sends the credits that no response
//! carries.

use super::link::LinkKey;
use super::outbox::{Body, Class, Missing};
use super::response::{Response, ResponseFrame};
use super::{Driver, State};
use crate::protocol::credit::UNCREDITED_RECEIVES;
use crate::protocol::frame::{CallId, ENTRY_LEN, FrameKind, HEADER_LEN};
use crate::transport::Transport;

/// Receives that are kept posted beyond those that are promised, so that most calls change nothing.
const POSTED_AHEAD: u32 = 64;

/// Receives that windows leave for each link of a client: one for the response to a call, and one for
/// the first window of its streams and long responses. A call needs its receive only until it ends, but
/// a server keeps what a window has promised to it until it has been idle for a while.
const KEPT_FOR_CLIENT_LINK: u32 = 2;

impl<T: Transport> Driver<T> {
    /// Keeps half of the receives for links with few unary calls, so that each link always gets its
    /// share of them, whatever the others have in flight.
    pub(crate) fn share_receives(&self) {
        let state = &mut *self.state.borrow_mut();
        state.kept_receives = state.budget.capacity() / 2;
        let links = state.transport.limits().max_connections.max(1);
        // Of the kept receives, a link may also take those for frames without a credit, and one for
        // the first window of its streams. The windows grow by other receives.
        let others = UNCREDITED_RECEIVES + 1;
        let share = state.kept_receives / links;
        state.link_share = share.saturating_sub(others).max(1);
    }
}

impl<T: Transport> State<T> {
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
        self.owing.insert(key);
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
        if let ResponseFrame::Slot(buf) = response.frame {
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
        for link in self.links.values_mut() {
            link.calls.copy_responses_out(|buf| slots.push(buf));
        }
        for buf in slots {
            self.release_response(buf);
        }
    }

    /// Returns true if requests or messages of streams of a connection wait for credits.
    pub(super) fn others_wait_for_credits(&self, link: LinkKey) -> bool {
        !self.links[link].waiters.has_no_waiters() || self.streams.await_credits(link)
    }

    /// Returns the number of entries that wait for a control frame.
    pub(super) fn entries_owed(&self, link: LinkKey) -> usize {
        let entries = self.links[link].streams.entries_owed();
        entries + self.streams.grants_of(link) + self.transfers.entries_owed(link)
    }

    /// Sends the credits and acknowledgements that no other frame has carried.
    pub(crate) fn send_owed_credits(&mut self) {
        // Each is tried once: a link whose peer receives nothing must not hold up the others.
        for _ in 0..self.owing.len() {
            let Some(key) = self.owing.pop() else { break };
            if self.send_owed_by(key) {
                self.owing.insert(key);
            }
        }
    }

    /// Sends a control frame, or an acknowledgement, if a link needs one. Returns true if it needs
    /// another one.
    fn send_owed_by(&mut self, key: LinkKey) -> bool {
        let link = &mut self.links[key];
        if link.ended.is_some() {
            return false;
        }
        let may_send = link.connection.may_send_control_frame();
        if may_send {
            link.streams.collect_entries(key, &mut self.streams);
            link.transfers
                .collect_entries(key, &mut self.transfers, &mut link.streams.entries);
        }
        let kind =
            if link.connection.wants_control_frame() || (may_send && link.streams.has_entries()) {
                FrameKind::Control
            } else if link.connection.wants_ack_frame() {
                // The calls that the control frame woke are sent before the next turn ends.
                if !std::mem::replace(&mut link.ack_is_due, true) {
                    return true;
                }
                FrameKind::Acknowledgement
            } else {
                // If a client has yet to be notified of the shutdown and cannot be now, or grants and
                // cancels wait for an acknowledgement, keep the link.
                return link.connection.must_announce_shutdown() || self.entries_owed(key) > 0;
            };
        let room = self
            .transport
            .longest_frame(link.id)
            .saturating_sub(HEADER_LEN);
        let entries = match kind {
            FrameKind::Control => link.streams.entries_within(room),
            _ => 0,
        };
        let permit = self
            .outbox
            .permit(Class::Control, link, &mut self.transport);
        let body = Body::Slot(HEADER_LEN + entries * ENTRY_LEN);
        let sent = permit.and_then(|permit| {
            permit.send(body, |link, frame| {
                let header = link.connection.next_header(kind, CallId(0), 0);
                header.encode(frame);
                link.streams
                    .write_entries(entries, &mut frame[HEADER_LEN..]);
                Some(())
            })
        });
        self.counters.credits.frames_sent.add(sent.is_ok().into());
        match sent {
            // Grants and cancels that this frame does not have go with the next control frame.
            Ok(()) => self.entries_owed(key) > 0,
            // If the connection has ended, its credits no longer matter.
            Err(missing) => missing == Missing::Slot,
        }
    }
}
