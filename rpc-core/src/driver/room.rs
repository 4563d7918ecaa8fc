//! Room for new clients, when a poller has as many connections as it takes.
//!
//! A connection that is not used costs its client nothing. So a full poller ends such connections when
//! new clients come:
//!
//! - those on which no call has arrived, some time after they were accepted;
//! - those whose peers keep this side waiting: for the rest of a message, or for the acknowledgement
//!   of a response ([`Transport::stalled_connections`]).
//!
//! Of these, the oldest one of the host that has most of them ends. A client that has made a call, and
//! then waits as long as it likes, keeps its connection.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::Driver;
use super::link::LinkKey;
use crate::peer::Host;
use crate::transport::{CloseReason, RoomMade, RoomWanted, Stalled, Transport};

/// How long a new connection may be without a call. A client's first call mostly follows its handshake
/// at once.
const TIME_TO_CALL: Duration = Duration::from_millis(100);

impl<T: Transport> Driver<T> {
    /// Ends connections for new clients, and tells how many.
    #[cold]
    pub(super) fn make_room(&self, wanted: RoomWanted) {
        let now = self.clock.now();
        let state = &mut *self.state.borrow_mut();
        let Stalled {
            connections: stalled,
            may_follow,
        } = state.transport.stalled_connections(now);
        let mut may_follow = may_follow;
        let mut yielding: HashMap<Option<Host>, Vec<(Instant, LinkKey)>> = HashMap::new();
        for (index, link) in &state.links {
            let Some(since) = link.accepted_at.filter(|_| link.ended.is_none()) else {
                continue;
            };
            if link.connection.has_been_called() {
                if !stalled.contains(&link.id) {
                    continue;
                }
            } else if now.saturating_duration_since(since) < TIME_TO_CALL {
                may_follow = true;
                continue;
            }
            let host = link.peer.as_ref().map(|peer| Host::from(peer.address()));
            let links = yielding.entry(host).or_default();
            links.push((since, LinkKey(index as u32)));
        }
        for links in yielding.values_mut() {
            // The oldest is last.
            links.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
        }
        let mut ended = 0;
        while ended < wanted.count()
            && let Some(most) = yielding.values_mut().max_by_key(|links| links.len())
            && let Some((_, key)) = most.pop()
        {
            let link = &mut state.links[key.index()];
            log_limited!(
                warn,
                connection = %link.id,
                peer = link.peer.as_deref().map(tracing::field::display),
                "ended a connection for a new client: the server has as many as it takes, and no call \
                 has arrived on this one, or its peer neither reads nor completes its messages. If both \
                 are your clients, raise `connections` on the server"
            );
            link.ended = Some(CloseReason::Local);
            state.transport.close(link.id);
            ended += 1;
        }
        let may_follow = may_follow || yielding.values().any(|links| !links.is_empty());
        wanted.answer(RoomMade { ended, may_follow });
    }
}
