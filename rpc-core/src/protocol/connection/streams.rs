//! The credits and counters of a [`Connection`] that streams and long messages use. Unary calls with
//! short messages use none of them.

use super::{Activity, Connection, Flags, Role};

impl Connection {
    /// Returns the number of streams that may be open at a time.
    #[must_use]
    pub fn max_streams(&self) -> u32 {
        self.max_streams
    }

    /// Returns the number of calls and streams that may be under way at a time.
    pub(crate) fn most_calls(&self) -> usize {
        self.max_in_flight.saturating_add(self.max_streams) as usize
    }

    /// Returns the number of open streams. Client: streams whose request was sent and whose response
    /// has not arrived. Server: streams whose request has arrived and whose response was not sent.
    #[inline]
    #[must_use]
    pub fn streams(&self) -> u32 {
        self.streams
    }

    /// Returns the number of message frames, continuations or responses to streams that may be sent
    /// now.
    #[inline]
    #[must_use]
    pub(crate) fn messages_allowed(&self) -> u32 {
        self.credits.available()
    }

    /// Takes the credit that a message frame, a continuation or the response to a stream needs.
    /// Returns false if there is none.
    #[inline]
    #[must_use]
    pub fn take_message(&mut self) -> bool {
        self.activity = Activity::Used;
        self.credits.take()
    }

    /// Reverts [`take_message`](Self::take_message) for a frame that was not sent.
    pub fn return_message_credit(&mut self) {
        self.credits.return_credit();
    }

    /// Takes the credit that the request of a stream needs, and counts the stream. Returns false if
    /// there is no credit, or if as many streams are open as agreed. Only on the client.
    #[must_use]
    pub fn take_stream(&mut self) -> bool {
        self.activity = Activity::Used;
        let allowed = self.streams < self.max_streams && self.credits.take();
        self.streams += u32::from(allowed);
        allowed
    }

    /// Reverts [`take_stream`](Self::take_stream) for a request that was not sent.
    pub fn return_stream(&mut self) {
        self.credits.return_credit();
        // A malicious peer may already have responded to the unsent request. The check of the
        // call's id detects this.
        self.streams = self.streams.saturating_sub(1);
    }

    /// Returns true if this side, a client, has streams open or a long response under way, and has
    /// promised the server no receive for their frames. The caller takes receives from the budget and
    /// calls [`open_window`](Self::open_window).
    #[must_use]
    pub fn wants_window(&self) -> bool {
        self.role == Role::Client && self.peer_sends() && self.window.size() == 0
    }

    /// Returns true if the peer has credits, or gets some with the next frame. Returns false if its
    /// frames occupy all receives that this side has promised.
    #[must_use]
    pub(crate) fn peer_has_credits(&self) -> bool {
        !self.window.is_occupied()
    }

    /// Returns true if this side may have frames to send that take a credit, besides requests: it has
    /// streams, or the rest of a long message.
    #[must_use]
    pub(super) fn sends(&self) -> bool {
        (self.streams | self.sending) > 0
    }

    /// Returns true if the peer may have frames to send that take a credit, besides requests.
    #[must_use]
    pub(super) fn peer_sends(&self) -> bool {
        (self.streams | self.receiving) > 0
    }

    /// Notes that this side has too few credits to send a long message at once, and keeps those that the
    /// peer grants for the next one. Returns the flag that asks for them.
    pub(crate) fn lack_credits(&mut self) -> Flags {
        self.activity = Activity::Used;
        Flags::SPENT
    }

    /// Counts a long message of which further pieces will be sent.
    pub(crate) fn begin_sending(&mut self) {
        self.sending += 1;
    }

    /// Records that no further piece of a long message will be sent.
    pub(crate) fn end_sending(&mut self) {
        self.sending = self.sending.saturating_sub(1);
    }

    /// Counts a long message of the peer of which further pieces will arrive.
    pub(crate) fn begin_receiving(&mut self) {
        self.receiving += 1;
    }

    /// Records that no further piece of a long message of the peer will arrive.
    pub(crate) fn end_receiving(&mut self) {
        self.receiving = self.receiving.saturating_sub(1);
    }

    /// Promises receives, which the caller took from the budget, to the server's messages and
    /// continuations. The next frame grants them. Only on the client.
    pub fn open_window(&mut self, receives: u32) {
        debug_assert!(self.role == Role::Client);
        self.window.grow(receives);
    }
}
