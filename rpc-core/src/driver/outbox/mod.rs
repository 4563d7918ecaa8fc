//! [`Outbox`]: how frames leave.
//!
//! A frame leaves in two steps. Its [`Permit`] takes what frames of its [`Class`] need, and gives it back
//! when it is dropped. The class also says what its frames leave to others. [`Permit::send_inline`] and
//! [`Permit::send`] are the only places from which frames go to the transport.
//!
//! Who may not send yet waits in a list of [`Outbox`]: connections, streams and long messages, which have what
//! they send. Streams in which something has changed wait for a look in `Streams`. Responses that find no
//! slot are the application's values, and wait in `Responses`, where their handlers have answered.

mod class;
mod control;
mod permit;

pub(super) use self::class::{Class, FRAMES_OF_STREAM, PiecesOfTurn};
pub(super) use self::control::Controlled;
pub(super) use self::permit::{Missing, Permit, Slot};
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
    /// Client: streams that wait until another one of their connection has ended.
    pub(super) awaiting_room: Waiting<LinkKey, StreamKey>,
    /// Server: streams that make no further long message until their client, or its host, has read others.
    pub(super) awaiting_reader: Waiting<LinkKey, StreamKey>,
    /// Streams that owe a grant, for which their connections owe a control frame.
    pub(super) grants: Waiting<LinkKey, StreamKey>,
    /// Long messages of which a piece may be sent.
    pub(super) pieces: Waiting<LinkKey, TransferKey>,
    /// Links whose server needs receives for the rest of its messages, and got none because none
    /// were free.
    pub(super) windows: ReadySet<LinkKey>,
    /// False only if nothing waits that a turn may send, and no call that a turn may end. Empty turns test it,
    /// and nothing else of this.
    any: bool,
}

impl Outbox {
    /// Returns false if nothing waits to be sent, or for receives.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Notes that something waits for a turn: each who adds to a list that turns look at does.
    #[inline]
    pub(super) fn note_any(&mut self) {
        self.any = true;
    }

    /// Looks whether something still waits, at the end of a turn that has tried to send it. `any` is true if
    /// something else does.
    pub(super) fn note_what_is_left(&mut self, any: bool) {
        let frames = self.control.len() | self.calls.len() | self.streams.len() | self.pieces.len();
        self.any = any || frames | self.windows.len() | self.awaiting_reader.len() != 0;
    }

    /// Removes a stream that has ended.
    pub(super) fn forget_stream(&mut self, key: StreamKey) {
        self.streams.remove(key);
        self.awaiting_room.remove(key);
        self.awaiting_reader.remove(key);
        self.grants.remove(key);
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
