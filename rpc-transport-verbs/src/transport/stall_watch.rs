//! [`StallWatch`]: finds peers that keep this side waiting, while new clients wait for connections.
//!
//! A peer that stops in the middle of a message, or does not acknowledge a frame, holds a connection
//! that nobody uses. [`SendWatch`](super::send_watch) ends such connections after half a minute. When
//! new clients find none left, a second has to be enough: a peer that follows the rules completes a
//! message, which is as short as a frame, and acknowledges another one within a round trip.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rpc_core::transport::{ConnectionId, Stalled};

/// How long a peer may keep this side waiting.
const PATIENCE: Duration = Duration::from_secs(1);

/// What this side waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Awaited {
    /// The acknowledgement of the oldest send, by its number.
    Send(u64),
    /// The rest of a message, by its number.
    Message(u64),
}

/// What each connection's peer owed at the latest look, and since when.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    since: HashMap<(ConnectionId, Awaited), Instant>,
}

impl StallWatch {
    /// Looks once at all that is awaited.
    pub(crate) fn look(
        &mut self,
        awaited: impl Iterator<Item = (ConnectionId, Awaited)>,
        now: Instant,
    ) -> Stalled {
        let before = std::mem::take(&mut self.since);
        let mut stalled = Stalled::default();
        for key in awaited {
            let since = *before.get(&key).unwrap_or(&now);
            self.since.insert(key, since);
            if now.saturating_duration_since(since) < PATIENCE {
                stalled.may_follow = true;
            } else {
                stalled.connections.push(key.0);
            }
        }
        stalled
    }

    /// Returns true if this has been awaited for too long. The latest look may be long ago.
    pub(crate) fn has_stalled(&self, id: ConnectionId, awaited: Awaited, now: Instant) -> bool {
        let since = self.since.get(&(id, awaited));
        since.is_some_and(|since| now.saturating_duration_since(*since) >= PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_awaited_all_the_time_has_stalled() {
        let id = |index| ConnectionId {
            index,
            generation: 0,
        };
        let mut watch = StallWatch::default();
        let start = Instant::now();
        let at = |tenths: u32| start + PATIENCE * tenths / 10;
        for tenths in 0..30 {
            let awaited = [
                (id(1), Awaited::Send(7)),
                (id(2), Awaited::Send(u64::from(tenths / 9))),
                (id(3), Awaited::Message(u64::from(tenths / 9))),
            ];
            let stalled = watch.look(awaited.into_iter(), at(tenths));
            let expected = if tenths < 10 { vec![] } else { vec![id(1)] };
            assert_eq!(stalled.connections, expected, "at {tenths}");
            assert!(stalled.may_follow);
        }
        assert!(watch.has_stalled(id(1), Awaited::Send(7), at(30)));
        // A later send of the same connection is awaited for less long.
        assert!(!watch.has_stalled(id(1), Awaited::Send(8), at(300)));
        assert!(!watch.has_stalled(id(2), Awaited::Send(3), at(30)));
        let stalled = watch.look([].into_iter(), at(31));
        assert!(stalled.connections.is_empty() && !stalled.may_follow);
    }
}
