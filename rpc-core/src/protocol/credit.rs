//! Credits: receives that a peer has promised, so that no frame ever finds none posted.
//!
//! Who needs a credit: a request. A response needs none, since its request brought the receive for
//! it along; a credit frame needs none, since each side keeps one receive for it per connection and
//! has at most one under way. So on every poller
//!
//! ```text
//! Σ windows granted + Σ calls in flight + 2 per connection ≤ receives posted + in reserve
//! ```
//!
//! (one of the two for the peer's credit frame, one so that a connection can always have one call),
//! and [`ReceiveBudget`] is where that sum is kept.
//!
//! | type | side | keeps |
//! | --- | --- | --- |
//! | [`SendCredits`] | sender of requests | how many it may still send |
//! | [`ReceiveWindow`] | receiver of requests | how many the peer may send, how many are owed to it |
//! | [`ReceiveBudget`] | one per poller | how many receives are promised to all peers together |

/// Receives of one poller that are promised to peers.
#[derive(Debug)]
pub struct ReceiveBudget {
    capacity: u32,
    promised: u32,
}

impl ReceiveBudget {
    /// A budget of as many receives as are posted or in reserve.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            capacity,
            promised: 0,
        }
    }

    /// Promises `count` receives, or none and `false` if there are not as many left.
    pub fn take(&mut self, count: u32) -> bool {
        let fits = count <= self.left();
        if fits {
            self.promised += count;
        }
        fits
    }

    /// Takes promises back that were kept, or that nobody can claim any more.
    pub fn give_back(&mut self, count: u32) {
        debug_assert!(
            count <= self.promised,
            "a receive is given back that was not promised"
        );
        self.promised = self.promised.saturating_sub(count);
    }

    /// Receives that are not promised to anybody.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.capacity - self.promised
    }

    /// Receives that are promised.
    #[must_use]
    pub fn promised(&self) -> u32 {
        self.promised
    }
}

/// The peer broke the rules of credits; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// More credits than the peer said it would ever grant.
    #[error("{credits} credits on top of {available} exceed the {limit} that were agreed on")]
    Overflow {
        /// What came.
        credits: u32,
        /// What was left before.
        available: u32,
        /// What the handshake allows.
        limit: u32,
    },
    /// A request for which no credit was granted.
    #[error("a request came without a credit")]
    NotGranted,
    /// A credit frame while the one before was not acknowledged yet: there is one receive for them.
    #[error("a second credit frame came before the first was acknowledged")]
    TwoCreditFrames,
    /// More credits given back than the peer can hold, or so many that less would be left than it
    /// began with.
    #[error("{returned} credits were given back, of which at most {limit} can be")]
    NotHeld {
        /// What came.
        returned: u32,
        /// What could have come.
        limit: u32,
    },
    /// An acknowledgement of a credit frame that is not under way.
    #[error("a credit frame was acknowledged that was not sent")]
    AckOfNothing,
}

/// Requests that this side may still send.
#[derive(Debug)]
pub struct SendCredits {
    available: u32,
    limit: u32,
}

impl SendCredits {
    /// What the handshake granted, and the most that may ever be held.
    #[must_use]
    pub fn new(initial: u32, limit: u32) -> Self {
        Self {
            available: initial.min(limit),
            limit,
        }
    }

    /// Credits in hand.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Uses one up; `false` if there is none.
    pub fn take(&mut self) -> bool {
        let some = self.available > 0;
        self.available -= u32::from(some);
        some
    }

    /// Gives one back that was taken for a request that was then not sent.
    pub fn untake(&mut self) {
        // A peer that grants too much in the meantime is found out by the next grant.
        self.available = self.limit.min(self.available + 1);
    }

    /// Gives up as many as are in hand above `kept`, and as a frame can carry: to be given back.
    pub fn give_up(&mut self, kept: u32) -> u16 {
        let surplus = self.available.saturating_sub(kept);
        let given_up = u16::try_from(surplus).unwrap_or(u16::MAX);
        self.available -= u32::from(given_up);
        given_up
    }

