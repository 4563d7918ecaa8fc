//! The entries of control frames that the receiver of a long message sends to its sender.

use std::{mem, thread};

use super::super::Driver;
use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::super::links::Links;
use super::Transfers;
use super::arrival::Purpose;
use super::incoming::{Incoming, Place};
use crate::protocol::frame::{ControlEntry, ControlRequest};
use crate::transport::Transport;

/// The most turns that a caller takes until its entries are sent. An entry waits while the peer has not
/// acknowledged the control frame before.
const MOST_TURNS: u32 = 20_000;
/// Of these, turns after which the caller offers its core to others before each: where there are more
/// threads than cores, the peer may need it. All turns take some ten milliseconds if nobody does.
const TURNS_WITHOUT_YIELD: u32 = 1000;

impl<T: Transport> Driver<T> {
    /// Takes turns until each sender knows that its message was received. Messages that are still
    /// arriving are released in later turns, so that a stream does not hold up the caller.
    #[cold]
    pub(in super::super) fn send_releases(&self) {
        for turn in 0..MOST_TURNS {
            if !self.state.borrow().transfers.owes_last_entries() {
                return;
            }
            if turn >= TURNS_WITHOUT_YIELD {
                thread::yield_now();
            }
            self.turn();
        }
    }
}

impl<T: Transport> Transfers<T> {
    /// Queues a message's entries for the next control frame.
    pub(super) fn owe_entry(&mut self, links: &mut Links<T>, key: IncomingKey) {
        let link = self.incoming[key].link;
        self.owed.insert(link, key);
        links.owe(link);
    }

    /// Removes a message if nothing of it follows in either direction.
    pub(super) fn forget_if_done(&mut self, links: &mut Links<T>, key: IncomingKey) {
        let Some(incoming) = self.incoming.get(key) else {
            return;
        };
        if incoming.is_done() && !self.owed.contains(key) {
            let link = &mut links[incoming.link].transfers;
            link.incoming.remove(&incoming.id);
            self.incoming.remove(key);
        }
    }
}

impl<T: Transport> Transfers<T> {
    /// Makes entries about the messages of a connection. Called only when a control frame may be sent.
    pub(in super::super) fn collect_entries(&mut self, link: LinkKey, links: &mut Links<T>) {
        let link_entry = &mut links[link];
        while let Some(key) = self.owed.pop(link) {
            let incoming = &mut self.incoming[key];
            let owed = mem::take(&mut incoming.owed);
            let mut push = |request| {
                let entry = ControlEntry::of_transfer(incoming.id, request);
                link_entry.entries.push(entry);
            };
            if owed.is_accepted {
                push(ControlRequest::Accepted);
            }
            if owed.is_stopped {
                // This entry releases all segments.
                push(ControlRequest::Stopped);
            } else if owed.fetched > 0 {
                push(ControlRequest::Fetched(owed.fetched));
            }
            if incoming.is_done() {
                link_entry.transfers.incoming.remove(&incoming.id);
                self.incoming.remove(key);
            }
        }
    }
}

impl<M> Incoming<M> {
    /// Returns true if nothing follows in either direction but entries. A message that somebody wants
    /// is not done: if its memory has gone with its connection, the end of the connection ends it.
    fn is_done(&self) -> bool {
        let is_nowhere = matches!(self.place, Place::Nowhere);
        let is_wanted = !matches!(self.purpose, Purpose::Nobody);
        self.is_announced && is_nowhere && !is_wanted
    }
}
