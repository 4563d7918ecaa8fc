//! [`Connection`]: the protocol state of one connection, without its bytes.
//!
//! The caller reports every header that arrives ([`handle_header`](Connection::handle_header)) and
//! requests every header to send ([`next_header`](Connection::next_header)). The connection tracks
//! the credits in both directions and the limits that both sides agreed on, and reports the rule
//! that a peer violates. It does no I/O, has no clock, and knows neither messages nor buffers, so
//! tests can try every order of events.
//!
//! | file | what it has |
//! | --- | --- |
//! | this one | frames to send, unary calls, idle time, shutdown |
//! | `receive.rs` | frames that arrive |
//! | `streams.rs` | the credits and counters that only streams and long messages use |
//! | `model.rs` | a test that visits every reachable state of two sides |

mod error;
#[cfg(any(test, feature = "test-util"))]
pub(crate) mod model;
mod receive;
mod streams;
#[cfg(test)]
mod tests;

use super::credit::{ReceiveWindow, SendCredits};
use super::frame::{CallId, Flags, FrameHeader, FrameKind};
use super::session::Agreed;

pub use error::ProtocolError;

/// The most bytes of a long message that are sent in fragments before the receiver has accepted it.
pub(crate) const FREE_FRAGMENTS: u32 = 64 * 1024;

/// The most long messages that one side of a connection may have under way. More wait at the sender.
pub(crate) const MAX_TRANSFERS: usize = 256;

/// The most segments of a long message that its receiver has not released. The sender then waits.
pub(crate) const MAX_SEGMENTS: usize = 64;

/// The most receives that a client promises to its server.
const MAX_CLIENT_WINDOW: u32 = 256;

/// The side of a connection. Requests only go from the client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The side that connected.
    Client,
    /// The side that listened.
    Server,
}

/// Whether this side uses its credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Activity {
    /// Used since [`Connection::take_was_used`] last looked.
    Used,
    /// Not used since then.
    Unused,
    /// Not used for so long that this side returns those that it can do without.
    Idle,
}

/// The peer's latest frame that takes a credit, or has a long response. One byte, which each such frame
/// overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LatestFrame(u8);

impl LatestFrame {
    /// There was none.
    const NONE: Self = Self(0);
    const ARRIVED: u8 = 1;
    /// The peer had no more credits, or too few ([`Flags::SPENT`]). Only the peer can know this, because
    /// credits that this side granted may still be in flight.
    const SPENT: u8 = Flags::SPENT.bits();
    /// [`LatestFrame::take_is_new`] has seen it.
    const SEEN: u8 = 4;

    #[inline]
    fn of(header: &FrameHeader) -> Self {
        Self(header.flags.bits() & Self::SPENT | Self::ARRIVED)
    }

    #[inline]
    fn has_spent(self) -> bool {
        self.0 & Self::SPENT != 0
    }

    fn take_is_new(&mut self) -> bool {
        let is_new = self.0 & (Self::ARRIVED | Self::SEEN) == Self::ARRIVED;
        if is_new {
            self.0 |= Self::SEEN;
        }
        is_new
    }
}

/// The state of one connection that both sides share.
#[derive(Debug)]
#[cfg_attr(any(test, feature = "test-util"), derive(Clone, PartialEq, Eq, Hash))]
pub struct Connection {
    role: Role,
    credits: SendCredits,
    window: ReceiveWindow,
    /// Client: unary requests sent and not yet responded to. Server: unary requests received and not
    /// yet responded to.
    calls_in_flight: u32,
    max_in_flight: u32,
    /// The same for requests that opened a stream.
    streams: u32,
    max_streams: u32,
    /// Long messages of this side that it has begun and not announced in full.
    sending: u32,
    /// The same of the peer.
    receiving: u32,
    /// The most receives that the window may have.
    max_window: u32,
    /// Credits granted in the handshake. A client always keeps this many, however long it is idle.
    initial_credits: u32,
    /// The server ends the connection, as decided by this side or announced by the peer.
    going_away: bool,
    /// Receives freed by shrinking the window, not yet returned to the budget.
    freed: u32,
    /// Server: a frame has announced the shutdown to the client.
    has_announced: bool,
    activity: Activity,
    latest: LatestFrame,
}

impl Connection {
    /// Creates the client's state after a handshake.
    #[must_use]
    pub fn client(agreed: &Agreed) -> Self {
        let credits = SendCredits::new(agreed.initial_credits, agreed.max_in_flight);
        let window = ReceiveWindow::new(0);
        Self::new(Role::Client, agreed, credits, window, MAX_CLIENT_WINDOW)
    }

    /// Creates the server's state after a handshake.
    #[must_use]
    pub fn server(agreed: &Agreed) -> Self {
        let credits = SendCredits::new(0, MAX_CLIENT_WINDOW);
        let window = ReceiveWindow::new(agreed.initial_credits);
        Self::new(Role::Server, agreed, credits, window, agreed.max_in_flight)
    }

