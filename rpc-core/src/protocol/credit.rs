//! Credits: receives that a side has promised to its peer, so that every frame finds a posted
//! receive.
//!
//! Only a request needs a credit. A response needs none, because the client reserved a receive for
//! it before it sent the request. A credit frame needs none, because each side keeps one receive
//! per connection for it and has at most one such frame in flight. On every poller, therefore,
//!
//! ```text
//! Σ windows granted + Σ calls in flight + 2 per connection ≤ receives posted + in reserve
//! ```
//!
//! (one of the two is for the peer's credit frame, the other guarantees that a connection can
//! always have one call). [`ReceiveBudget`] keeps this sum.
//!
//! | type | side | keeps |
//! | --- | --- | --- |
//! | [`SendCredits`] | sender of requests | how many requests it may still send |
//! | [`ReceiveWindow`] | receiver of requests | how many requests the peer may send, how many credits are owed to it |
//! | [`ReceiveBudget`] | one per poller | how many receives are promised to all peers together |
//!
//! Every frame header carries credits. A credit frame is sent only if at least half of a window is
//! owed and no response carries the credits. At most one credit frame is in flight per direction
//! until the peer has acknowledged it.
//!
//! A window doubles while its client uses all of it. A client that has started no call for a second
//! returns its credits above its initial window, in a credit frame. A client whose server is
//! shutting down returns all of its credits.

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
    /// A request arrived for which no credit was granted.
    #[error("a request arrived without a credit")]
    NotGranted,
    /// A credit frame arrived before the previous one was acknowledged. There is only one receive
    /// for them.
    #[error("a second credit frame arrived before the first was acknowledged")]
    TwoCreditFrames,
    /// The peer returned more credits than it can hold, or so many that fewer than its initial
    /// credits would remain.
    #[error("{returned} credits were returned, but at most {limit} could be")]
    NotHeld {
        /// Credits returned.
        returned: u32,
        /// The most that the peer could return.
        limit: u32,
    },
    /// The peer acknowledged a credit frame although none was in flight.
    #[error("an acknowledgement arrived although no credit frame was in flight")]
    UnexpectedAck,
}

/// The requests that this side may still send.
#[derive(Debug)]
pub(crate) struct SendCredits {
    available: u32,
    limit: u32,
}

impl SendCredits {
    /// Creates the credits granted in the handshake, with the agreed limit.
    #[must_use]
    pub(crate) fn new(initial: u32, limit: u32) -> Self {
        Self {
            available: initial.min(limit),
            limit,
        }
    }

    /// Returns the available credits.
    #[must_use]
    pub(crate) fn available(&self) -> u32 {
        self.available
    }

    /// Takes a credit. Returns false if there is none.
    pub(crate) fn take(&mut self) -> bool {
        let some = self.available > 0;
        self.available -= u32::from(some);
        some
    }

    /// Returns a credit that was taken for a request that was not sent.
    pub(crate) fn return_credit(&mut self) {
        // If a peer grants too much in the meantime, the next grant detects it.
        self.available = self.limit.min(self.available + 1);
    }

    /// Removes the credits above `kept`, up to the number that one frame can carry, so that the
    /// caller can return them to the server.
    pub(crate) fn take_surplus(&mut self, kept: u32) -> u16 {
        let surplus = self.available.saturating_sub(kept);
        let taken = u16::try_from(surplus).unwrap_or(u16::MAX);
        self.available -= u32::from(taken);
        taken
    }

    /// Adds the credits that a frame carried.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::Overflow`] if the sum exceeds the agreed limit.
    pub(crate) fn add(&mut self, credits: u16) -> Result<(), CreditError> {
        let credits = u32::from(credits);
        if credits > self.limit - self.available {
            return Err(CreditError::Overflow {
                credits,
                available: self.available,
                limit: self.limit,
            });
        }
        self.available += credits;
        Ok(())
    }
}

