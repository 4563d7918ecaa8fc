//! [`Connection`]: the protocol state of one connection, without its bytes.
//!
//! The caller reports every header that arrives ([`handle_header`](Connection::handle_header)) and
//! requests every header to send ([`next_header`](Connection::next_header)). The connection tracks
//! the credits in both directions and the limits that both sides agreed on, and reports the rule
//! that a peer violates. It does no I/O, has no clock, and knows neither messages nor buffers, so
//! tests can try every order of events.

use super::credit::{CreditError, ReceiveWindow, SendCredits};
use super::frame::{CallId, FrameError, FrameHeader, FrameKind};

/// The side of a connection. Requests only go from the client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connected.
    Client,
    /// The side that listened.
    Server,
}

/// A rule that the peer violated. Every violation closes the connection, with this error as the
/// reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The bytes are not a valid frame.
    #[error("the peer sent {0}")]
    Frame(#[from] FrameError),
    /// The peer violated the credit rules.
    #[error("the peer violated the credit rules: {0}")]
    Credit(#[from] CreditError),
    /// The peer sent a request to a client, or a response to a server.
    #[error("the peer sent a {kind:?} frame to a {role:?}")]
    WrongDirection {
        /// The kind of frame received.
        kind: FrameKind,
        /// The role of this side.
        role: Role,
    },
    /// The peer has more calls in flight than agreed.
    #[error("the peer exceeded the agreed limit of {limit} calls in flight")]
    TooManyCalls {
        /// The agreed limit.
        limit: u32,
    },
    /// The peer set a flag that it must not set: a client set a server's flag, a server set a
    /// client's flag, or a client set its flag in a frame other than a credit frame.
    #[error("the peer set the flag '{flag}' in a {kind:?} frame to a {role:?}")]
    WrongFlag {
        /// The meaning of the flag.
        flag: &'static str,
        /// The kind of frame received.
        kind: FrameKind,
        /// The role of this side.
        role: Role,
    },
    /// The peer responded to a call that is not in flight.
    #[error("the peer responded to a call that is not in flight (id {:#010x})", call.0)]
    UnknownCall {
        /// The id received.
        call: CallId,
    },
}

/// The state of one connection that both sides share.
#[derive(Debug)]
pub(crate) struct Connection {
    role: Role,
    credits: SendCredits,
    window: ReceiveWindow,
    /// Client: requests sent and not yet responded to. Server: requests received and not yet
    /// responded to.
    calls_in_flight: u32,
    max_in_flight: u32,
    /// Credits granted in the handshake. A client always keeps this many, however long it is idle.
    initial_credits: u32,
    /// The server is shutting down, as decided by this side or announced by the peer.
    going_away: bool,
    /// Server: receives freed by shrinking the window, not yet returned to the budget.
    freed: u32,
    /// Server: a frame has announced the shutdown to the client.
    has_announced: bool,
    /// Client: a request was sent since the flag was last read.
    was_used: bool,
    /// Server: the client's latest request took its last credit. Only the client can know this,
    /// because credits that this side granted may still be in flight.
    client_used_all_credits: bool,
}

impl Connection {
    /// Creates the client's state after a handshake in which the server granted `initial_credits`.
    #[must_use]
    pub(crate) fn client(initial_credits: u32, max_in_flight: u32) -> Self {
        Self {
            role: Role::Client,
            credits: SendCredits::new(initial_credits, max_in_flight),
            window: ReceiveWindow::new(0),
            calls_in_flight: 0,
            max_in_flight,
            initial_credits,
            going_away: false,
            freed: 0,
            has_announced: false,
            was_used: false,
            client_used_all_credits: false,
        }
    }

    /// Creates the server's state after a handshake in which it granted `initial_credits`.
    #[must_use]
    pub(crate) fn server(initial_credits: u32, max_in_flight: u32) -> Self {
        Self {
            role: Role::Server,
            credits: SendCredits::new(0, 0),
            window: ReceiveWindow::new(initial_credits),
            calls_in_flight: 0,
            max_in_flight,
            initial_credits,
            going_away: false,
            freed: 0,
            has_announced: false,
            was_used: false,
            client_used_all_credits: false,
        }
    }

    /// Applies the header of a frame that arrived.
    ///
    /// # Errors
    ///
    /// Returns [`ProtocolError`] if the peer must not send this frame now.
    #[inline]
    pub(crate) fn handle_header(&mut self, header: &FrameHeader) -> Result<(), ProtocolError> {
        if header.going_away | header.credits_returned {
            self.handle_rare_flags(header)?;
        } else if header.credits != 0 {
            self.credits.add(header.credits)?;
        }
        if header.credit_ack {
            self.window.credit_frame_acknowledged()?;
        }
        match (header.kind, self.role) {
            (FrameKind::Request, Role::Server) => {
                self.window.consume()?;
                if self.calls_in_flight >= self.max_in_flight {
                    return Err(ProtocolError::TooManyCalls {
                        limit: self.max_in_flight,
                    });
                }
                self.calls_in_flight += 1;
                self.client_used_all_credits = header.credits_spent;
            }
            (FrameKind::Response, Role::Client) => {
                self.calls_in_flight = self
                    .calls_in_flight
                    .checked_sub(1)
                    .ok_or(ProtocolError::UnknownCall { call: header.call })?;
            }
            (FrameKind::Credit, _) => self.window.credit_frame_received()?,
            (kind, role) => return Err(ProtocolError::WrongDirection { kind, role }),
        }
        Ok(())
    }

    /// Handles the flags that few frames have, and the credits in such a frame.
    #[cold]
    fn handle_rare_flags(&mut self, header: &FrameHeader) -> Result<(), ProtocolError> {
        let wrong = |flag| ProtocolError::WrongFlag {
            flag,
            kind: header.kind,
            role: self.role,
        };
        if header.going_away {
            if self.role == Role::Server {
                return Err(wrong("going away"));
            }
            self.going_away = true;
        }
        if !header.credits_returned {
            return Ok(self.credits.add(header.credits)?);
        }
        if self.role == Role::Client || header.kind != FrameKind::Credit {
            return Err(wrong("credits returned"));
        }
        self.freed = self.window.reclaim(header.credits, self.kept_credits())?;
        Ok(())
    }

    /// Takes the receives freed by the client's latest credit frame. Only on the server. The caller
    /// returns them to the budget.
    pub(crate) fn take_freed(&mut self) -> u32 {
        std::mem::take(&mut self.freed)
    }

    /// Returns the number of credits that a client keeps when it returns the others.
    fn kept_credits(&self) -> u32 {
        // A client that was notified of the shutdown starts no more calls, so it keeps none.
        if self.going_away {
            0
        } else {
            self.initial_credits
        }
    }

    /// Builds the header of a frame to send, with the credits that it carries. The caller must send
    /// the frame, because these credits are no longer recorded as owed.
    #[inline]
    pub(crate) fn next_header(
        &mut self,
        kind: FrameKind,
        call: CallId,
        selector: u16,
    ) -> FrameHeader {
        let (credits, credit_ack) = self.window.take_owed();
        let mut header = FrameHeader {
            kind,
            credit_ack,
            credits_spent: false,
            going_away: false,
            credits_returned: false,
            credits,
            call,
            selector,
            metadata_len: 0,
            time_us: 0,
        };
        match kind {
            FrameKind::Request => header.credits_spent = self.credits.available() == 0,
            FrameKind::Response => self.calls_in_flight = self.calls_in_flight.saturating_sub(1),
            FrameKind::Credit => {
                self.window.credit_frame_sent();
                if self.role == Role::Client {
                    header.credits = self.credits.take_surplus(self.kept_credits());
                    header.credits_returned = true;
                }
            }
        }
        if self.going_away && self.role == Role::Server {
            self.announce_shutdown(&mut header);
        }
        header
    }

    /// Announces the server's shutdown in a header, and removes the credits from it, because the
    /// client could no longer use them.
    #[cold]
    fn announce_shutdown(&mut self, header: &mut FrameHeader) {
        header.going_away = true;
        self.has_announced = true;
        self.window
            .restore_owed(std::mem::take(&mut header.credits));
    }

    /// Returns the number of further requests that may be sent now.
    #[must_use]
    pub(crate) fn requests_allowed(&self) -> u32 {
        self.credits
            .available()
            .min(self.max_in_flight - self.calls_in_flight)
    }

    /// Takes the credit and the in-flight capacity that a request needs. Returns false if either is
    /// exhausted.
    pub(crate) fn take_request(&mut self) -> bool {
        let allowed = self.requests_allowed() > 0 && self.credits.take();
        self.calls_in_flight += u32::from(allowed);
        self.was_used = true;
        allowed
    }

    /// Reverts [`take_request`](Self::take_request) for a request that was not sent.
    pub(crate) fn return_request_credit(&mut self) {
        self.credits.return_credit();
        // A malicious peer may already have responded to the unsent request. The check of the
        // call's id detects this.
        self.calls_in_flight = self.calls_in_flight.saturating_sub(1);
    }

    /// Records that the receive of a request is free again.
    pub(crate) fn release_request(&mut self) {
        self.window.release();
    }

    /// Returns true if the client would benefit from a larger window.
    #[inline]
    #[must_use]
    pub(crate) fn has_used_all_credits(&self) -> bool {
        self.client_used_all_credits
    }

    /// Returns the number of receives by which to grow the window, given the number of free
    /// receives. If the client has used up its credits, the window doubles, but takes at most a
    /// quarter of the free receives, so that other connections can grow too.
    #[must_use]
    pub(crate) fn wants_growth(&self, free: u32) -> u32 {
        if !self.client_used_all_credits || self.going_away {
            return 0;
        }
        self.window
            .size()
            .min(self.max_in_flight - self.window.size())
            .min(free / 4)
    }

    /// Grows the window by receives that the caller took from the budget.
    pub(crate) fn grow(&mut self, receives: u32) {
        self.window.grow(receives);
    }

    /// Returns true if a frame should be sent only for its credits. On the server: if many credits
    /// are owed, or if the client has not been notified of the shutdown. On the client: if it has
    /// credits to return or an acknowledgement to send. On the client, it must be called only when
    /// the client has been idle or may start no more calls.
    #[must_use]
    pub(crate) fn wants_credit_frame(&self) -> bool {
        match self.role {
            Role::Server if self.going_away => {
                self.must_announce_shutdown() && self.window.may_send_credit_frame()
            }
            Role::Server => self.window.wants_credit_frame(),
            Role::Client => {
                // An acknowledgement counts too: without it the server could send no further credit
                // frame.
                let has_any =
                    self.credits.available() > self.kept_credits() || self.window.owes_ack();
                has_any && self.window.may_send_credit_frame()
            }
        }
    }

    /// Begins the server's shutdown. From now on every frame announces it and grants no credits.
    pub(crate) fn go_away(&mut self) {
        self.going_away = true;
    }

    /// Returns true if the server is shutting down, as decided by this side or announced by the
    /// peer.
    #[cfg(test)]
    pub(crate) fn is_going_away(&self) -> bool {
        self.going_away
    }

    /// Returns true if this side is a server that has not announced its shutdown to the client yet.
    #[must_use]
    pub(crate) fn must_announce_shutdown(&self) -> bool {
        self.role == Role::Server && self.going_away && !self.has_announced
    }

    /// Returns true if the client can send no more requests and all of its requests have been
    /// responded to. Only on the server. The client has then returned all of its credits.
    #[must_use]
    pub(crate) fn is_finished(&self) -> bool {
        self.window.is_spent() && self.calls_in_flight == 0
    }

    /// Returns true if a request was sent since the last call of this method. Only on the client.
    pub(crate) fn take_was_used(&mut self) -> bool {
        std::mem::take(&mut self.was_used)
    }

    /// Returns the number of receives promised to the peer's requests.
    #[must_use]
    pub(crate) fn window_len(&self) -> u32 {
        self.window.size()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(kind: FrameKind) -> FrameHeader {
        FrameHeader {
            kind,
            credit_ack: false,
            credits_spent: false,
            going_away: false,
            credits_returned: false,
            credits: 0,
            call: CallId(0),
            selector: 0,
            metadata_len: 0,
            time_us: 0,
        }
    }

    #[test]
    fn each_broken_rule_is_named() {
        let mut server = Connection::server(2, 1);
        assert_eq!(server.handle_header(&header(FrameKind::Request)), Ok(()));
        assert_eq!(
            server.handle_header(&header(FrameKind::Request)),
            Err(ProtocolError::TooManyCalls { limit: 1 })
        );
        assert!(matches!(
            server.handle_header(&header(FrameKind::Response)),
            Err(ProtocolError::WrongDirection { .. })
        ));
        let mut client = Connection::client(2, 4);
        assert!(matches!(
            client.handle_header(&header(FrameKind::Response)),
            Err(ProtocolError::UnknownCall { .. })
        ));
        let mut greedy = header(FrameKind::Credit);
        greedy.credits = 3;
        assert!(matches!(
            client.handle_header(&greedy),
            Err(ProtocolError::Credit(CreditError::Overflow { .. }))
        ));
    }

    #[test]
    fn a_window_of_one_is_replenished_without_an_answer() {
        let mut client = Connection::client(1, 8);
        let mut server = Connection::server(1, 8);
        for _ in 0..3 {
            assert!(client.take_request());
            assert!(!client.take_request());
            let request = client.next_header(FrameKind::Request, CallId(0), 0);
            server.handle_header(&request).unwrap();
            assert!(!server.wants_credit_frame());
            server.release_request();
            assert!(server.wants_credit_frame());
            let credit = server.next_header(FrameKind::Credit, CallId(0), 0);
            client.handle_header(&credit).unwrap();
        }
    }

    proptest! {
        /// A client and a server that follow the rules never report violations, whatever the order
        /// in which frames are sent, received, released and responded to.
        #[test]
        fn two_honest_sides_agree(
            initial in 1u32..8, max_in_flight in 1u32..12,
            steps in proptest::collection::vec(0u8..8, 0..500),
            goes_away_at in proptest::option::of(0usize..500),
        ) {
            let initial = initial.min(max_in_flight);
            let mut client = Connection::client(initial, max_in_flight);
            let mut server = Connection::server(initial, max_in_flight);
            let (mut to_server, mut to_client) = (std::collections::VecDeque::new(), std::collections::VecDeque::new());
            let (mut held, mut running) = (0, 0);
            for (index, step) in steps.into_iter().enumerate() {
                if goes_away_at == Some(index) {
                    server.go_away();
                }
                match step {
                    0 if !client.is_going_away() && client.take_request() => {
                        to_server.push_back(client.next_header(FrameKind::Request, CallId(0), 0));
                    }
                    1 => if let Some(frame) = to_server.pop_front() {
                        server.handle_header(&frame).unwrap();
                        if frame.kind == FrameKind::Request { held += 1 }
                        let growth = server.wants_growth(8);
                        server.grow(growth);
                    },
                    2 if held > 0 => {
                        held -= 1;
                        running += 1;
                        server.release_request();
                    }
                    3 if running > 0 => {
                        running -= 1;
                        to_client.push_back(server.next_header(FrameKind::Response, CallId(0), 0));
                    }
                    4 => if let Some(frame) = to_client.pop_front() {
                        client.handle_header(&frame).unwrap();
                    },
                    5 if server.wants_credit_frame() => {
                        to_client.push_back(server.next_header(FrameKind::Credit, CallId(0), 0));
                    }
                    6 if client.wants_credit_frame() => {
                        to_server.push_back(client.next_header(FrameKind::Credit, CallId(0), 0));
                    }
                    _ => {}
                }
                prop_assert!(client.requests_allowed() <= server.window_len());
                prop_assert!(server.going_away || server.window_len() >= initial);
                // When the server considers the connection finished, no request is left anywhere.
                if server.going_away && server.is_finished() {
                    let requests = to_server.iter().filter(|frame| frame.kind == FrameKind::Request);
                    prop_assert_eq!((requests.count(), held, running), (0, 0, 0));
                }
            }
        }
    }
}
