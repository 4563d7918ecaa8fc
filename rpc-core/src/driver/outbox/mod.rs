//! [`Outbox`]: how frames leave.
//!
//! A frame leaves in two steps. Its [`Permit`] takes what frames of its [`Class`] need, and gives it back
//! when it is dropped. [`Permit::send`] is the only place from which frames go to the transport.

mod control;
mod permit;

pub(super) use self::control::Controlled;
pub(super) use self::permit::{Body, Class, Missing, Permit};
use super::link::LinkKey;
use super::link_bodies::TransferKey;
use super::link_streams::StreamKey;
use super::waiting::{ReadySet, Waiting};
use crate::transport::Transport;

/// The frames that leave a poller, and what waits until it may send one.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// True if a frame was sent since the last flush.
    unflushed: bool,
    /// Links that owe a control frame or an acknowledgement.
    pub(super) control: ReadySet<LinkKey>,
    /// Links with calls that wait to be sent.
    pub(super) calls: ReadySet<LinkKey>,
    /// Streams that wait for a credit.
    pub(super) streams: Waiting<LinkKey, StreamKey>,
    /// Long messages of which a piece may be sent.
    pub(super) pieces: Waiting<LinkKey, TransferKey>,
}

impl Outbox {
    /// Returns a number other than 0 if something waits to be sent. A turn that finds nothing tests only
    /// this.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.control.len() | self.calls.len() | self.streams.len() | self.pieces.len()
    }

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
