//! Control frames and acknowledgements leave.

use std::mem;

use super::{Class, Missing, Outbox, Slot};
use crate::driver::link::Link;
use crate::protocol::frame::{CallId, ENTRY_LEN, FrameKind, HEADER_LEN};
use crate::transport::Transport;

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
        permit.send(Slot::Of(HEADER_LEN + count * ENTRY_LEN), |link, frame| {
            let header = link.connection.next_header(kind, CallId(0), 0);
            header.encode(frame);
            link.entries.write(count, &mut frame[HEADER_LEN..]);
            Some(())
        })?;
        Ok(Controlled::Sent)
    }
}
