//! Room for new clients: which handshakes end for them, and which clients wait for a connection.
//!
//! When a server has no connection left, an unfinished handshake gives its own up (`places.rs`). If
//! there is none, the pollers are asked in turn to end connections that nobody uses, and the client
//! waits as long as one of them may have some. Otherwise it is refused.

use std::time::{Duration, Instant};

use rpc_core::transport::{Host, RoomMade, RoomWanted};
use rustix::event::epoll::EventFlags;
use verbline_verbs::log_limited;

use super::handshakes::Stage;
use super::sockets::{Sockets, Source};
use super::{Command, Token};

/// How long to wait before a poller is asked again for connections, if it had none to end yet.
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// The same if it has ended some, which come back meanwhile.
const CLOSE_PAUSE: Duration = Duration::from_millis(50);

impl Sockets {
    /// Ends a client's handshake in favor of a new client.
    pub(super) fn make_room(&mut self, oldest: Token) {
        if let Some(Source::Incoming(mut client)) = self.remove(oldest) {
            if client.stage() != Stage::Rejected {
                client.make_room(
                    "too many handshakes are in flight and this one has waited for the longest time",
                );
            }
            log_limited!(
                warn,
                "too many handshakes are in flight: the oldest ones of the host with most of them end in favor of new clients. If these are your clients, start fewer at a time, or raise the limit on open files (ulimit -n)"
            );
        }
    }

    /// Admits a client if its server has a connection left. If not, it waits for the connection of a
    /// handshake that ends for it, or is refused.
    pub(super) fn admit(&mut self, token: Token) {
        self.admit_waiting();
        let Some(Source::Incoming(client)) = self.sources.get(&token) else {
            return;
        };
        let listener = client.listener;
        let host = Host::from(client.peer());
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|(other, _)| *other == listener).count();
        if waiting == 0 && client.server_has_room() {
            return self.admit_one(listener, token);
        }
        // A client may leave after a handshake has ended for it. The connection of that handshake is
        // for the next client, for which no other handshake ends.
        let returning = self.returning.get(&listener).copied().unwrap_or(0);
        if returning > waiting || self.free_a_connection(listener, host) {
            self.waiting.push_back((listener, token));
            return;
        }
        self.waiting.push_back((listener, token));
        self.ask_for_room(listener);
    }

    /// Returns the number of a listener's clients that wait for a connection of which none is on its way.
    fn unserved(&self, listener: Token) -> usize {
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|(other, _)| *other == listener).count();
        let returning = self.returning.get(&listener).copied().unwrap_or(0);
        waiting.saturating_sub(returning)
    }

    /// Asks a poller to end connections that nobody uses, unless one has been asked just now.
    fn ask_for_room(&mut self, listener: Token) {
        let count = self.unserved(listener);
        let Some(Source::Listener(_, config)) = self.sources.get(&listener) else {
            return;
        };
        let asked = self.asked.entry(listener).or_default();
        let now = Instant::now();
        if count == 0 || asked.awaits_answer || asked.again_at.is_some_and(|at| now < at) {
            return;
        }
        let Some(port) = config.ports.get(asked.port % config.ports.len().max(1)) else {
            return self.refuse_unserved(listener);
        };
        asked.awaits_answer = true;
        let control = self.control.clone();
        port.ask_for_room(RoomWanted::new(count, move |made| {
            // Without the control thread there is nothing to notify.
            let _ = control.command(Command::RoomMade(listener, made));
        }));
    }

    /// Handles the answer of a poller. Clients are refused when no poller has a connection for them.
    pub(super) fn room_made(&mut self, listener: Token, made: RoomMade) {
        let ports = match self.sources.get(&listener) {
            Some(Source::Listener(_, config)) => config.ports.len(),
            _ => return,
        };
        let asked = self.asked.entry(listener).or_default();
        asked.awaits_answer = false;
        if made.ended > 0 || made.may_follow {
            asked.without_any = 0;
            let pause = if made.ended > 0 {
                CLOSE_PAUSE
            } else {
                ASK_PAUSE
            };
            asked.again_at = Some(Instant::now() + pause);
            return;
        }
        asked.without_any += 1;
        asked.port += 1;
        if asked.without_any < ports {
            return self.ask_for_room(listener);
        }
        asked.without_any = 0;
        self.refuse_unserved(listener);
    }

    fn refuse_unserved(&mut self, listener: Token) {
        for _ in 0..self.unserved(listener) {
            let last = self
                .waiting
                .iter()
                .rposition(|(other, _)| *other == listener);
            if let Some((_, token)) = last.and_then(|last| self.waiting.remove(last)) {
                // The core refuses it with the reason.
                self.admit_now(token);
            }
        }
    }

    /// Has the core admit a client, or refuse it. One connection less is on its way to this listener:
    /// it has come back, or has not for so long that it is not counted on.
    pub(super) fn admit_one(&mut self, listener: Token, token: Token) {
        if let Some(returning) = self.returning.get_mut(&listener) {
            *returning = returning.saturating_sub(1);
        }
        self.admit_now(token);
    }

    /// Admits the clients for which their servers have a connection by now. The poller that had the
    /// connection returns it, so that takes a moment.
    pub(super) fn admit_waiting(&mut self) {
        let mut without_room = Vec::new();
        for (listener, token) in std::mem::take(&mut self.waiting) {
            let Some(Source::Incoming(client)) = self.sources.get(&token) else {
                continue;
            };
            // It may have been refused since.
            if client.stage() != Stage::Waiting {
                continue;
            }
            if without_room.contains(&listener) || !client.server_has_room() {
                without_room.push(listener);
                self.waiting.push_back((listener, token));
                continue;
            }
            self.admit_one(listener, token);
        }
        for listener in without_room {
            self.ask_for_room(listener);
        }
    }

    fn admit_now(&mut self, token: Token) {
        if let Some(Source::Incoming(client)) = self.sources.get_mut(&token) {
            let next = client.admit();
            self.apply(token, next);
        }
    }

    /// Ends a handshake that holds a connection, in favor of a client of this host. Returns false if
    /// none may end for it.
    fn free_a_connection(&mut self, listener: Token, host: Host) -> bool {
        while let Some(oldest) = self.places.victim_for(listener, host) {
            // Its `Ready` may have arrived while this thread was busy.
            self.handle_event(oldest, EventFlags::IN);
            if !self.places.is_welcomed(oldest) {
                continue;
            }
            if let Some(Source::Incoming(mut client)) = self.remove(oldest) {
                client.make_room(
                    "the server has no connection left, its unfinished handshakes with this host are the most, and this one is the oldest of them",
                );
            }
            *self.returning.entry(listener).or_default() += 1;
            log_limited!(
                warn,
                "a server has no connection left: unfinished handshakes of the host with most of them end in favor of new clients. If all are your clients, raise `connections` on the server; if the host with most of them is a stranger's, keep it out with a firewall"
            );
            return true;
        }
        false
    }
}
