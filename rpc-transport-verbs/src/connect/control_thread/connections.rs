//! What becomes of a connection after its first bytes or its handshake: one for calls goes to the queue pair
//! that waits for it, and others are watched until they end.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use verbline_verbs::log_limited;

use super::Token;
use super::incoming_client::IncomingClient;
use super::sockets::{Sockets, Source};
use crate::connect::link::LinkSecret;
use crate::connect::liveness::LivenessConnection;
use crate::transport::notices::LivenessEnd;

/// How late the thread may run before it measures the clocks of all servers again: the process, or
/// its machine, may have been stopped.
const LATE: Duration = Duration::from_secs(1);

impl Sockets {
    /// Hands a connection to the queue pair that waits for it, if the secret is right: it serves once.
    pub(super) fn hand_over_link(&mut self, link: IncomingClient, secret: LinkSecret) {
        let peer = link.peer();
        let Some((owner, target)) = self.awaited_links.remove(&secret) else {
            log_limited!(info, %peer, "closed a connection for calls: its secret is wrong, was used before, or its handshake has ended");
            return;
        };
        let Some(Source::Incoming(client)) = self.sources.get_mut(&owner) else {
            return;
        };
        if client.is_secured() != link.is_secured() {
            log_limited!(warn, %peer, "closed a connection for calls: one of it and its handshake has TLS, and the other has not");
            return;
        }
        let attached = match link.into_link() {
            Some(bytes) => target.attach(bytes),
            None => Ok(false),
        };
        match attached {
            Ok(true) => client.link_secret = None,
            Ok(false) => tracing::debug!(%peer, "a connection for calls came too late"),
            Err(error) => {
                log_limited!(warn, %peer, %error, "a connection for calls cannot be used");
            }
        }
    }

    /// Starts watching a liveness connection. `read` holds bytes that were already read from its
    /// socket. Returns `None` if it has ended at once.
    pub(super) fn watch(&mut self, mut liveness: LivenessConnection, read: &[u8]) -> Option<Token> {
        liveness.start(Instant::now());
        let deadline = liveness.deadline();
        let end = liveness.handle_bytes(read);
        match self.add(Source::Liveness(Box::new(liveness))) {
            Ok(token) => {
                self.schedule(token, deadline);
                self.after_liveness(token, end);
                self.sources.contains_key(&token).then_some(token)
            }
            Err((Source::Liveness(liveness), _)) => {
                liveness.report(LivenessEnd::Gone);
                None
            }
            Err(_) => None,
        }
    }

    /// Schedules the next deadline of a liveness connection, if it has one.
    fn schedule(&mut self, token: Token, deadline: Option<Instant>) {
        if let Some(deadline) = deadline {
            self.deadlines.push(Reverse((deadline, token)));
        }
    }

    /// Handles the deadline of a liveness connection.
    fn handle_liveness_deadline(&mut self, token: Token, now: Instant) {
        if let Some(Source::Liveness(liveness)) = self.sources.get_mut(&token) {
            let (end, deadline) = (liveness.handle_deadline(now), liveness.deadline());
            self.schedule(token, deadline);
            self.after_liveness(token, end);
        }
    }

    /// Removes a liveness connection and reports how it ended, if it has ended. Otherwise, watches its
    /// socket for what it waits for now.
    pub(super) fn after_liveness(&mut self, token: Token, end: Option<LivenessEnd>) {
        if let Some(end) = end {
            if let Some(Source::Liveness(liveness)) = self.remove(token) {
                liveness.report(end);
            }
            return;
        }
        if let Some(Source::Liveness(liveness)) = self.sources.get_mut(&token)
            && let Some(flags) = liveness.change_of_watch()
        {
            let (data, socket) = (epoll::EventData::new_u64(token), liveness.stream.socket());
            if epoll::modify(&self.epoll, socket, data, flags).is_err() {
                // The next event or deadline of it writes what is unsent.
                log_limited!(
                    warn,
                    "the socket of a connection cannot be watched for writing"
                );
            }
        }
    }

    pub(super) fn handle_deadlines(&mut self) {
        let now = Instant::now();
        if let Some(Reverse((deadline, _))) = self.deadlines.peek()
            && now.saturating_duration_since(*deadline) > LATE
        {
            let mut begun = Vec::new();
            for (token, source) in &mut self.sources {
                if let Source::Liveness(liveness) = source {
                    // Its entry in the deadlines stays: the next series begins later than it said.
                    liveness.begin_series(now);
                    begun.push(*token);
                }
            }
            // The socket may have taken a part of the question only.
            for token in begun {
                self.after_liveness(token, None);
            }
        }
        while let Some(&Reverse((deadline, token))) = self.deadlines.peek() {
            if deadline > now {
                break;
            }
            self.deadlines.pop();
            self.handle_liveness_deadline(token, now);
        }
    }
}
