//! The engine: the device's only thread. It sleeps until another process sends something, and ticks
//! while any queue pair is connected.
//!
//! At a tick it does, for each context, the work that the context's application has not done. It
//! receives and completes while the application does not poll, so that messages are received,
//! acknowledged, and counted against the limit of a shared receive queue while a handler blocks. It
//! also expires timers. At a tick it only tries to acquire the context's lock, and it releases the lock
//! after a bounded batch. For a message of a link that concerns one queue pair, such as its ring, and
//! for an arena that a context waits for, it waits for the lock, which a thread holds for one batch at
//! most. While all contexts sleep and await nothing, it ticks ten times slower. One-sided requests for
//! a context that no thread polls do not wait for a tick: their sender wakes the engine.
//!
//! A tick that finds that no thread has polled a context since the last tick sets the context's sleep
//! note: the context is unattended. A sender of one-sided requests that finds the note after its
//! fence notifies the engine with a message on the link. The engine clears the note while it works
//! for the context. Plain messages to an unattended context do not notify the engine: they wait for
//! a poll or a tick.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::accept::Accepter;
use super::inbound;
use super::link::Packet;
use super::link_message::LinkMessage;
use super::node::domain::Domain;
use super::node::{Node, TOKEN_LISTENER, TOKEN_WAKE};
use super::outbound::Link;
use super::tcp_accept::TcpNewcomer;
use super::tcp_port::TOKEN_TCP_LISTENER;
use super::unix_accept::UnixNewcomer;
use crate::affinity::start_thread;
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::check::check_state;
use crate::types::OpenError;

/// Time between two ticks. It is short compared with the 67 ms of the default acknowledgement timer
/// and with the time that a sender waits for a stalled peer. The work of a tick takes about a
/// microsecond. The wakeup costs more: a few microseconds, or 20 in a virtual machine, 200 times a
/// second.
const TICK: Duration = Duration::from_millis(5);

/// Time between two ticks while every context sleeps and nothing is awaited: twenty wakeups a
/// second, less than a thousandth of a core. Only two things can wait for such a tick: a message
/// whose sender was killed between committing it and notifying the receiver, and a context that is
/// used again and stalls at once.
const TICK_WHILE_IDLE: Duration = Duration::from_millis(50);

/// Maximum number of batches that a tick does for a context whose application does not poll, before
/// it serves the other contexts.
const BATCHES_PER_TICK: usize = 64;

/// Maximum number of messages that are received from a link in a row, before the engine serves the
/// other links.
const MESSAGES_PER_EVENT: usize = 64;

static NODE: Mutex<Option<Arc<Node>>> = Mutex::new(None);

impl Node {
    /// Returns the process's node. The first call creates it, for the device of this name.
    pub(crate) fn get(device: &str) -> Result<Arc<Self>, OpenError> {
        let mut node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = &*node {
            node.check()?;
            return Ok(Arc::clone(node));
        }
        let fail = |action| {
            move |source| OpenError::Os {
                name: device.into(),
                action,
                source,
            }
        };
        let fork_guard = ForkGuard::of_process().map_err(fail("be set up"))?;
        let made = Arc::new(Self::new(fork_guard).map_err(fail("be set up"))?);
        start(Arc::clone(&made)).map_err(fail("start its engine thread"))?;
        *node = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// Starts the engine thread of `node`.
fn start(node: Arc<Node>) -> io::Result<()> {
    start_thread("verbline-soft", move || Engine::new(node).run()).map(drop)
}

pub(crate) struct Engine {
    node: Arc<Node>,
    /// Those who dial this process, over shared memory and over TCP.
    unix: Accepter<UnixNewcomer>,
    tcp: Accepter<TcpNewcomer>,
    /// The contexts of the current tick; kept to reuse its memory.
    contexts: Vec<Arc<Domain>>,
    /// The last tick found connected queue pairs, or connections that linger. The last of the former
    /// may leave some of the latter, so another tick has to follow.
    needs_another_tick: bool,
}

impl Engine {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            unix: Accepter::new(),
            tcp: Accepter::new(),
            contexts: Vec::new(),
            needs_another_tick: false,
        }
    }

    /// Does what `run` does between two waits, for a simulation, which has no engine thread.
    #[cfg(feature = "test-util")]
    pub(crate) fn step(&mut self, now: Instant) {
        self.step_links(now);
        self.tick(now);
    }

