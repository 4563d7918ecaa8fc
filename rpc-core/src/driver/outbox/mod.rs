//! [`Outbox`]: how frames leave.
//!
//! A frame leaves in two steps. Its [`Permit`] takes what frames of its [`Class`] need, and gives it back
//! when it is dropped. [`Permit::send`] is the only place from which frames go to the transport.

mod permit;

pub(super) use self::permit::{Body, Class, Missing, Permit};
use crate::transport::Transport;

/// The frames that leave a poller.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// True if a frame was sent since the last flush.
    unflushed: bool,
}

impl Outbox {
    /// Rings the doorbell for the frames sent since the last flush, if there are any.
    // Inlined into each caller, because it is a part of every empty turn.
    #[inline(always)]
    pub(super) fn flush(&mut self, transport: &mut impl Transport) {
        if self.unflushed {
            self.unflushed = false;
            transport.flush();
        }
    }
}