/// The requests that the peer may send, and the credits and acknowledgements to send to it.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    /// Receives promised to this connection: always `granted + owed + held`, where `held` are
    /// occupied by requests.
    size: u32,
    /// Credits that the peer holds or that are in flight to it.
    granted: u32,
    /// Receives that are free again and have not been granted to the peer yet.
    owed: u32,
    /// A credit frame is in flight that the peer has not acknowledged.
    credit_frame_in_flight: bool,
    /// The peer's credit frame has been consumed, and the acknowledgement has not been sent yet.
    ack_owed: bool,
}

impl ReceiveWindow {
    /// Creates a window of `size` receives, all granted in the handshake.
    #[must_use]
    pub(crate) fn new(size: u32) -> Self {
        Self {
            size,
            granted: size,
            owed: 0,
            credit_frame_in_flight: false,
            ack_owed: false,
        }
    }

    /// Returns the number of receives promised through this window.
    #[must_use]
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Records that a request has arrived in a promised receive.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::NotGranted`] if the peer had no credit for it.
    pub(crate) fn consume(&mut self) -> Result<(), CreditError> {
        self.granted = self.granted.checked_sub(1).ok_or(CreditError::NotGranted)?;
        Ok(())
    }

    /// Records that the receive of a request is free again, so that a credit for it is owed to the
    /// peer.
    pub(crate) fn release(&mut self) {
        self.owed += 1;
    }

    /// Grows the window by receives that the caller took from the budget.
    pub(crate) fn grow(&mut self, receives: u32) {
        self.size += receives;
        self.owed += receives;
    }

    /// Handles credits that an idle peer returns. The window shrinks by these and by any owed
    /// credits, which an idle peer does not need either, but never below `least`. Returns the
    /// number of receives that are free for other connections.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::NotHeld`] if the peer cannot hold as many credits, or must keep some
    /// of them.
    pub(crate) fn reclaim(&mut self, returned: u16, least: u32) -> Result<u32, CreditError> {
        let returned = u32::from(returned);
        // Credits in flight to the peer count as granted, so an honest peer never holds more.
        let limit = self.granted.min(self.size.saturating_sub(least));
        if returned > limit {
            return Err(CreditError::NotHeld { returned, limit });
        }
        self.granted -= returned;
        self.size -= returned;
        let unneeded = self.owed.min(self.size.saturating_sub(least));
        self.owed -= unneeded;
        self.size -= unneeded;
        Ok(returned + unneeded)
    }

    /// Returns true if the peer holds no credits and none are in flight to it.
    #[must_use]
    pub(crate) fn is_spent(&self) -> bool {
        self.granted == 0
    }

    /// Returns true if a credit frame may be sent, because the previous one has been acknowledged.
    #[must_use]
    pub(crate) fn may_send_credit_frame(&self) -> bool {
        !self.credit_frame_in_flight
    }

    /// Returns true if an acknowledgement of the peer's credit frame is still to be sent.
    #[must_use]
    pub(crate) fn owes_ack(&self) -> bool {
        self.ack_owed
    }

    /// Takes back credits that [`take_owed`](Self::take_owed) returned, because the frame does not
    /// carry them.
    pub(crate) fn restore_owed(&mut self, credits: u16) {
        self.granted -= u32::from(credits);
        self.owed += u32::from(credits);
    }

    /// Returns the contents of the next frame to the peer: the owed credits, and whether the frame
    /// acknowledges the peer's credit frame. The caller must send the frame.
    pub(crate) fn take_owed(&mut self) -> (u16, bool) {
        let credits = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(credits);
        self.granted += u32::from(credits);
        (credits, std::mem::take(&mut self.ack_owed))
    }

    /// Returns true if enough credits are owed to send a frame for them alone. The threshold is
    /// half the window: a peer that sends without receiving responses then never runs out of
    /// credits, and such frames are no more frequent than necessary.
    #[must_use]
    pub(crate) fn wants_credit_frame(&self) -> bool {
        !self.credit_frame_in_flight && self.owed > 0 && self.owed >= self.size.div_ceil(2)
    }

    /// Records that a credit frame has been sent.
    pub(crate) fn credit_frame_sent(&mut self) {
        self.credit_frame_in_flight = true;
    }

    /// Records that the peer's credit frame has been consumed. The next frame acknowledges it.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::TwoCreditFrames`] if the previous one has not been acknowledged yet.
    pub(crate) fn credit_frame_received(&mut self) -> Result<(), CreditError> {
        if std::mem::replace(&mut self.ack_owed, true) {
            return Err(CreditError::TwoCreditFrames);
        }
        Ok(())
    }

    /// Records that the peer has consumed this side's credit frame.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::UnexpectedAck`] if no credit frame was in flight.
    pub(crate) fn credit_frame_acknowledged(&mut self) -> Result<(), CreditError> {
        if std::mem::take(&mut self.credit_frame_in_flight) {
            Ok(())
        } else {
            Err(CreditError::UnexpectedAck)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_budget_never_promises_more_than_it_has() {
        let mut budget = ReceiveBudget::new(10);
        assert!(budget.take(8));
        assert!(!budget.take(3));
        assert_eq!(budget.left(), 2);
        budget.release(1);
        assert!(budget.take(3));
        assert_eq!((budget.left(), budget.promised()), (0, 10));
    }

    #[test]
    fn a_peer_that_breaks_the_rules_is_found_out() {
        let mut credits = SendCredits::new(4, 8);
        assert!(credits.add(5).is_err());
        assert_eq!(credits.add(4), Ok(()));
        let mut window = ReceiveWindow::new(1);
        assert_eq!(window.consume(), Ok(()));
        assert_eq!(window.consume(), Err(CreditError::NotGranted));
        assert_eq!(
            window.credit_frame_acknowledged(),
            Err(CreditError::UnexpectedAck)
        );
    }

    #[test]
    fn only_what_is_held_can_be_given_back_and_the_first_window_stays() {
        let mut window = ReceiveWindow::new(4);
        window.grow(8);
        let not_held = |returned, limit| Err(CreditError::NotHeld { returned, limit });
        assert_eq!(window.reclaim(5, 0), not_held(5, 4), "the rest is owed");
        assert_eq!(window.take_owed(), (8, false));
        assert_eq!(window.reclaim(9, 4), not_held(9, 8), "four stay");
        window.consume().unwrap();
        assert_eq!(window.reclaim(5, 4), Ok(5));
        assert_eq!((window.size(), window.granted), (7, 6));
        window.release();
        assert_eq!(window.reclaim(2, 4), Ok(3), "and the one that is owed");
        assert_eq!((window.size(), window.granted, window.owed), (4, 4, 0));
        window.consume().unwrap();
        assert_eq!(window.reclaim(4, 0), not_held(4, 3), "one was used");
        assert_eq!(window.reclaim(u16::MAX, 0), not_held(65535, 3));
        assert_eq!(window.reclaim(3, 0), Ok(3));
        assert!(window.is_spent());
        assert_eq!(window.size(), 1);
    }

    proptest! {
        /// Whatever the order of requests, releases, frames, growth and returns, the client never
        /// holds more credits than there are receives for it, and no receive is lost.
        #[test]
        fn credits_are_conserved(initial in 1u32..20, steps in proptest::collection::vec(0u8..6, 0..400)) {
            let mut window = ReceiveWindow::new(initial);
            let mut credits = SendCredits::new(initial, 1000);
            let (mut held, mut promised) = (0, initial);
            for step in steps {
                match step {
                    0 | 1 => if credits.take() {
                        window.consume().unwrap();
                        held += 1;
                    },
                    2 => if held > 0 {
                        held -= 1;
                        window.release();
                    },
                    3 => {
                        let (granted, _) = window.take_owed();
                        credits.add(granted).unwrap();
                    }
                    4 => if window.size() < 100 {
                        window.grow(1);
                        promised += 1;
                    },
                    _ => {
                        let returned = credits.take_surplus(initial);
                        let freed = window.reclaim(returned, initial).unwrap();
                        prop_assert!(freed >= u32::from(returned));
                        promised -= freed;
                    }
                }
                prop_assert_eq!(window.size(), promised);
                prop_assert!(window.size() >= initial);
                prop_assert_eq!(window.granted, credits.available());
                prop_assert_eq!(window.granted + window.owed + held, window.size());
            }
        }
    }
}
