//! [`SendWatch`]: finds sends that a device neither completes nor fails for half a minute.
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
//! is still the same. Looks are counted, instead of time: a poller that was stopped, or whose handler
//! blocked it, looks once afterwards, and its turns poll completions before the next request.
//!
//! Inline sends that no completion is due for are not watched: they hold no slot, and many of them on
//! quiet connections will never have a completion. If such sends alone are stuck, the connection is
//! found after it has sent some more, because one send in every interval of signals has a completion.
//!
//! The software device has limits of its own: over shared memory, a stopped peer is waited for; over
//! TCP, one that answers nothing for a minute is not.

use std::mem;
use std::time::Duration;

use rpc_core::transport::ConnectionId;

/// The time between two looks.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_secs(5);

/// A send that is the oldest one at so many looks in a row is stuck. The first look may come up to a
/// period late, so that is [`WATCHED_TIME`] at least: 16 times what the retries of a device take.
pub(crate) const STUCK_AFTER: u32 = 8;

/// A send that is found stuck has waited for this long at least.
pub(crate) const WATCHED_TIME: Duration = LOOK_PERIOD.saturating_mul(STUCK_AFTER - 2);

/// The sends that the latest looks have found waiting: an entry for each connection that had some, in
/// the order of their indexes.
#[derive(Debug)]
pub(crate) struct SendWatch {
    seen: Vec<Seen>,
    /// Those of the look before, while a look is made. Both have room for all connections, because a
    /// look may be in the middle of a poller's work, which does not allocate.
    before: Vec<Seen>,
}

/// A connection that waits for a completion.
#[derive(Debug)]
struct Seen {
    connection: ConnectionId,
    /// The number of its oldest send.
    oldest: u64,
    /// The looks in a row that have found it.
    looks: u32,
}

impl SendWatch {
    /// Creates the watch of a poller with so many connections at most.
    pub(crate) fn new(max_connections: usize) -> Self {
        Self {
            seen: Vec::with_capacity(max_connections),
            before: Vec::with_capacity(max_connections),
        }
    }

    /// Looks once at all connections. `waiting` has each that waits for a completion, in the order of
    /// the indexes, with the number of its oldest send. Returns those whose sends are stuck.
    pub(crate) fn look(
        &mut self,
        waiting: impl Iterator<Item = (ConnectionId, u64)>,
    ) -> Vec<ConnectionId> {
        mem::swap(&mut self.seen, &mut self.before);
        self.seen.clear();
        for (connection, oldest) in waiting {
            let place = self
                .before
                .binary_search_by_key(&connection.index, |seen| seen.connection.index);
            let looks = match place.map(|place| &self.before[place]) {
                Ok(seen) if (seen.connection, seen.oldest) == (connection, oldest) => {
                    seen.looks + 1
                }
                _ => 1,
            };
            self.seen.push(Seen {
                connection,
                oldest,
                looks,
            });
        }
        let stuck = self.seen.iter().filter(|seen| seen.looks >= STUCK_AFTER);
        stuck.map(|seen| seen.connection).collect()
    }
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
    fn only_the_same_send_at_every_look_is_stuck() {
        let mut watch = SendWatch::new(2);
        for look in 1..100 {
            // A send lasts for one look less than is allowed, and the other connection rests at times.
            let oldest = look / u64::from(STUCK_AFTER - 1);
            let rests = look % u64::from(STUCK_AFTER) == 0;
            let waiting = [(id(3), oldest)].into_iter();
            let waiting = waiting.chain((!rests).then_some((id(5), 7)));
            assert_eq!(watch.look(waiting), [], "at look {look}");
        }
        let mut watch = SendWatch::new(2);
        for look in 1..=STUCK_AFTER {
            let waiting = [(id(3), 7), (id(5), look.into())].into_iter();
            let stuck = watch.look(waiting);
            assert_eq!(
                stuck == [id(3)],
                look == STUCK_AFTER,
                "{stuck:?} at look {look}"
            );
        }
    }
}
