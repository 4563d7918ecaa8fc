//! [`SendWatch`]: finds sends that a device neither completes nor fails.
//!
//! A network device retries a send that the peer does not acknowledge, and fails its queue pair after
//! the last retry: two seconds with the attributes that a connection gets. A device that loses track of
//! a retry does neither. Soft-RoCE of Linux 6.1 does so now and then on a network that loses packets:
//! the port is up, both queue pairs are in RTS, the other direction works, and one packet is not sent
//! again. The slots of those sends would be lost, and the peer would wait for ever.
//!
//! So the event thread asks the poller now and then to look whether the oldest send that it waits for
//! is still the same. Looks are counted, instead of time: a poller that was stopped, or whose handler
//! blocked it, has looked once since, and polls the completions before it looks again.
//!
//! Inline sends that no completion is due for are not watched: they hold no slot, and many of them on
//! quiet connections will never have a completion. If such sends alone are stuck, the connection is
//! found after it has sent some more, because one send in every interval of signals has a completion.
//!
//! The software device has limits of its own: over shared memory, a stopped peer is waited for; over
//! TCP, one that answers nothing for a minute is not.

use std::time::Duration;

/// The time between two looks.
pub(crate) const LOOK_PERIOD: Duration = Duration::from_secs(5);

/// A send that is the oldest one at so many looks in a row is stuck. With the period, that is at least 30
/// seconds: 16 times what the retries of a device take.
const STUCK_AFTER: u32 = 7;

/// How long the looks take that find a send stuck.
pub(crate) const WATCHED_TIME: Duration = LOOK_PERIOD.saturating_mul(STUCK_AFTER - 1);

/// The looks at one connection.
#[derive(Debug, Default)]
pub(crate) struct SendWatch {
    /// The number of the oldest send that a completion is due for.
    oldest: Option<u64>,
    /// The looks in a row that have found this send.
    looks: u32,
}

impl SendWatch {
    /// Looks at the oldest send that a completion is due for. Returns true if it is stuck.
    pub(crate) fn look(&mut self, oldest: Option<u64>) -> bool {
        if oldest.is_none() || oldest != self.oldest {
            self.oldest = oldest;
            self.looks = 0;
        }
        self.looks += 1;
        oldest.is_some() && self.looks >= STUCK_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_send_at_every_look_is_stuck() {
        let mut watch = SendWatch::default();
        for look in 1..100 {
            assert!(
                !watch.look(Some(look / u64::from(STUCK_AFTER - 1))),
                "at look {look}"
            );
        }
        let mut watch = SendWatch::default();
        for _ in 0..100 {
            assert!(!watch.look(None));
        }
        let looks = (1..).find(|_| watch.look(Some(7)));
        assert_eq!(looks, Some(STUCK_AFTER));
    }
}