    /// Adds what a frame brought.
    ///
    /// # Errors
    ///
    /// [`CreditError::Overflow`] if the peer brings more than it agreed to.
    pub fn add(&mut self, credits: u16) -> Result<(), CreditError> {
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

/// Requests that the peer may send, and what it is to be told next.
#[derive(Debug)]
pub struct ReceiveWindow {
    /// Promised receives of this connection: `granted + owed + held` at all times.
    size: u32,
    /// Credits that the peer holds, or that are on their way to it.
    granted: u32,
    /// Receives that are free again, which the peer does not know yet.
    owed: u32,
    /// A credit frame is under way that the peer has not acknowledged.
    credit_frame_under_way: bool,
    /// The peer's credit frame is consumed, which it does not know yet.
    ack_owed: bool,
}

impl ReceiveWindow {
    /// A window of `size` receives that the handshake has granted.
    #[must_use]
    pub fn new(size: u32) -> Self {
        Self {
            size,
            granted: size,
            owed: 0,
            credit_frame_under_way: false,
            ack_owed: false,
        }
    }

    /// Receives promised through this window.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// A request has arrived in a promised receive.
    ///
    /// # Errors
    ///
    /// [`CreditError::NotGranted`] if the peer had no credit for it.
    pub fn consume(&mut self) -> Result<(), CreditError> {
        self.granted = self.granted.checked_sub(1).ok_or(CreditError::NotGranted)?;
        Ok(())
    }

    /// The receive of a request is free again, and owed to the peer.
    pub fn release(&mut self) {
        self.owed += 1;
    }

    /// Makes the window larger by receives that were taken from the budget.
    pub fn grow(&mut self, receives: u32) {
        self.size += receives;
        self.owed += receives;
    }

    /// The peer gives back credits that it holds, since it is idle: the window becomes smaller by them,
    /// and by those that are owed to it and that it does not need either, but no smaller than `least`.
    /// Returns how many receives are free for others.
    ///
    /// # Errors
    ///
    /// [`CreditError::NotHeld`] if it cannot hold as many, or has to keep some of them.
    pub fn take_back(&mut self, returned: u16, least: u32) -> Result<u32, CreditError> {
        let returned = u32::from(returned);
        // What is on its way to the peer counts as granted, so an honest one never holds more.
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

    /// Whether the peer holds no credit, and none is on its way to it.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.granted == 0
    }

    /// Whether a credit frame may be sent: the one before has been acknowledged.
    #[must_use]
    pub fn may_send_credit_frame(&self) -> bool {
        !self.credit_frame_under_way
    }

    /// Whether the peer does not know yet that its credit frame is consumed.
    #[must_use]
    pub fn owes_ack(&self) -> bool {
        self.ack_owed
    }

    /// Keeps credits that [`take_owed`](Self::take_owed) returned: the frame does not carry them.
    pub fn keep(&mut self, credits: u16) {
        self.granted -= u32::from(credits);
        self.owed += u32::from(credits);
    }

    /// What the next frame to the peer carries: credits, and whether its credit frame is consumed.
    /// The frame must be sent.
    pub fn take_owed(&mut self) -> (u16, bool) {
        let credits = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(credits);
        self.granted += u32::from(credits);
        (credits, std::mem::take(&mut self.ack_owed))
    }

    /// Whether so much is owed that a frame should be sent for it alone: half the window, so that
    /// a peer which sends without being answered does not run dry, and no more often than that.
    #[must_use]
    pub fn wants_credit_frame(&self) -> bool {
        !self.credit_frame_under_way && self.owed > 0 && self.owed >= self.size.div_ceil(2)
    }

    /// A credit frame has been sent.
    pub fn credit_frame_sent(&mut self) {
        self.credit_frame_under_way = true;
    }

    /// The peer's credit frame has been consumed; the next frame tells it.
    ///
    /// # Errors
    ///
    /// [`CreditError::TwoCreditFrames`] if it has not been told of the one before yet.
    pub fn credit_frame_received(&mut self) -> Result<(), CreditError> {
        if std::mem::replace(&mut self.ack_owed, true) {
            return Err(CreditError::TwoCreditFrames);
        }
        Ok(())
    }

    /// The peer has consumed this side's credit frame.
    ///
    /// # Errors
    ///
    /// [`CreditError::AckOfNothing`] if none was under way.
    pub fn credit_frame_acknowledged(&mut self) -> Result<(), CreditError> {
        if std::mem::take(&mut self.credit_frame_under_way) {
            Ok(())
        } else {
            Err(CreditError::AckOfNothing)
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
        budget.give_back(1);
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
            Err(CreditError::AckOfNothing)
        );
    }

    #[test]
    fn only_what_is_held_can_be_given_back_and_the_first_window_stays() {
        let mut window = ReceiveWindow::new(4);
        window.grow(8);
        let not_held = |returned, limit| Err(CreditError::NotHeld { returned, limit });
        assert_eq!(window.take_back(5, 0), not_held(5, 4), "the rest is owed");
        assert_eq!(window.take_owed(), (8, false));
        assert_eq!(window.take_back(9, 4), not_held(9, 8), "four stay");
        window.consume().unwrap();
        assert_eq!(window.take_back(5, 4), Ok(5));
        assert_eq!((window.size(), window.granted), (7, 6));
        window.release();
        assert_eq!(window.take_back(2, 4), Ok(3), "and the one that is owed");
        assert_eq!((window.size(), window.granted, window.owed), (4, 4, 0));
        window.consume().unwrap();
        assert_eq!(window.take_back(4, 0), not_held(4, 3), "one was used");
        assert_eq!(window.take_back(u16::MAX, 0), not_held(65535, 3));
        assert_eq!(window.take_back(3, 0), Ok(3));
        assert!(window.is_spent());
        assert_eq!(window.size(), 1);
    }

    proptest! {
        /// Whatever the order of requests, releases, frames, growth and returns, the client never
        /// holds more credits than there are receives for it, and none is lost.
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
                        let returned = credits.give_up(initial);
                        let freed = window.take_back(returned, initial).unwrap();
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
