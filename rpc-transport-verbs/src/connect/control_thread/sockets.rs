//! The loop of the control thread: the sockets that it watches, and their deadlines.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use rpc_core::transport::limit_reached;
use rustix::event::{Timespec, epoll};
use verbline_verbs::for_transport::strangers::{ACCEPTS_IN_A_ROW, Room, TICK, accepted, resume};
use verbline_verbs::for_transport::{EventFd, epoll_add};
use verbline_verbs::log_limited;

use super::super::handshake::STAGE_TIMEOUT;
use super::super::liveness::{LivenessConnection, configure_socket};
use super::handshakes::{Handshakes, Stage};
use super::incoming_client::{IncomingClient, NextAction};
use super::places::Places;
use super::preparer::{Preparation, Prepared};
use super::securer::{SECURERS, Securing, SecuringStep};
use super::waiting::{AskedForRoom, Returning, Waiting};
use super::workers::Workers;
use super::{Command, Control, ListenerConfig, Token, WAKEUP};
use crate::connect::link::LinkSecret;
use crate::transport::queue_pairs::LinkTarget;

/// The reason sent to a client for which no other handshake may end.
const TOO_MANY: &str = "the server has too many handshakes in flight, and all of this host wait for the server; try again";

/// How often it is tried to admit clients that wait for a connection of their server.
const RETRY: Duration = Duration::from_millis(5);

/// The longest wait of the thread. `epoll_wait` takes milliseconds in 31 bits, and refuses more than
/// that, as a keepalive of a month would have it wait. One round an hour costs nothing.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The state of the thread.
pub(super) struct Sockets {
    pub(super) epoll: OwnedFd,
    pub(super) wakeup: Arc<EventFd>,
    /// For what other threads report to this one.
    pub(super) control: Control,
    pub(super) commands: Receiver<Command>,
    pub(super) preparers: Workers<Preparation>,
    /// Since the first listener whose connections may be secured.
    pub(super) securers: Option<Workers<Securing>>,
    pub(super) sources: HashMap<Token, Source>,
    pub(super) last_token: Token,
    /// The clients that are in their handshake, and the listeners that pause.
    pub(super) handshakes: Handshakes,
    /// The connections that they hold or wait for.
    pub(super) places: Places,
    /// The clients that wait for a connection, in the order in which they get one.
    pub(super) waiting: VecDeque<Waiting>,
    /// The places on their way back, by listener.
    pub(super) returning: HashMap<Token, Returning>,
    /// By listener, the request to its pollers for connections.
    pub(super) asked: HashMap<Token, AskedForRoom>,
    /// The queue pairs that wait for the connections of their clients' calls, each with the token of
    /// its handshake.
    pub(super) awaited_links: HashMap<LinkSecret, (Token, LinkTarget)>,
    /// When each liveness connection needs attention next. Entries of removed sources are skipped.
    pub(super) deadlines: BinaryHeap<Reverse<(Instant, Token)>>,
    /// Waits in a row that failed, for the log.
    pub(super) failed_waits: u32,
}

pub(super) enum Source {
    Listener(TcpListener, Arc<ListenerConfig>),
    Incoming(Box<IncomingClient>),
    Liveness(Box<LivenessConnection>),
}

