//! [`ReceiveWindow`]: the receives that this side has promised to its peer.

use super::CreditError;
use crate::protocol::frame::Flags;

/// The frames that the peer may send, and the credits and acknowledgements to send to it.
#[derive(Debug)]
#[cfg_attr(any(test, feature = "test-util"), derive(Clone, PartialEq, Eq, Hash))]
pub(crate) struct ReceiveWindow {
    /// Receives promised to this connection: always `granted + owed + held`, where `held` are
    /// occupied by frames.
    size: u32,
    /// Credits that the peer holds or that are in flight to it.
    granted: u32,
    /// Receives that are free again and have not been granted to the peer yet.
    owed: u32,
    /// A control frame of this side is in flight that the peer has not acknowledged.
    control_frame_in_flight: bool,
    /// The peer's control frame has been consumed, and the acknowledgement has not been sent yet.
    ack_owed: bool,
}

impl ReceiveWindow {
    /// Creates a window of `size` receives, all of which the peer may use at once.
    #[must_use]
    pub(crate) fn new(size: u32) -> Self {
        Self {
            size,
            granted: size,
            owed: 0,
            control_frame_in_flight: false,
            ack_owed: false,
        }
    }

    /// Returns the number of receives promised through this window.
    #[must_use]
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Records that a frame has arrived in a promised receive.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::NotGranted`] if the peer had no credit for it.
    pub(crate) fn consume(&mut self) -> Result<(), CreditError> {
        self.granted = self.granted.checked_sub(1).ok_or(CreditError::NotGranted)?;
        Ok(())
    }

    /// Records that the receive of a frame is free again, so that a credit for it is owed to the
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

    /// Returns true if frames of the peer occupy all receives, so that it gets no credit before one
    /// is free again.
    #[must_use]
    pub(crate) fn is_occupied(&self) -> bool {
        self.granted + self.owed == 0
    }

    /// Returns true if the peer holds no credits and none are in flight to it.
    #[must_use]
    pub(crate) fn is_spent(&self) -> bool {
        self.granted == 0
    }

    /// Returns true if a control frame may be sent, because the previous one has been acknowledged.
    #[must_use]
    pub(crate) fn may_send_control_frame(&self) -> bool {
        !self.control_frame_in_flight
    }

    /// Returns true if an acknowledgement of the peer's control frame is still to be sent.
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

    /// Returns the contents of the next frame to the peer: the owed credits, and [`Flags::ACK`] if
    /// the frame acknowledges the peer's control frame. The caller must send the frame.
    #[inline]
    pub(crate) fn take_owed(&mut self) -> (u16, Flags) {
        let credits = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(credits);
        self.granted += u32::from(credits);
        let ack = std::mem::take(&mut self.ack_owed);
        (credits, Flags::from_bits(u8::from(ack)))
    }

    /// Shrinks the window by the owed credits, which an idle peer does not need. Returns their
    /// number.
    pub(crate) fn drop_owed(&mut self) -> u32 {
        let dropped = std::mem::take(&mut self.owed);
        self.size -= dropped;
        dropped
    }

    /// Returns true if enough credits are owed to send a frame for them alone. The threshold is
    /// half the window: a peer that sends without receiving anything then never runs out of
    /// credits, and such frames are no more frequent than necessary.
    #[must_use]
    pub(crate) fn owes_half(&self) -> bool {
        self.owed > 0 && self.owed >= self.size.div_ceil(2)
    }

    /// Records that a control frame has been sent.
    pub(crate) fn control_frame_sent(&mut self) {
        self.control_frame_in_flight = true;
    }

    /// Records that the peer's control frame has been consumed. The next frame to the peer
    /// acknowledges it.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::TwoControlFrames`] if the previous one has not been acknowledged yet.
    pub(crate) fn control_frame_received(&mut self) -> Result<(), CreditError> {
        if std::mem::replace(&mut self.ack_owed, true) {
            return Err(CreditError::TwoControlFrames);
        }
        Ok(())
    }

    /// Records that the peer has consumed this side's control frame.
    ///
    /// # Errors
    ///
    /// Returns [`CreditError::UnexpectedAck`] if no control frame was in flight.
    pub(crate) fn control_frame_acknowledged(&mut self) -> Result<(), CreditError> {
        if std::mem::take(&mut self.control_frame_in_flight) {
            Ok(())
        } else {
            Err(CreditError::UnexpectedAck)
        }
    }
}

#[cfg(test)]
impl ReceiveWindow {
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    pub(crate) fn owed(&self) -> u32 {
        self.owed
    }
}