    fn new(
        role: Role,
        agreed: &Agreed,
        credits: SendCredits,
        window: ReceiveWindow,
        max_window: u32,
    ) -> Self {
        Self {
            role,
            credits,
            window,
            calls_in_flight: 0,
            max_in_flight: agreed.max_in_flight,
            streams: 0,
            max_streams: agreed.max_streams,
            sending: 0,
            receiving: 0,
            max_window,
            initial_credits: agreed.initial_credits,
            going_away: false,
            freed: 0,
            has_announced: false,
            activity: Activity::Unused,
            latest: LatestFrame::NONE,
        }
    }

    /// Returns the receives freed since the last call of [`take_freed`](Self::take_freed).
    #[cfg(debug_assertions)]
    pub(crate) fn freed(&self) -> u32 {
        self.freed
    }

    /// Takes the receives freed since the last call. The caller returns them to the budget.
    pub fn take_freed(&mut self) -> u32 {
        std::mem::take(&mut self.freed)
    }

    /// Builds the header of a frame to send, with the credits that it carries. The caller must send
    /// the frame, because these credits are no longer recorded as owed.
    #[inline(always)]
    pub fn next_header(&mut self, kind: FrameKind, call: CallId, selector: u16) -> FrameHeader {
        self.next_header_with(kind, Flags::NONE, call, selector)
    }

    /// Like [`next_header`](Self::next_header), with flags of the caller: of those, only
    /// [`Flags::STREAM`] changes what the frame counts for.
    #[inline(always)]
    pub fn next_header_with(
        &mut self,
        kind: FrameKind,
        flags: Flags,
        call: CallId,
        selector: u16,
    ) -> FrameHeader {
        let (credits, ack) = self.window.take_owed();
        let mut header = FrameHeader {
            kind,
            flags: flags | ack,
            credits,
            call,
            selector,
            metadata_len: 0,
            time_us: 0,
        };
        let is_stream = flags.contains(Flags::STREAM);
        match kind {
            FrameKind::Request | FrameKind::Message | FrameKind::Continuation => {
                header.flags |= self.spent();
            }
            FrameKind::Response if is_stream => {
                header.flags |= self.spent();
                self.streams = self.streams.saturating_sub(1);
            }
            FrameKind::Response => self.calls_in_flight = self.calls_in_flight.saturating_sub(1),
            FrameKind::Control => self.complete_control_header(&mut header),
            FrameKind::Acknowledgement => {}
        }
        if self.going_away && self.role == Role::Server {
            self.announce_shutdown(&mut header);
        }
        header
    }

    /// Returns [`Flags::SPENT`] if this side has no credit left.
    #[inline]
    fn spent(&self) -> Flags {
        match self.credits.available() {
            0 => Flags::SPENT,
            _ => Flags::NONE,
        }
    }

    /// Records a control frame. If this side has credits to return, and owes few, the frame has the
    /// former in place of the latter.
    #[cold]
    fn complete_control_header(&mut self, header: &mut FrameHeader) {
        self.window.control_frame_sent();
        let surplus = self.surplus();
        self.window
            .restore_owed(std::mem::take(&mut header.credits));
        if surplus > 0 && !self.owes_many() {
            let kept = self.credits.available() - surplus;
            header.credits = self.credits.take_surplus(kept);
            header.flags |= Flags::RETURNED;
        } else {
            (header.credits, _) = self.window.take_owed();
        }
    }

    /// Announces the server's shutdown in a header. Unless the client's streams or long messages still
    /// need them, its credits are removed from it, because the client could no longer use them.
    #[cold]
    fn announce_shutdown(&mut self, header: &mut FrameHeader) {
        header.flags |= Flags::GOING_AWAY;
        self.has_announced = true;
        if !self.peer_sends() {
            self.window
                .restore_owed(std::mem::take(&mut header.credits));
        }
    }

    /// Returns the number of further requests that may be sent now.
    #[must_use]
    pub fn requests_allowed(&self) -> u32 {
        self.credits
            .available()
            .min(self.max_in_flight - self.calls_in_flight)
    }

    /// Takes the credit and the in-flight capacity that a request needs. Returns false if either is
    /// exhausted.
    pub fn take_request(&mut self) -> bool {
        let allowed = self.requests_allowed() > 0 && self.credits.take();
        self.calls_in_flight += u32::from(allowed);
        self.activity = Activity::Used;
        allowed
    }

    /// Reverts [`take_request`](Self::take_request) for a request that was not sent.
    pub fn return_request_credit(&mut self) {
        self.credits.return_credit();
        // A malicious peer may already have responded to the unsent request. The check of the
        // call's id detects this.
        self.calls_in_flight = self.calls_in_flight.saturating_sub(1);
    }

    /// Records that the receive of a frame that took a credit is free again.
    pub fn release_receive(&mut self) {
        self.window.release();
    }

    /// Returns true if the peer would benefit from a larger window.
    #[inline]
    #[must_use]
    pub(crate) fn has_used_all_credits(&self) -> bool {
        self.latest.has_spent()
    }

