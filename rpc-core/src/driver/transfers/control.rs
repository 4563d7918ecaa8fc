//! The entries of control frames that the receiver of a long message sends to its sender.

use std::collections::VecDeque;
use std::{mem, thread};

use super::super::link::LinkKey;
use super::super::link_transfers::{IncomingKey, LinkTransfers};
use super::super::{Driver, State};
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

impl<T: Transport> State<T> {
    /// Queues a message's entries for the next control frame.
    pub(super) fn owe_entry(&mut self, key: IncomingKey) {
        let link = self.transfers.incoming[key].link;
        self.transfers.owed.insert(link, key);
        self.owe(link);
    }

    /// Removes a message if nothing of it follows in either direction.
    pub(super) fn forget_if_done(&mut self, key: IncomingKey) {
        let Some(incoming) = self.transfers.incoming.get(key) else {
            return;
        };
        if incoming.is_done() && !self.transfers.owed.contains(key) {
            let link = &mut self.links[incoming.link].transfers;
            link.incoming.remove(&incoming.id);
            self.transfers.incoming.remove(key);
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

impl LinkTransfers {
    /// Makes entries for a control frame, which may be sent now.
    pub(in super::super) fn collect_entries<M>(
        &mut self,
        link: LinkKey,
        transfers: &mut Transfers<M>,
        entries: &mut VecDeque<ControlEntry>,
    ) {
        while let Some(key) = transfers.owed.pop(link) {
            let incoming = &mut transfers.incoming[key];
            let owed = mem::take(&mut incoming.owed);
            let mut push = |request| {
                entries.push_back(ControlEntry::of_transfer(incoming.id, request));
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
                self.incoming.remove(&incoming.id);
                transfers.incoming.remove(key);
            }
        }
    }
}
