//! Ends the long messages of a closed connection, and frees what they hold.

use super::super::State;
use super::super::link::LinkKey;
use super::super::link_transfers::IncomingKey;
use super::arrival::Purpose;
use super::incoming::Place;
use crate::transport::Transport;

impl<T: Transport> State<T> {
    /// Ends the long messages of a connection that the transport has closed. Their calls end by
    /// themselves, apart from requests that had not arrived in full.
    #[cold]
    pub(in super::super) fn end_transfers(&mut self, link: LinkKey) {
        let entry = &mut self.links[link].transfers;
        let outgoing = std::mem::take(&mut entry.outgoing);
        let incoming = std::mem::take(&mut entry.incoming);
        entry.by_call.clear();
        entry.ended.clear();
        for key in outgoing {
            self.transfers.to_send.remove(key);
            let outgoing = self.transfers.outgoing.remove(key);
            if let Some(timer) = outgoing.timer {
                self.timers.cancel(timer);
            }
            self.conceal_all(link, outgoing.exposed);
            self.transfers.discard(outgoing.message);
        }
        for (_, key) in incoming {
            self.end_incoming(key);
        }
    }

    fn end_incoming(&mut self, key: IncomingKey) {
        self.cancel_incoming_timer(key);
        self.discharge(key);
        self.transfers.owed.remove(key);
        let incoming = self.transfers.incoming.remove(key);
        match incoming.place {
            Place::Waiting(_) => self.transfers.waiting.leave(key, incoming.len),
            Place::Fetch(fetch) | Place::Cancelling(fetch) => {
                self.transfers.fetches.remove(&fetch);
            }
            Place::Memory(_) | Place::Heap(_) | Place::Nowhere => {}
        }
        if let Purpose::Request(served) = incoming.purpose {
            self.counters.dropped(served.method);
        }
    }
}
