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

use std::collections::HashMap;
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

/// The sends that the latest looks have found waiting: an entry for each connection that had some.
#[derive(Debug, Default)]
pub(crate) struct SendWatch {
    /// The number of a connection's oldest send, and the looks in a row that have found it.
    seen: HashMap<ConnectionId, (u64, u32)>,
}

impl SendWatch {
    /// Looks once at all connections. `waiting` has each that waits for a completion, with the number of
    /// its oldest send. Returns those whose sends are stuck.
    pub(crate) fn look(
        &mut self,
        waiting: impl Iterator<Item = (ConnectionId, u64)>,
    ) -> Vec<ConnectionId> {
        let before = mem::take(&mut self.seen);
        self.seen = waiting
            .map(|(id, oldest)| match before.get(&id) {
                Some(&(same, looks)) if same == oldest => (id, (oldest, looks + 1)),
                _ => (id, (oldest, 1)),
            })
            .collect();
        let is_stuck = |&(_, looks): &(u64, u32)| looks >= STUCK_AFTER;
        let stuck = self.seen.iter().filter(|(_, seen)| is_stuck(seen));
        stuck.map(|(id, _)| *id).collect()
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
        let mut watch = SendWatch::default();
        for look in 1..100 {
            // A send lasts for one look less than is allowed, and the other connection rests at times.
            let oldest = look / u64::from(STUCK_AFTER - 1);
            let rests = look % u64::from(STUCK_AFTER) == 0;
            let waiting = [(id(3), oldest)].into_iter();
            let waiting = waiting.chain((!rests).then_some((id(5), 7)));
            assert_eq!(watch.look(waiting), [], "at look {look}");
        }
        let mut watch = SendWatch::default();
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
