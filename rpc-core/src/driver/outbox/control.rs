//! [`Entries`]: what the next control frames of a connection say.

use std::collections::VecDeque;
use std::mem;

use super::{Body, Class, Missing, Outbox};
use crate::driver::link::Link;
use crate::protocol::frame::{
    CallId, ControlEntry, ControlRequest, ENTRY_LEN, FrameKind, HEADER_LEN,
};
use crate::transport::Transport;

/// Cancels that wait for a control frame, though some of their calls may have ended.
const FEW_CANCELS: usize = 64;

/// The entries of the next control frames of a connection.
#[derive(Debug, Default)]
pub(in super::super) struct Entries {
    /// Client: calls that are to be cancelled.
    cancels: Vec<CallId>,
    /// The other entries, oldest first.
    others: VecDeque<ControlEntry>,
}

impl Entries {
    /// Adds the cancel of a call. `may_end` tells of a call whether it is still to be answered: a server
    /// that acknowledges no control frame may answer the calls meanwhile.
    pub(in super::super) fn cancel(
        &mut self,
        call: CallId,
        in_flight: usize,
        may_end: impl Fn(CallId) -> bool,
    ) {
        if self.cancels.len() >= FEW_CANCELS && self.cancels.len() > in_flight {
            self.cancels.retain(|call| may_end(*call));
        }
        self.cancels.push(call);
    }

    /// Adds an entry. Called only when a control frame may be sent, so that a peer that never
    /// acknowledges one leaves no more here than its open streams and messages owe.
    pub(in super::super) fn push(&mut self, entry: ControlEntry) {
        self.others.push_back(entry);
    }

    /// Makes entries of the cancels, because a control frame may be sent.
    pub(super) fn collect_cancels(&mut self) {
        let entry = |call| ControlEntry {
            call,
            request: ControlRequest::Cancel,
        };
        self.others.extend(self.cancels.drain(..).map(entry));
    }

    /// Returns the number of entries.
    pub(in super::super) fn len(&self) -> usize {
        self.others.len() + self.cancels.len()
    }

    /// Returns the number of entries that a control frame with a body of at most `room` bytes takes.
    pub(super) fn within(&self, room: usize) -> usize {
        self.others.len().min(room / ENTRY_LEN)
    }

    /// Writes the oldest `count` entries, and removes them.
    pub(super) fn write(&mut self, count: usize, body: &mut [u8]) {
        let entries = self.others.drain(..count);
        for (entry, out) in entries.zip(body.chunks_exact_mut(ENTRY_LEN)) {
            out.copy_from_slice(&entry.encode());
        }
    }
}

/// What a connection needed of control frames and acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Controlled {
    Nothing,
    /// One, which was sent. The next one takes the entries for which it had no room.
    Sent,
    /// One, which may not be sent yet.
    Later,
}

impl Outbox {
    /// Sends a control frame, or an acknowledgement, if a connection needs one.
    ///
    /// # Errors
    ///
    /// Returns what is missing: with [`Missing::Slot`], it needs this one still.
    pub(in super::super) fn send_control<T: Transport>(
        &mut self,
        link: &mut Link<T::RecvBuf>,
        transport: &mut T,
    ) -> Result<Controlled, Missing> {
        if link.ended.is_some() {
            return Err(Missing::Connection);
        }
        let may_send = link.connection.may_send_control_frame();
        if may_send {
            link.entries.collect_cancels();
        }
        let has_entries = may_send && link.entries.len() > 0;
        let kind = if link.connection.wants_control_frame() || has_entries {
            FrameKind::Control
        } else if link.connection.wants_ack_frame() {
            // The calls that the control frame woke are sent before the next turn ends.
            if !mem::replace(&mut link.ack_is_due, true) {
                return Ok(Controlled::Later);
            }
            FrameKind::Acknowledgement
        } else {
            // A client may have yet to be notified of the shutdown, and entries may wait for an
            // acknowledgement.
            let must_wait = link.connection.must_announce_shutdown() || link.entries.len() > 0;
            return Ok(match must_wait {
                true => Controlled::Later,
                false => Controlled::Nothing,
            });
        };
        let room = transport.longest_frame(link.id).saturating_sub(HEADER_LEN);
        let count = match kind {
            FrameKind::Control => link.entries.within(room),
            _ => 0,
        };
        let permit = self.permit(Class::Control, link, transport)?;
        permit.send(Body::Slot(HEADER_LEN + count * ENTRY_LEN), |link, frame| {
            let header = link.connection.next_header(kind, CallId(0), 0);
            header.encode(frame);
            link.entries.write(count, &mut frame[HEADER_LEN..]);
            Some(())
        })?;
        Ok(Controlled::Sent)
    }
}
