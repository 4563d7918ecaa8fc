//! Short messages, posted inline without a list (`ibv_post_send(3)` with `IBV_SEND_INLINE`).

use super::super::types::post_error::PostErrorReason;
use super::InlineError;
use super::QueuePair;

impl QueuePair {
    /// Posts `bytes` as an inline message: they are copied, so no slot is needed. This is the
    /// fastest way to send a short message.
    ///
    /// The peer may receive the message at once, or only after
    /// [`ring_doorbell`](Self::ring_doorbell), which must follow the last message. Several messages
    /// share one doorbell. All other posts, and every [`modify`](Self::modify), first ring the
    /// doorbell, so the requests of a queue pair are executed in the order of the calls.
    ///
    /// # Errors
    ///
    /// [`PostErrorReason::QueueFull`], [`PostErrorReason::InlineTooLong`] or the device's reason;
    /// the message is not posted. If the device rejects earlier messages that waited for the
    /// doorbell, those are not posted either.
    #[inline]
    pub fn post_inline(&mut self, bytes: &[u8], signaled: bool) -> Result<(), PostErrorReason> {
        self.try_post_inline(bytes, signaled)
            .map_err(|error| error.reason)
    }

    /// Rings the doorbell for the messages posted by [`post_inline`](Self::post_inline) since the
    /// last one. Does nothing if there are none.
    ///
    /// # Errors
    ///
    /// The device's reason. The messages that it rejected are not posted, and their entries of the
    /// send queue are free again ([`send_slots_free`](Self::send_slots_free)).
    #[inline]
    pub fn ring_doorbell(&mut self) -> Result<(), PostErrorReason> {
        self.try_ring_doorbell().map_err(|error| error.reason)
    }

    /// Like [`post_inline`](Self::post_inline). The error says how many earlier messages were
    /// rejected.
    // Always inlined: it is on the path of every short message.
    #[inline(always)]
    #[doc(hidden)]
    pub fn try_post_inline(&mut self, bytes: &[u8], signaled: bool) -> Result<(), InlineError> {
        if self.send_slots.is_full() || bytes.len() >= self.inline_end {
            return Err(self.why_not_inline(bytes.len()));
        }
        let wr_id = self.send_slots.id_of_next(0);
        if let Err(error) = self.raw.post_inline(wr_id, bytes, signaled) {
            return Err(self.remove_rejected(error));
        }
        self.send_slots.push_inline();
        self.needs_doorbell = true;
        Ok(())
    }

    /// Like [`ring_doorbell`](Self::ring_doorbell). The error says how many messages were rejected.
    #[inline]
    #[doc(hidden)]
    pub fn try_ring_doorbell(&mut self) -> Result<(), InlineError> {
        if !self.needs_doorbell {
            return Ok(());
        }
        self.needs_doorbell = false;
        match self.raw.ring_doorbell() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.remove_rejected(error)),
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_rejected(&mut self, error: InlineError) -> InlineError {
        self.send_slots.remove_last_inline(error.rejected);
        error
    }

    #[cold]
    #[inline(never)]
    fn why_not_inline(&self, len: usize) -> InlineError {
        let (capacity, limit) = (
            self.send_slots.capacity(),
            self.capabilities.max_inline_data,
        );
        let reason = match self.takes_no_plain_sends {
            Some(reason) => reason,
            None if self.send_slots.is_full() => PostErrorReason::QueueFull { capacity },
            None => PostErrorReason::InlineTooLong { len, limit },
        };
        let rejected = 0;
        InlineError { rejected, reason }
    }
}