    /// Returns the number of receives by which to grow the window, given the number of free
    /// receives. If the peer has used up its credits, the window doubles, but takes at most a
    /// quarter of the free receives, so that other connections can grow too.
    #[must_use]
    pub fn wants_growth(&self, free: u32) -> u32 {
        if !self.latest.has_spent() || self.going_away {
            return 0;
        }
        let size = self.window.size();
        size.min(self.max_window.saturating_sub(size)).min(free / 4)
    }

    /// Grows the window by receives that the caller took from the budget.
    pub fn grow(&mut self, receives: u32) {
        self.window.grow(receives);
    }

    /// Returns true if a control frame should be sent even without entries: if many credits are owed
    /// that the peer can use, if credits are to be returned, or if the client has not been notified
    /// of the shutdown.
    #[must_use]
    pub fn wants_control_frame(&self) -> bool {
        self.may_send_control_frame()
            && (self.must_announce_shutdown() || self.owes_many() || self.surplus() > 0)
    }

    /// Returns true if a control frame may be sent, because the previous one has been acknowledged.
    #[must_use]
    pub(crate) fn may_send_control_frame(&self) -> bool {
        self.window.may_send_control_frame()
    }

    /// Returns true if the acknowledgement of the peer's control frame is still to be sent, and may
    /// be sent in a frame of its own.
    #[inline]
    #[must_use]
    pub fn wants_ack_frame(&self) -> bool {
        self.window.owes_ack()
    }

    /// Returns true if many credits are owed that the peer may have a use for.
    fn owes_many(&self) -> bool {
        let has_use = match self.role {
            // A client that was notified of the shutdown starts no more calls.
            Role::Server => !self.going_away || self.peer_sends(),
            Role::Client => self.peer_sends(),
        };
        has_use && self.window.owes_half()
    }

    /// Returns the number of credits that this side should return to the peer.
    fn surplus(&self) -> u32 {
        let is_idle = self.activity == Activity::Idle;
        let kept = match self.role {
            Role::Client if self.going_away && !self.sends() => 0,
            Role::Client if is_idle || self.going_away => self.initial_credits,
            Role::Server if is_idle && !self.going_away && !self.sends() => 0,
            _ => return 0,
        };
        self.credits.available().saturating_sub(kept)
    }

    /// Returns the number of credits that the peer keeps when it returns the others.
    fn peer_keeps(&self) -> u32 {
        match self.role {
            // The same condition as in `surplus`. The server's streams end before the client's, and the
            // last piece of a message arrives before the client's next control frame.
            Role::Server if self.going_away && !self.peer_sends() => 0,
            Role::Server => self.initial_credits,
            Role::Client => 0,
        }
    }

    /// Begins the server's shutdown. From now on every frame announces it, and grants credits only
    /// while streams are open or long messages of the client are under way.
    pub(crate) fn go_away(&mut self) {
        self.going_away = true;
    }

    /// Returns true if the server ends the connection, as decided by this side or announced by the peer.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn is_going_away(&self) -> bool {
        self.going_away
    }

    /// Returns true if this side is a server that has not announced its shutdown to the client yet.
    #[must_use]
    pub(crate) fn must_announce_shutdown(&self) -> bool {
        self.role == Role::Server && self.going_away && !self.has_announced
    }

    /// Returns true if the client can send nothing more, all of its requests have been responded to,
    /// and no pieces of long messages follow in either direction. Only on the server. The client has
    /// then returned all of its credits.
    #[must_use]
    pub(crate) fn is_finished(&self) -> bool {
        self.window.is_spent() && self.is_at_rest()
    }

    /// Returns true if no call is in flight, no stream is open, and no pieces of long messages follow.
    pub(crate) fn is_at_rest(&self) -> bool {
        (self.calls_in_flight | self.streams | self.sending | self.receiving) == 0
    }

    /// Returns true if the connection was used since the last call of this method: a client sent a
    /// request or a message; a server had a stream open; or pieces of a long message are to follow.
    pub(crate) fn take_was_used(&mut self) -> bool {
        let was_used = self.activity == Activity::Used
            || (self.role == Role::Server && self.streams > 0)
            || (self.sending | self.receiving) > 0;
        if was_used {
            self.activity = Activity::Unused;
        }
        was_used
    }

    /// Returns true if the peer has sent a frame that takes a credit. Its first one is a request, if
    /// this side is the server.
    pub(crate) fn has_been_called(&self) -> bool {
        self.latest != LatestFrame::NONE
    }

    /// Returns true if the peer has sent a frame that takes a credit since the last call of this method.
    pub(crate) fn take_was_called(&mut self) -> bool {
        self.latest.take_is_new()
    }

    /// Records that the connection has not been used for long. Until it is used again, this side
    /// returns the credits that it can do without. A client without streams and without long messages
    /// that arrive also takes back the receives that it owes to the server
    /// ([`take_freed`](Self::take_freed)).
    pub fn become_idle(&mut self) {
        self.activity = Activity::Idle;
        if self.role == Role::Client && !self.peer_sends() {
            self.freed += self.window.drop_owed();
        }
    }

    /// Returns the number of receives promised to the peer's frames that take a credit.
    #[must_use]
    pub fn window_len(&self) -> u32 {
        self.window.size()
    }
}
