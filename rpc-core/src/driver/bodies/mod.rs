//! [`Bodies`]: bodies that do not fit a slot, while they are on their way.
//!
//! A long message begins with a frame of its call, which says the message's length and has the first
//! piece. Continuations bring the others (`protocol/frame/long.rs`). A frame's slot is released as
//! soon as the frame has been handled: fragments are copied out of it, and the descriptions of
//! segments are kept. Nothing here knows a call or a stream: what has happened to a message is
//! returned ([`Ended`]), and `long_messages.rs` hands a complete one to where short ones go.
//!
//! | file | step |
//! | --- | --- |
//! | `sending.rs` | sender: what is kept of a message that is under way |
//! | `first_frame.rs` | sender: the first frame leaves, and all others if they are few |
//! | `pieces.rs` | sender: pieces leave, some in each turn |
//! | `release.rs` | sender: the receiver's entries release pieces, or stop the message |
//! | `incoming.rs` | receiver: what is kept of a message that arrives, and looks at its progress |
//! | `receiving.rs` | receiver: a first frame or a continuation arrives, and segments are read |
//! | `admission.rs` | receiver: a message gets memory for all of it, or waits for it, or is refused |
//! | `waiting_messages.rs` | receiver: the messages that wait for memory, in the order in which they get it |
//! | `progress.rs` | receiver: a sender that stops sending loses its connection |
//! | `finish.rs` | receiver: a message is complete, or is stopped; entries tell its sender |
//! | `arrival.rs` | the purpose of a long message, and its outcome |
//! | `looks.rs` | both: the time that a peer has, for `release.rs` and `progress.rs` |
//!
//! Both forms of a message differ only in their pieces. *Fragments* are copied into slots, and out of
//! them. *Segments* describe memory that the sender exposes and the receiver reads.
//!
//! A message that waits for memory holds no slot and no credit. A sender sends only a little of a
//! message before its receiver has memory for it.

mod admission;
mod arrival;
mod finish;
mod first_frame;
mod incoming;
mod looks;
mod pieces;
mod progress;
mod receiving;
mod release;
mod sending;
mod waiting_messages;

use std::sync::Arc;

pub(super) use self::arrival::{Ended, Outcome, Purpose};
pub(super) use self::incoming::Receiving;
pub(super) use self::receiving::{Begun, FirstFrame};
pub(super) use self::sending::{Sending, SentMessage, TransferOwner};
use super::held_memory::PollerMemory;
use super::link::LinkKey;
use super::links::Links;
use crate::transport::Transport;

/// The long messages of one poller.
pub(crate) struct Bodies<T: Transport> {
    pub(super) sending: Sending,
    pub(super) receiving: Receiving<T>,
}

impl<T: Transport> Default for Bodies<T> {
    fn default() -> Self {
        let memory: Arc<PollerMemory> = Arc::default();
        Self {
            sending: Sending::new(Arc::clone(&memory)),
            receiving: Receiving::new(memory),
        }
    }
}

impl<T: Transport> Bodies<T> {
    /// Returns a number other than 0 if messages, or parts to drop, wait for a turn.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.sending.waiting() | self.receiving.waiting()
    }

    /// Returns true if no long message is under way.
    pub(super) fn is_empty(&self) -> bool {
        let (sent, received) = self.counts();
        (sent | received) == 0
    }

    /// Returns the numbers of messages that are sent and received.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.sending.len(), self.receiving.len())
    }

    /// Ends the long messages of a connection that the transport has closed. Their calls end by
    /// themselves, apart from requests that had not arrived in full.
    #[cold]
    pub(super) fn end_all_of(&mut self, links: &mut Links<T>, link: LinkKey) {
        links[link].bodies.ended.clear();
        self.sending.end_all_of(links, link);
        self.receiving.end_all_of(links, link);
    }
}