impl Sockets {
    pub(super) fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.until_deadline();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) => self.failed_waits = 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => self.cannot_wait(error),
            }
            self.handshakes.advance(Instant::now());
            for event in &events {
                match event.data.u64() {
                    WAKEUP => self.run_commands(),
                    token => self.handle_event(token, event.flags),
                }
            }
            self.admit_waiting();
            self.handle_deadlines();
            self.end_expired_handshakes();
            self.resume_listeners();
        }
    }

    /// Goes on after a wait that failed, because all connections of the process depend on this thread.
    /// Nothing that it does makes a wait fail, but it must not spin if one does.
    fn cannot_wait(&mut self, error: rustix::io::Errno) {
        self.failed_waits = self.failed_waits.wrapping_add(1);
        if self.failed_waits.is_power_of_two() {
            tracing::error!(%error, attempts = self.failed_waits, "the control thread cannot wait for its sockets: trying again every 100 ms. Until then no connection can be made, and dead peers go unnoticed");
        }
        std::thread::sleep(TICK);
        self.run_commands();
    }

    pub(super) fn until_deadline(&self) -> Option<Timespec> {
        let tick = match self.waiting.is_empty() {
            true => self.handshakes.awaits_time().then_some(TICK),
            false => Some(RETRY),
        };
        let deadline = self.deadlines.peek().map(|Reverse((deadline, _))| {
            // Add one millisecond: the kernel rounds down and would wake the thread too early.
            deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
        });
        let wait = match (tick, deadline) {
            (Some(tick), Some(deadline)) => tick.min(deadline),
            (one, other) => one.or(other)?,
        };
        Timespec::try_from(wait.min(LONGEST_WAIT)).ok()
    }

    fn run_commands(&mut self) {
        // Drain the counter before taking the commands: a later command raises it again.
        self.wakeup.empty();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Listen(listener, config, reply) => {
                    let _ = reply.send(self.listen(listener, config));
                }
                Command::StopListening(token, _closed) => self.stop_listening(token),
                Command::Watch(liveness) => {
                    self.watch(liveness, &[]);
                }
                Command::Prepared(token, result) => self.prepared(token, result),
                Command::Secured(token, step) => self.secured(token, *step),
                Command::RoomMade(listener, port, made) => self.room_made(listener, port, made),
                Command::Claimed(token, is_its_own) => {
                    if let Some(Source::Incoming(client)) = self.sources.get_mut(&token) {
                        let next = client.claimed(is_its_own);
                        self.apply(token, next);
                    }
                }
            }
        }
    }

    fn listen(&mut self, listener: TcpListener, config: Arc<ListenerConfig>) -> io::Result<Token> {
        if config.security.is_some() && self.securers.is_none() {
            let securers = Workers::start(&self.control, "verbline-secure", SECURERS)?;
            self.securers = Some(securers);
        }
        let added = self.add(Source::Listener(listener, config));
        added.map_err(|(_, error)| error)
    }

    /// Registers a source. On rare kernel errors (out of memory, the limit on watches), logs a
    /// warning and returns the source; the caller proceeds without it.
    pub(super) fn add(&mut self, source: Source) -> Result<Token, (Source, io::Error)> {
        self.last_token += 1;
        let token = self.last_token;
        let data = epoll::EventData::new_u64(token);
        let flags = epoll::EventFlags::IN;
        let added = match &source {
            Source::Listener(listener, _) => epoll_add(&self.epoll, listener, data, flags),
            Source::Incoming(client) => epoll_add(&self.epoll, client.stream(), data, flags),
            Source::Liveness(liveness) => {
                epoll_add(&self.epoll, liveness.stream.socket(), data, flags)
            }
        };
        if let Err(error) = added {
            log_limited!(warn, %error, limit = limit_reached(&error), "a socket cannot be watched: closing it");
            return Err((source, error));
        }
        self.sources.insert(token, source);
        Ok(token)
    }

    /// Removes a source. Its socket is closed when the returned value is dropped.
    pub(super) fn remove(&mut self, token: Token) -> Option<Source> {
        let source = self.sources.remove(&token)?;
        // Delete explicitly, because a liveness socket stays open while the poller has a
        // reference to it.
        let deleted = match &source {
            Source::Listener(listener, _) => epoll::delete(&self.epoll, listener),
            Source::Incoming(client) => {
                if let Some(secret) = &client.link_secret {
                    self.awaited_links.remove(secret);
                }
                self.places.remove(token);
                self.handshakes.remove(token);
                let host = client.peer().into();
                self.preparers.forget(host, token);
                if let Some(securers) = &mut self.securers {
                    securers.forget(host, token);
                }
                epoll::delete(&self.epoll, client.stream())
            }
            Source::Liveness(liveness) => {
                self.places.remove(token);
                epoll::delete(&self.epoll, liveness.stream.socket())
            }
        };
        if let Err(error) = deleted {
            log_limited!(warn, %error, "a socket cannot be removed from epoll");
        }
        Some(source)
    }

    fn stop_listening(&mut self, listener: Token) {
        self.remove(listener);
        self.returning.remove(&listener);
        self.asked.remove(&listener);
        // Keep clients that were welcomed: their pollers know them, and they may have sent calls
        // already while their `Ready` has not reached this thread.
        let orphans: Vec<_> = self
            .sources
            .iter()
            .filter(|(_, source)| {
                matches!(source, Source::Incoming(client)
                    if client.listener == listener && client.stage() != Stage::Welcomed)
            })
            .map(|(token, _)| *token)
            .collect();
        for token in orphans {
            self.end_handshake(token, "the server stops listening");
        }
    }

    pub(super) fn handle_event(&mut self, token: Token, flags: epoll::EventFlags) {
        match self.sources.get_mut(&token) {
            None => {}
            Some(Source::Listener(..)) => self.accept(token),
            Some(Source::Incoming(client)) => {
                let next = client.handle_event(flags);
                self.apply(token, next);
            }
            Some(Source::Liveness(liveness)) => {
                let end = liveness.poll();
                self.after_liveness(token, end);
            }
        }
    }

    fn secured(&mut self, token: Token, step: SecuringStep) {
        if let Some(securers) = &mut self.securers {
            securers.finished_one();
        }
        // Otherwise the client was removed in the meantime.
        if let Some(Source::Incoming(client)) = self.sources.get_mut(&token) {
            let next = client.secured(step);
            // Whatever comes next, the client may leave meanwhile.
            self.watch_as_it_is(token);
            self.apply(token, next);
        }
    }

    fn prepared(&mut self, token: Token, mut result: Prepared) {
        self.preparers.finished_one();
        match self.sources.get_mut(&token) {
            Some(Source::Incoming(client)) => {
                if let Ok(client_in_rts) = &mut result.outcome
                    && let Some((secret, target)) = client_in_rts.awaited_link.take()
                {
                    client.link_secret = Some(secret);
                    self.awaited_links.insert(secret, (token, target));
                }
                let next = client.prepared(result);
                self.apply(token, next);
            }
            // The client was removed in the meantime.
            _ => result.discard(),
        }
    }

    pub(super) fn apply(&mut self, token: Token, next: NextAction) {
        if let Some(Source::Incoming(client)) = self.sources.get(&token) {
            let (stage, host) = (client.stage(), client.peer().into());
            self.handshakes.enter(token, host, stage);
            let (place, now) = ((client.listener, host), self.handshakes.running());
            self.places.enter(token, place, stage, now);
        }
        match next {
            NextAction::Close => {
                self.remove(token);
            }
            NextAction::Link(secret) => {
                if let Some(Source::Incoming(link)) = self.remove(token) {
                    self.hand_over_link(*link, secret);
                }
            }
            NextAction::Open(liveness, read) => {
                let client = self.remove(token);
                // Report that it is open before anything can end it. The poller may have ended
                // since the welcome: then the socket is closed here, which tells the client.
                if liveness.report_open()
                    && let Some(token) = self.watch(liveness, &read)
                    && let Some(Source::Incoming(client)) = client
                {
                    let host = client.peer().into();
                    self.places.open(token, client.listener, host);
                }
            }
            NextAction::Challenge => {
                let control = self.control.clone();
                let on_claim = move |is_its_own| {
                    // Without the control thread there is nothing to notify.
                    let _ = control.command(Command::Claimed(token, is_its_own));
                };
                if let Some(Source::Incoming(client)) = self.sources.get_mut(&token) {
                    let next = client.challenge(on_claim);
                    self.apply(token, next);
                }
            }
            NextAction::Admit => self.admit(token),
            NextAction::CreateQueuePair(port, offer, origin, admitted, claim) => {
                if let Some(Source::Incoming(client)) = self.sources.get(&token) {
                    let job = Preparation {
                        token,
                        port,
                        offer,
                        origin,
                        admitted,
                        claim,
                        stream: Arc::clone(client.stream()),
                    };
                    self.preparers.add(client.peer().into(), job);
                }
            }
            NextAction::Secure {
                handshake,
                arrived,
                has_begun,
            } => {
                self.watch_as_it_is(token);
                if let Some(Source::Incoming(client)) = self.sources.get(&token)
                    && let Some(securers) = &mut self.securers
                {
                    let job = Securing {
                        token,
                        handshake,
                        arrived,
                        has_begun,
                    };
                    securers.add(client.peer().into(), job);
                }
            }
            NextAction::Wait => self.watch_as_it_is(token),
        }
    }

    /// Watches the socket of a client for what its handshake waits for now.
    fn watch_as_it_is(&mut self, token: Token) {
        if let Some(Source::Incoming(client)) = self.sources.get(&token) {
            let data = epoll::EventData::new_u64(token);
            if epoll::modify(&self.epoll, client.stream(), data, client.watched()).is_err() {
                self.end_handshake(token, "the server cannot watch the socket");
            }
        }
    }

    pub(super) fn accept(&mut self, token: Token) {
        for _ in 0..ACCEPTS_IN_A_ROW {
            let Some(Source::Listener(listener, config)) = self.sources.get(&token) else {
                return;
            };
            let (stream, peer) = match accepted(listener.accept()) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    log_limited!(warn, %error, limit = limit_reached(&error), "cannot accept a client: trying again every 100 ms");
                    return self.handshakes.pause(&self.epoll, listener, token);
                }
            };
            if let Err(error) = configure_socket(&stream) {
                tracing::debug!(%peer, %error, "a client closed its socket before its handshake");
                continue;
            }
            let mut client = Box::new(IncomingClient::new(stream, peer, token, Arc::clone(config)));
            // A connection for calls ends no handshake, least of all its own, if its first bytes are
            // there. If they come later, it counts as a handshake until then.
            if let Some(secret) = client.link_secret_that_has_arrived() {
                self.hand_over_link(*client, secret);
                continue;
            }
            let host = peer.into();
            match self.handshakes.room_for(host) {
                Room::Free => {}
                Room::InPlaceOf(oldest) => self.make_room(oldest),
                Room::None => {
                    client.refuse(TOO_MANY);
                    continue;
                }
            }
            if let Ok(token) = self.add(Source::Incoming(client)) {
                self.handshakes.enter(token, host, Stage::Incoming);
                // Mostly its hello is there, and takes it a stage on before a flood of others can.
                self.handle_event(token, epoll::EventFlags::IN);
            }
        }
    }

    /// Ends the handshakes whose stage has lasted too long.
    pub(super) fn end_expired_handshakes(&mut self) {
        while let Some(token) = self.handshakes.expired() {
            // Read what arrived while this thread was busy.
            self.handle_event(token, epoll::EventFlags::IN);
            if self.handshakes.expired() != Some(token) {
                continue;
            }
            let Some(Source::Incoming(client)) = self.sources.get(&token) else {
                self.handshakes.remove(token);
                continue;
            };
            if client.stage() == Stage::Waiting {
                // The core refuses it with the reason, or a connection has become free just now.
                self.admit_one(client.listener, token);
                continue;
            }
            let why = match client.is_being_secured() {
                true => format!("the handshake took longer than {STAGE_TIMEOUT:?}"),
                false => format!("the handshake waited for its client for {STAGE_TIMEOUT:?}"),
            };
            self.end_handshake(token, &why);
        }
    }

    /// Accepts clients again after a pause.
    fn resume_listeners(&mut self) {
        while let Some(token) = self.handshakes.rested() {
            if let Some(Source::Listener(listener, _)) = self.sources.get(&token) {
                resume(&self.epoll, listener, token);
            }
        }
    }

    /// Ends a client's handshake now. Sends it the reason if the socket accepts it.
    fn end_handshake(&mut self, token: Token, why: &str) {
        if let Some(Source::Incoming(mut client)) = self.remove(token)
            && client.stage() != Stage::Rejected
        {
            client.give_up(why);
        }
    }
}
