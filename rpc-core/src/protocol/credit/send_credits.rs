//! [`SendCredits`]: the credits that this side holds.

use super::CreditError;

/// The credits that this side holds: the frames that it may still send.
#[derive(Debug)]
#[cfg_attr(any(test, feature = "test-util"), derive(Clone, PartialEq, Eq, Hash))]
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

    /// Returns a credit that was taken for a frame that was not sent.
    pub(crate) fn return_credit(&mut self) {
        // If a peer grants too much in the meantime, the next grant detects it.
        self.available = self.limit.min(self.available + 1);
    }

    /// Removes the credits above `kept`, up to the number that one frame can carry, so that the
    /// caller can return them to the peer.
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
