//! [`StallWatch`]: finds what a connection's peer, or its device, keeps this side waiting for.
//!
//! Each lane has two. Looks are counted, instead of time: a poller that was stopped, or whose handler
//! blocked it, looks once afterwards, and its turns poll completions before the next request.
//!
//! # Sends that are stuck
//!
//! A network device retries a send that the peer does not acknowledge, and fails its queue pair
//! after the last retry: after two seconds at most with the attributes that a connection gets. A
//! device that loses track of a retry does neither. Soft-RoCE of Linux 6.1 does so now and then on
//! a network that loses packets: the port is up, both queue pairs are in RTS, the other direction
//! works, and one packet is not sent again. The slots of those sends would be lost, and the peer
//! would wait for ever.
//!
//! A send that the peer answers with RNR NAKs waits, too, because connections retry without end
//! (`rnr_retry` 7). A peer that keeps the rules has a receive for every frame that it may get, even if
//! its process is stopped. So half a minute of RNR NAKs means that the peer breaks the rules, or that
//! another of its clients does and has taken its receives.
//!
//! The event thread asks the poller every five seconds to look whether the oldest send that it waits for
//! is still the same.
//!
//! Inline sends that no completion is due for are not watched: they hold no slot, and many of them on
//! quiet connections will never have a completion. If such sends alone are stuck, the connection is
//! found after it has sent some more, because one send in every interval of signals has a completion.
//!
//! The software device has limits of its own: over shared memory, a stopped peer is waited for; over
//! TCP, one that answers nothing for a minute is not.
//!
//! # Peers that stall while new clients wait
//!
//! A peer that stops in the middle of a message, or does not acknowledge a frame, holds a connection
//! that nobody uses. When new clients find none left, a second has to be enough: a peer that follows
//! the rules completes a message, which is as short as a frame, and acknowledges another one within a
//! round trip. While they wait, the control thread asks for a look every 20 ms.

use std::mem;
use std::time::Duration;

use rpc_core::transport::ConnectionId;

/// The time between two looks for stuck sends.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_secs(5);

/// A send that is the oldest one at so many looks in a row is stuck. The first look may come up to a
/// period late, so that is [`WATCHED_TIME`] at least: 16 times what the retries of a device take.
pub(crate) const STUCK_AFTER: u32 = 8;

/// A send that is found stuck has waited for this long at least.
pub(crate) const WATCHED_TIME: Duration = LOOK_PERIOD.saturating_mul(STUCK_AFTER - 2);

/// A peer for which this side waits at so many looks in a row stalls, while new clients wait: a second.
pub(crate) const STALLED_AFTER: u32 = 50;

/// What this side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Awaited {
    /// The completion of the oldest send, by its number.
    Send(u64),
    /// The rest of a message, by its number.
    Message(u64),
}

/// What the latest looks have found awaited, in the order of the connections' indexes.
#[derive(Debug)]
pub(crate) struct StallWatch {
    seen: Vec<Seen>,
    /// That of the look before, while a look is made. Both have room for a send of each connection,
    /// because a look for stuck sends may be in the middle of a poller's work, which does not allocate.
    before: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    connection: ConnectionId,
    awaited: Awaited,
    /// The looks in a row that have found it.
    looks: u32,
}

impl Seen {
    fn place(&self) -> (u32, Awaited) {
        (self.connection.index, self.awaited)
    }
}

impl StallWatch {
    /// Creates a watch with room for so many entries.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            seen: Vec::with_capacity(capacity),
            before: Vec::with_capacity(capacity),
        }
    }

    /// Looks once at all that is awaited: for each connection one send and one message at most, in this
    /// order, and the connections in the order of their indexes.
    pub(crate) fn look(&mut self, awaited: impl Iterator<Item = (ConnectionId, Awaited)>) {
        mem::swap(&mut self.seen, &mut self.before);
        self.seen.clear();
        for (connection, awaited) in awaited {
            let before = find(&self.before, connection, awaited);
            self.seen.push(Seen {
                connection,
                awaited,
                looks: before.map_or(1, |seen| seen.looks.saturating_add(1)),
            });
        }
    }

    /// Returns the connections on which something was awaited at so many looks in a row, in the order
    /// of their indexes.
    pub(crate) fn found_at(&self, looks: u32) -> impl Iterator<Item = ConnectionId> {
        let found = self.seen.iter().filter(move |seen| seen.looks >= looks);
        found.map(|seen| seen.connection)
    }

    /// Returns the number of looks in a row that have found this awaited.
    pub(crate) fn looks(&self, connection: ConnectionId, awaited: Awaited) -> u32 {
        find(&self.seen, connection, awaited).map_or(0, |seen| seen.looks)
    }
}

fn find(seen: &[Seen], connection: ConnectionId, awaited: Awaited) -> Option<&Seen> {
    let place = seen.binary_search_by_key(&(connection.index, awaited), Seen::place);
    let seen = &seen[place.ok()?];
    (seen.connection == connection).then_some(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> ConnectionId {
        ConnectionId {
            index,
            generation: 0,
        }
    }

    #[test]
    fn only_what_is_awaited_at_every_look_stalls() {
        let mut watch = StallWatch::new(2);
        for look in 1..100 {
            // A send lasts for one look less than is allowed, and the other connection rests at times.
            let oldest = look / u64::from(STUCK_AFTER - 1);
            let rests = look % u64::from(STUCK_AFTER) == 0;
            let awaited = [
                (id(3), Awaited::Send(oldest)),
                (id(3), Awaited::Message(oldest)),
            ];
            let resting = (!rests).then_some((id(5), Awaited::Send(7)));
            watch.look(awaited.into_iter().chain(resting));
            assert_eq!(watch.found_at(STUCK_AFTER).count(), 0, "at look {look}");
        }
        let mut watch = StallWatch::new(2);
        for look in 1..=STUCK_AFTER {
            let awaited = [
                (id(3), Awaited::Send(7)),
                (id(5), Awaited::Send(look.into())),
                (id(5), Awaited::Message(9)),
            ];
            watch.look(awaited.into_iter());
            let stuck: Vec<_> = watch.found_at(STUCK_AFTER).collect();
            let expected = if look < STUCK_AFTER {
                vec![]
            } else {
                vec![id(3), id(5)]
            };
            assert_eq!(stuck, expected, "at look {look}");
            assert_eq!(watch.looks(id(3), Awaited::Send(7)), look);
            assert_eq!(watch.looks(id(5), Awaited::Send(look.into())), 1);
            assert_eq!(watch.looks(id(3), Awaited::Message(7)), 0);
        }
        // Another connection has taken the index.
        let other = ConnectionId {
            index: 3,
            generation: 1,
        };
        watch.look([(other, Awaited::Send(7))].into_iter());
        assert_eq!(watch.looks(other, Awaited::Send(7)), 1);
    }
}
