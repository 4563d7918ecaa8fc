//! Room for new clients: which handshakes end for them, and which clients wait for a connection.
//!
//! When a server has no connection left, an unfinished handshake gives its own up (`places.rs`). If
//! none has to yet, the pollers are asked one after another to end connections that are not in use; they
//! do not wait for one that does not answer, because it is in a long handler. The client waits as long as
//! one of them has ended some or may do so soon, or a handshake will, up to the time limit of its own.
//! Otherwise it is refused.

use std::collections::HashSet;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use rpc_core::transport::{Host, RoomMade, RoomWanted};
use rustix::event::epoll::EventFlags;
use verbline_verbs::log_limited;

use super::handshakes::Stage;
use super::sockets::{Sockets, Source};
use super::waiting::{AfterTurn, Returning, Waiting};
use super::{Command, Token};

/// The most clients for which a poller is asked at a time: it looks at all of its connections for each.
const CLIENTS_OF_A_REQUEST: usize = 64;

/// Clients wait for connections that so many rounds have found about to be ended: for a tenth of a
/// second, and fewer if the clients have waited for less. On a busy server, there are always some that
/// have just been found so, and are in use.
const ROUNDS_TO_WAIT_FOR: u32 = 5;

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
        let waiting = waiting.filter(|it| it.listener == listener).count();
        if waiting == 0 && client.server_has_room() {
            return self.admit_one(listener, token);
        }
        // A client may leave after a handshake has ended for it. The connection of that handshake is
        // for the next client, for which no other handshake ends.
        let returning = self.returning_to(listener).count();
        if returning >= waiting {
            // Pollers are asked for nobody at the moment.
            self.asked.entry(listener).or_default().rounds = 0;
        }
        let has_one = returning > waiting || self.free_a_connection(listener, host);
        self.waiting.push_back(Waiting {
            listener,
            client: token,
            host,
            is_asked_for: false,
        });
        if !has_one {
            self.ask_for_room(listener);
        }
    }

    /// Returns the listener's clients that wait for a connection of which none is on its way.
    fn unserved(&mut self, listener: Token) -> impl Iterator<Item = &mut Waiting> {
        let returning = self.returning_to(listener).count();
        let waiting = self.waiting.iter_mut();
        waiting
            .filter(move |it| it.listener == listener)
            .skip(returning)
    }

    /// Asks a poller to end connections that are not in use, unless one has been asked just now.
    fn ask_for_room(&mut self, listener: Token) {
        let Some(Source::Listener(_, config)) = self.sources.get(&listener) else {
            return;
        };
        let config = Arc::clone(config);
        let pollers = config.ports.len();
        if pollers == 0 {
            self.unserved(listener)
                .for_each(|it| it.is_asked_for = true);
            return self.refuse_unserved(listener);
        }
        let now = Instant::now();
        let asked = self.asked.entry(listener).or_default();
        match asked.is_due(now, pollers) {
            Ok(()) => {}
            Err(Some(after)) => return self.go_on(listener, after),
            Err(None) => return,
        }
        let begins = asked.begins();
        if begins {
            self.free_connections(listener);
        }
        let hosts: Vec<_> = self
            .unserved(listener)
            .take(CLIENTS_OF_A_REQUEST)
            .map(|waiting| {
                waiting.is_asked_for |= begins;
                waiting.host
            })
            .collect();
        let asked = self.asked.entry(listener).or_default();
        if hosts.is_empty() {
            return asked.stop(now);
        }
        let looks = asked.rounds.min(ROUNDS_TO_WAIT_FOR - 1);
        let port = match asked.ask(now, pollers) {
            Ok(port) => port,
            Err(after) => return self.go_on(listener, after),
        };
        let mut places = self.places.by_host(listener);
        for host in &hosts {
            if let Some(places) = places.get_mut(host) {
                *places = places.saturating_sub(1);
            }
        }
        let (control, returning) = (self.control.clone(), self.returning_to(listener));
        let wanted = RoomWanted::new(hosts, places, looks, move |made| {
            returning.add(made.ended);
            // Without the control thread there is nothing to notify.
            let _ = control.command(Command::RoomMade(listener, port, made));
        });
        config.ports[port].ask_for_room(wanted);
    }

    /// Handles the answer of a poller.
    pub(super) fn room_made(&mut self, listener: Token, port: usize, made: RoomMade) {
        let Some(Source::Listener(_, config)) = self.sources.get(&listener) else {
            return;
        };
        let pollers = config.ports.len();
        let asked = self.asked.entry(listener).or_default();
        if let Some(after) = asked.answered(port, made, Instant::now(), pollers) {
            self.go_on(listener, after);
        }
    }

    /// Goes on after the turn of a poller. Clients are refused when no poller has a connection for them.
    fn go_on(&mut self, listener: Token, after: AfterTurn) {
        match after {
            AfterTurn::Next => self.ask_for_room(listener),
            AfterTurn::Pause => {}
            AfterTurn::Refuse => self.refuse_unserved(listener),
        }
    }

    /// Refuses the clients for which all pollers have been asked, and for which no handshake will end.
    fn refuse_unserved(&mut self, listener: Token) {
        let unserved = self.unserved(listener).filter(|it| it.is_asked_for);
        let unserved: Vec<_> = unserved.map(|it| (it.client, it.host)).collect();
        let refused = unserved.into_iter().filter_map(|(client, host)| {
            let waits = self.places.has_a_victim_for(listener, host);
            (!waits).then_some(client)
        });
        let refused: HashSet<_> = refused.collect();
        self.waiting.retain(|it| !refused.contains(&it.client));
        for client in refused {
            // The core refuses it with the reason, or a place that is another client's has come back just
            // now: then somebody is asked for that one again.
            self.admit_now(client);
            let admitted = self.sources.get(&client);
            if matches!(admitted, Some(Source::Incoming(client)) if client.stage() == Stage::Admitted)
            {
                self.take_returning(listener);
            }
        }
    }

    /// Has the core admit a client, or refuse it. One connection less is on its way to this listener:
    /// it has come back, or has not for so long that it is not counted on.
    pub(super) fn admit_one(&mut self, listener: Token, token: Token) {
        self.take_returning(listener);
        self.admit_now(token);
    }

    fn take_returning(&self, listener: Token) {
        // A listener that has ended has none.
        if let Some(returning) = self.returning.get(&listener) {
            returning.take_one();
        }
    }

    pub(super) fn returning_to(&mut self, listener: Token) -> Returning {
        self.returning.entry(listener).or_default().clone()
    }

    /// Admits the clients for which their servers have a connection by now. The poller that had the
    /// connection returns it, so that takes a moment.
    pub(super) fn admit_waiting(&mut self) {
        let mut without_room = Vec::new();
        for waiting in mem::take(&mut self.waiting) {
            let (listener, token) = (waiting.listener, waiting.client);
            let Some(Source::Incoming(client)) = self.sources.get(&token) else {
                continue;
            };
            // It may have been refused since.
            if client.stage() != Stage::Waiting {
                continue;
            }
            if without_room.contains(&listener) || !client.server_has_room() {
                without_room.push(listener);
                self.waiting.push_back(waiting);
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

    /// Ends handshakes in favor of the clients that wait.
    fn free_connections(&mut self, listener: Token) {
        let unserved = self.unserved(listener).take(CLIENTS_OF_A_REQUEST);
        let hosts: Vec<_> = unserved.map(|waiting| waiting.host).collect();
        let mut in_vain = HashSet::new();
        for host in hosts {
            if !in_vain.contains(&host) && !self.free_a_connection(listener, host) {
                in_vain.insert(host);
            }
        }
    }

    /// Ends a handshake that holds a connection, in favor of a client of this host. Returns false if
    /// none may end for it now.
    fn free_a_connection(&mut self, listener: Token, host: Host) -> bool {
        while let Some(oldest) = self
            .places
            .victim_for(listener, host, self.handshakes.running())
        {
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
            self.returning_to(listener).add(1);
            log_limited!(
                warn,
                "a server has no connection left: unfinished handshakes of the host with most of them end in favor of new clients. If all are your clients, raise `connections` on the server; if the host with most of them is a stranger's, keep it out with a firewall"
            );
            return true;
        }
        false
    }
}
