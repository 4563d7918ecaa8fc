//! The receiver's part of a long message: closes the connection of a sender that sends no more of a
//! message which has memory. Otherwise, one first frame would keep memory for a whole message for as
//! long as the connection lasts.
//!
//! Pieces do not touch the timer. It notes how much has arrived when it starts, and compares when it
//! fires.

use std::sync::Arc;
use std::time::Duration;

use super::super::link_transfers::IncomingKey;
use super::super::{State, TimerTarget};
use super::incoming::Incoming;
use super::release::RELEASE_TIMEOUT;
use crate::protocol::frame::{FRAGMENT, TransferId};
use crate::transport::{CloseReason, Transport};

/// The time between two looks at a message. The connection is closed at the second look in a row
/// that finds nothing new: frames that arrived while the poller took no turns are handled between
/// the two.
const LOOK: Duration = Duration::from_secs(RELEASE_TIMEOUT.as_secs() / 2);

/// The peer has stopped sending a long message.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum SenderStalled {
    #[error(
        "the peer has sent {sent} of the {len} bytes of a long message (transfer {:#010x}) and nothing \
         more for {} s, and the connection is closed to free the memory for the message: check that \
         the peer's poller still takes turns",
        transfer.0,
        RELEASE_TIMEOUT.as_secs()
    )]
    Fragments {
        transfer: TransferId,
        sent: u32,
        len: u32,
    },
    #[error(
        "the peer has let this side read {exposed} of the {len} bytes of a long message (transfer \
         {:#010x}) and nothing more for {} s, and the connection is closed to free the memory for the \
         message: check that the peer's poller still takes turns, and raise its `message_memory` if it \
         has none left to expose",
        transfer.0,
        RELEASE_TIMEOUT.as_secs()
    )]
    Segments {
        transfer: TransferId,
        exposed: u32,
        len: u32,
    },
}

impl<T: Transport> State<T> {
    /// Starts the progress timer of a message that has been given memory. Replaces the timer with
    /// which it waited.
    pub(super) fn expect_progress(&mut self, key: IncomingKey) {
        self.cancel_incoming_timer(key);
        let incoming = &mut self.transfers.incoming[key.index()];
        incoming.progress_noted = incoming.progress();
        incoming.was_late = false;
        let look = self.clock.now() + LOOK;
        let end = incoming.deadline.map_or(look, |end| end.min(look));
        incoming.timer = Some(self.timers.insert(end, TimerTarget::Incoming(key)));
    }

    /// Handles the progress timer of a message that has memory.
    pub(super) fn check_progress(&mut self, key: IncomingKey) {
        let incoming = &self.transfers.incoming[key.index()];
        let connection = &self.links[incoming.link.index()].connection;
        // The sender cannot go on while this side reads what it has, or holds all receives that it
        // was promised. The device ends a connection whose peer does not answer a READ.
        let is_held_here = incoming.unfetched > 0 || !connection.peer_has_credits();
        if incoming.progress() != incoming.progress_noted || is_held_here {
            return self.expect_progress(key);
        }
        if !incoming.was_late {
            self.expect_progress(key);
            self.transfers.incoming[key.index()].was_late = true;
            return;
        }
        let error = incoming.stalled();
        let link = &mut self.links[incoming.link.index()];
        if link.ended.is_none() {
            tracing::warn!(connection = %link.id, %error, "closing a connection");
            link.ended = Some(CloseReason::Failed(Arc::new(error)));
            self.transport.close(link.id);
        }
    }
}

impl<M> Incoming<M> {
    /// Returns a number that grows with each piece that is announced, and with each that is read.
    fn progress(&self) -> u64 {
        u64::from(self.announced) + u64::from(self.received)
    }

    fn stalled(&self) -> SenderStalled {
        let (transfer, announced, len) = (self.id, self.announced, self.len);
        match self.form {
            FRAGMENT => SenderStalled::Fragments {
                transfer,
                sent: announced,
                len,
            },
            _ => SenderStalled::Segments {
                transfer,
                exposed: announced,
                len,
            },
        }
    }
}
