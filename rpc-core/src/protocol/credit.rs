//! Credits: receives that a side has promised to its peer, so that every frame finds a posted
//! receive.
//!
//! | frame | receive that it arrives in |
//! | --- | --- |
//! | request, message | a credit |
//! | response to a unary call | the client reserved it before it sent the request |
//! | response to a stream | a credit, so that an open stream reserves no receive |
//! | control | one per connection and side: at most one such frame is in flight each way |
//! | acknowledgement | one per connection and side: it answers a control frame |
//!
//! On every poller, therefore,
//!
//! ```text
//! Σ windows granted + Σ unary calls in flight + 3 per connection ≤ receives posted + in reserve
//! ```
//!
//! (two of the three are for the peer's control frame and acknowledgement, the third guarantees that
//! a connection can always have one call). [`ReceiveBudget`] keeps this sum.
//!
//! | type | side | keeps |
//! | --- | --- | --- |
//! | [`SendCredits`] | sender | how many frames it may still send |
//! | [`ReceiveWindow`] | receiver | how many frames the peer may send, how many credits are owed to it |
//! | [`ReceiveBudget`] | one per poller | how many receives are promised to all peers together |
//!
//! Both sides have a window. The server's has receives from the beginning. The client's is empty
//! until the client opens a stream, or the server asks for credits to send a long response at once. So a
//! connection with short unary calls costs a client nothing.
//!
//! Every frame header carries credits. A control frame is sent for credits only if at least half of
//! a window is owed and no other frame carries them. At most one control frame is in flight per
//! direction until the peer has acknowledged it.
//!
//! The acknowledgement is a flag of the next frame to the peer. If the peer's control frame has left
//! no other frame to send in the same turn, a frame of its own carries it. Without this, two control
//! frames that cross could stop both sides: each side waits with its next control frame until the
//! other acknowledges, and neither has a credit for any other frame.
//!
//! A window doubles while its peer uses all of it. A client that has started no call for a second
//! returns its credits above its initial window, in a control frame. A client whose server is
//! shutting down returns all of its credits once its streams have ended. A server on which no stream
//! was open for a second, and which has used and asked for none, returns all of its credits.

mod receive_window;
mod send_credits;
#[cfg(test)]
mod tests;

pub(crate) use receive_window::ReceiveWindow;
pub(crate) use send_credits::SendCredits;

/// Receives that each side keeps per connection for frames without a credit: one for a control
/// frame, one for an acknowledgement.
pub(crate) const UNCREDITED_RECEIVES: u32 = 2;

/// The receives of one poller that are promised to peers.
#[derive(Debug)]
pub(crate) struct ReceiveBudget {
    capacity: u32,
    promised: u32,
}

impl ReceiveBudget {
    /// Creates a budget of `capacity` receives: those posted plus those in reserve.
    #[must_use]
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            promised: 0,
        }
    }

    /// Promises `count` receives. Returns false, and promises none, if fewer are left.
    pub(crate) fn take(&mut self, count: u32) -> bool {
        let fits = count <= self.left();
        if fits {
            self.promised += count;
        }
        fits
    }

    /// Releases `count` promises that were kept or can no longer be claimed.
    pub(crate) fn release(&mut self, count: u32) {
        debug_assert!(
            count <= self.promised,
            "released a receive that was not promised"
        );
        self.promised = self.promised.saturating_sub(count);
    }

    /// Returns the number of receives that are not promised.
    #[must_use]
    pub(crate) fn left(&self) -> u32 {
        self.capacity - self.promised
    }

    /// Returns the number of receives that can be promised in all.
    #[must_use]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of promised receives.
    #[must_use]
    pub(crate) fn promised(&self) -> u32 {
        self.promised
    }
}

/// A violation of the credit rules by the peer. The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// The peer granted more credits than the agreed limit.
    #[error("{credits} more credits on top of {available} exceed the agreed limit of {limit}")]
    Overflow {
        /// Credits received.
        credits: u32,
        /// Credits available before.
        available: u32,
        /// The limit agreed in the handshake.
        limit: u32,
    },
    /// A frame that takes a credit arrived, and no credit was granted for it.
    #[error("a frame arrived without a credit")]
    NotGranted,
    /// A control frame arrived before the previous one was acknowledged. There is only one receive
    /// for them.
    #[error("a second control frame arrived before the first was acknowledged")]
    TwoControlFrames,
    /// The peer returned more credits than it can hold, or so many that fewer than its initial
    /// credits would remain.
    #[error("{returned} credits were returned, but at most {limit} could be")]
    NotHeld {
        /// Credits returned.
        returned: u32,
        /// The most that the peer could return.
        limit: u32,
    },
    /// The peer acknowledged a control frame although none was in flight.
    #[error("an acknowledgement arrived although no control frame was in flight")]
    UnexpectedAck,
}