    /// Handles what has arrived, and the work of the links that is due.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn step_links(&mut self, now: Instant) {
        let mut events = Vec::with_capacity(64);
        let at_once = Timespec::default();
        if epoll::wait(
            &self.node.epoll,
            spare_capacity(&mut events),
            Some(&at_once),
        )
        .is_ok()
        {
            for event in events.drain(..) {
                self.handle_event(event.data.u64(), event.flags, now);
            }
        }
        self.tick_links(now);
    }

    #[cfg(test)]
    pub(crate) fn has_paused_accepting(&self) -> bool {
        self.unix.has_paused()
    }

    fn tick_links(&mut self, now: Instant) {
        self.unix.tick(&self.node, now);
        self.tcp.tick(&self.node, now);
        self.node.flush_links(now);
    }

    /// Greets the processes that are dialing, while one of them waits in a simulation.
    #[cfg(feature = "test-util")]
    pub(crate) fn greet_dialers(&mut self) {
        if self.node.check().is_ok() {
            self.unix.greet_all(&self.node);
        }
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        let mut next_tick = Instant::now() + TICK;
        loop {
            let ticking = self.is_ticking();
            let timeout = ticking.then(|| {
                let left = next_tick.saturating_duration_since(Instant::now());
                // Less than a second: at most TICK_WHILE_IDLE.
                Timespec {
                    tv_sec: 0,
                    tv_nsec: i64::from(left.subsec_nanos()),
                }
            });
            events.clear();
            match epoll::wait(
                &self.node.epoll,
                spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // No action of this process makes a wait fail, but the engine must not spin if
                    // one does.
                    tracing::error!(%error, "the software device's engine cannot wait in epoll: trying again");
                    std::thread::sleep(TICK);
                }
            }
            let now = Instant::now();
            for event in events.drain(..) {
                self.handle_event(event.data.u64(), event.flags, now);
            }
            let now = Instant::now();
            // Events bring work that should not wait for a slow tick.
            next_tick = next_tick.min(now + self.time_to_tick());
            if ticking && now >= next_tick {
                self.tick(now);
                next_tick = now + self.time_to_tick();
            }
        }
    }

    fn handle_event(&mut self, token: u64, flags: epoll::EventFlags, now: Instant) {
        match token {
            TOKEN_LISTENER => self.unix.accept(&self.node),
            TOKEN_TCP_LISTENER => self.tcp.accept(&self.node),
            TOKEN_WAKE => {
                // Whether the read succeeds or fails, the eventfd is empty and the next wait
                // sleeps.
                self.node.wake.empty();
                self.node.ticks_slowly.store(false, Ordering::Relaxed);
            }
            token => {
                if let Some(link) = self.node.links.of_token(token) {
                    if flags.contains(epoll::EventFlags::OUT) {
                        self.node.flush_link(&link, now);
                    }
                    self.receive(&link);
                } else if !self.unix.greet(&self.node, token) && !self.tcp.greet(&self.node, token)
                {
                    // It arrived over TCP.
                    self.handle_unattended(Some(token));
                }
            }
        }
    }

    fn receive(&mut self, link: &Link) {
        let (mut is_called, mut has_arena) = (false, false);
        let mut end = None;
        // The messages after these raise another event.
        for _ in 0..MESSAGES_PER_EVENT {
            match link.receive() {
                Ok(Packet::Empty) => break,
                Ok(Packet::End) => end = Some(None),
                Ok(packet) => {
                    is_called |= matches!(packet, Packet::Message(LinkMessage::Wake, _));
                    has_arena |= matches!(packet, Packet::Message(LinkMessage::Arena { .. }, _));
                    if let Err(reason) = inbound::handle(&self.node, link, packet) {
                        end = Some(Some(reason));
                    }
                }
                Err(error) => end = Some(Some(error.to_string())),
            }
            if end.is_some() {
                break;
            }
        }
        if has_arena {
            self.node.arena_arrived();
        }
        if is_called {
            self.handle_unattended(None);
        }
        let Some(reason) = end else {
            return;
        };
        if let Some(reason) = reason {
            log_limited!(
                warn,
                gid = ?link.peer.gid,
                reason,
                "closed a link of the software device: the peer broke its protocol or the socket failed. Check that both run the same version"
            );
        }
        self.node.end_peer(&link.peer);
    }

    /// Returns true if something has to be done at each tick.
    fn is_ticking(&self) -> bool {
        let is_connected = self.node.connected.load(Ordering::Acquire) > 0;
        is_connected || self.needs_another_tick || self.is_link_work_due()
    }

    /// Returns true if a link needs the engine at a time, and not because something has arrived.
    fn is_link_work_due(&self) -> bool {
        self.unix.is_busy() || self.tcp.is_busy() || self.node.has_waiting_links()
    }

    /// Handles what has arrived for contexts that no thread polls: for that of this token, or for all.
    fn handle_unattended(&mut self, token: Option<u64>) {
        self.node.contexts(&mut self.contexts);
        for context in self.contexts.drain(..) {
            let is_meant = token.is_none_or(|token| token == context.token);
            // A context that has an owner now is attended, or is tried again at the next tick.
            if is_meant && let Some(mut state) = context.try_enter() {
                state.handle_unattended();
            }
        }
    }

    fn time_to_tick(&self) -> Duration {
        // Relaxed: only this thread sets it.
        if self.node.ticks_slowly.load(Ordering::Relaxed) && !self.is_link_work_due() {
            TICK_WHILE_IDLE
        } else {
            TICK
        }
    }

    fn tick(&mut self, now: Instant) {
        self.tick_links(now);
        // Set first and cleared below. Consider a context that falls asleep while it awaits
        // something, after this tick found it at rest. It sees this store, because the tick entered
        // it in between and leaving and entering the context order the two. So it knows that it
        // has to wake the engine (`CompletionQueue::arm`).
        self.node.ticks_slowly.store(true, Ordering::Relaxed);
        let mut is_idle = true;
        self.needs_another_tick = self.node.connected.load(Ordering::Acquire) > 0;
        self.node.contexts(&mut self.contexts);
        // Drained: the engine keeps no context alive from one tick to the next.
        for context in self.contexts.drain(..) {
            let mut rests = false;
            for _ in 0..BATCHES_PER_TICK {
                // An active owner does everything that a tick would do, except for the timers,
                // which can wait for the next tick.
                let Some(mut state) = context.try_enter() else {
                    break;
                };
                let is_at_rest = !state.progress_while_idle(now);
                check_state(&state);
                self.needs_another_tick |= state.common.tcp.has_lingering();
                if is_at_rest {
                    rests = state.is_idle();
                    break;
                }
            }
            is_idle &= rests;
        }
        if !is_idle {
            self.node.ticks_slowly.store(false, Ordering::Relaxed);
        }
    }
}
