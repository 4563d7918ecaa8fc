//! The receiver's part of a long message: looks whether a message that has memory goes on. Without this,
//! one first frame would keep memory for a whole message for as long as the connection lasts.
//!
//! If its sender sends no more of it, or lets none of it be read, the connection is closed. If too little of
//! it arrives while messages of other connections wait for memory, the message is refused.
//!
//! While READs of a message are outstanding, the connection's READs count, and not the message's own:
//! they are executed in order, and those of other messages may be in front. Likewise, pieces of other
//! messages count between two pieces of a message, as many as a sender that has begun all messages
//! that it may sends of them in turn: over a slow path, that takes longer than a look.
//!
//! [`Looks`](super::looks::Looks) decides when a sender has had enough time.

use super::super::link_bodies::LinkBodies;
use super::incoming::{Incoming, OfOthers, Place, Progress};
use super::looks::PATIENCE;
use super::pieces::RUN_LEN;
use crate::protocol::connection::MAX_TRANSFERS;
use crate::protocol::frame::{FRAGMENT, TransferId};

/// The most bytes of other messages that a sender sends before the next piece of a message.
const MOST_OF_OTHERS: u64 = MAX_TRANSFERS as u64 * RUN_LEN as u64;

/// The peer has stopped sending a long message, or does not let this side read it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum SenderStalled {
    #[error(
        "the peer has sent {sent} of the {len} bytes of a long message (transfer {:#010x}) and nothing \
         more for {} s, and the connection is closed to free the memory for the message: check that \
         the peer's poller still takes turns",
        transfer.0,
        PATIENCE.as_secs()
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
        PATIENCE.as_secs()
    )]
    Segments {
        transfer: TransferId,
        exposed: u32,
        len: u32,
    },
    #[error(
        "the peer has not let this side read {unread} bytes that it has announced of the {len} bytes of \
         a long message (transfer {:#010x}), nor any other message, for {} s, and the connection is \
         closed to free the memory for the message: check that the peer's process still runs",
        transfer.0,
        PATIENCE.as_secs()
    )]
    Reads {
        transfer: TransferId,
        unread: u32,
        len: u32,
    },
}

impl<M> Incoming<M> {
    pub(super) fn is_read(&self) -> bool {
        self.unfetched > 0 || matches!(self.place, Place::Cancelling(_))
    }

    pub(super) fn progress(&self, link: &LinkBodies) -> Progress {
        let others = link.announced - self.announced_on_link;
        Progress {
            own: u64::from(self.announced) + u64::from(self.received),
            of_others: match self.is_read() {
                true => OfOthers::Read(link.segments_read),
                false => OfOthers::Announced(others.min(MOST_OF_OTHERS)),
            },
        }
    }

    pub(super) fn stalled(&self) -> SenderStalled {
        let (transfer, announced, len) = (self.id, self.announced, self.len);
        if self.is_read() {
            return SenderStalled::Reads {
                transfer,
                unread: announced - self.received,
                len,
            };
        }
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
