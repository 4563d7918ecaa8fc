//! Ends the long messages of a closed connection, and frees what they hold.

use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::super::links::Links;
use super::super::transfers::Transfers;
use super::arrival::Purpose;
use super::incoming::Place;
use crate::transport::Transport;

impl<T: Transport> Transfers<T> {
    /// Ends the long messages of a connection that the transport has closed. Their calls end by
    /// themselves, apart from requests that had not arrived in full.
    #[cold]
    pub(in super::super) fn end_transfers(&mut self, links: &mut Links<T>, link: LinkKey) {
        let entry = &mut links[link].transfers;
        let outgoing = std::mem::take(&mut entry.outgoing);
        let incoming = std::mem::take(&mut entry.incoming);
        entry.by_call.clear();
        entry.ended.clear();
        for key in outgoing {
            links.outbox.pieces.remove(key);
            let outgoing = self.outgoing.remove(key);
            if let Some(timer) = outgoing.timer {
                links.timers.cancel(timer);
            }
            self.conceal_all(links, link, outgoing.exposed);
            self.discard(outgoing.message);
        }
        for (_, key) in incoming {
            self.end_incoming(links, key);
        }
    }

    fn end_incoming(&mut self, links: &mut Links<T>, key: IncomingKey) {
        self.cancel_incoming_timer(links, key);
        self.discharge(links, key);
        self.owed.remove(key);
        let incoming = self.incoming.remove(key);
        match incoming.place {
            Place::Waiting(_) => self.waiting.leave(key, incoming.len),
            Place::Fetch(fetch) | Place::Cancelling(fetch) => {
                self.fetches.remove(&fetch);
            }
            Place::Memory(_) | Place::Heap(_) | Place::Nowhere => {}
        }
        if let Purpose::Request(served) = incoming.purpose {
            links.counters.dropped(served.method);
        }
    }
}
