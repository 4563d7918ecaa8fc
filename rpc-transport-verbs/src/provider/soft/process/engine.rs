//! The engine: the device's only thread. It sleeps until another process sends something, and ticks
//! while any queue pair is connected.
//!
//! At a tick it does, for each context, the work that the context's application has not done. It
//! receives and completes while the application does not poll, so that messages are received,
//! acknowledged, and counted against the limit of a shared receive queue while a handler blocks. It
//! also expires timers. It only ever tries to acquire the owner word, and releases it after a
//! bounded batch. While all contexts sleep and await nothing, it ticks ten times slower. One-sided
//! requests for a context that no thread polls do not wait for a tick: their sender wakes the
//! engine.
//!
//! A tick that finds that no thread has polled a context since the last tick sets the context's sleep
//! note: the context is unattended. A sender of one-sided requests that finds the note after
//! its fence notifies the engine with a message on the link. The engine clears the note while it
//! works for the context. Plain messages to an unattended context do not notify the engine: they wait for a
//! poll or a tick.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::link::{IncomingLink, Packet};
use super::link_message::LinkMessage;
use super::node::domain::Domain;
use super::node::{FIRST_LINK_TOKEN, Node, TOKEN_LISTENER, TOKEN_WAKE};
use crate::provider::fork_guard::ForkGuard;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::queue_pair::NewRing;
use crate::provider::soft::shared::memory::{Mapping, PeerMemory};
use crate::provider::soft::shared::ring::{
    ContextNotifier, LAYOUT_VERSION, RING_LEN, RingNotifier, RingSender,
};
use crate::verbs::types::OpenError;

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

/// Maximum number of messages that the engine handles for one link before it serves the other links.
const MESSAGES_PER_EVENT: usize = 64;

static NODE: Mutex<Option<Arc<Node>>> = Mutex::new(None);

impl Node {
    /// Returns the process's node. The first call creates it.
    pub(crate) fn get() -> Result<Arc<Self>, OpenError> {
        let mut node = NODE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = &*node {
            node.check()?;
            return Ok(Arc::clone(node));
        }
        let fail = |action| {
            move |source| OpenError::Os {
                name: "soft".into(),
                action,
                source,
            }
        };
        let fork_guard = ForkGuard::new().map_err(fail("be set up"))?;
        let made = Arc::new(Self::new(fork_guard).map_err(fail("be set up"))?);
        start(Arc::clone(&made)).map_err(fail("start its engine thread"))?;
        *node = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// Starts the engine thread of `node`.
fn start(node: Arc<Node>) -> io::Result<()> {
    std::thread::Builder::new()
        .name("verbline-soft".into())
        .spawn(move || {
            Engine::new(node).run();
        })
        .map(drop)
}

pub(crate) struct Engine {
    node: Arc<Node>,
    /// Links that other processes made, with the peer after its hello message.
    links: HashMap<u64, (IncomingLink, Option<Arc<Peer>>)>,
    next_token: u64,
    /// The contexts of the current tick; kept to reuse its memory.
    contexts: Vec<Arc<Domain>>,
}

impl Engine {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            links: HashMap::new(),
            next_token: FIRST_LINK_TOKEN + 1,
            contexts: Vec::new(),
        }
    }

    /// Does what `run` does between two waits, for a simulation, which has no engine thread.
    #[cfg(feature = "test-util")]
    pub(crate) fn step(&mut self, now: Instant) {
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
                self.handle_event(event.data.u64());
            }
        }
        self.tick(now);
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        let mut next_tick = Instant::now() + TICK;
        loop {
            let ticking = self.node.connected.load(Ordering::Acquire) > 0;
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
            for event in events.drain(..) {
                self.handle_event(event.data.u64());
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

    fn handle_event(&mut self, token: u64) {
        match token {
            TOKEN_LISTENER => self.accept(),
            TOKEN_WAKE => {
                // Whether the read succeeds or fails, the eventfd is empty and the next wait
                // sleeps.
                self.node.wake.empty();
                self.node.ticks_slowly.store(false, Ordering::Relaxed);
            }
            token if token % 2 == 0 => {
                if let Some(gid) = self.node.gid_of_token(token) {
                    self.node.forget_peer(gid);
                }
            }
            token => self.receive(token),
        }
    }

    fn accept(&mut self) {
        loop {
            match self.node.listener.accept() {
                Ok(Some(link)) => {
                    let token = self.next_token;
                    self.next_token += 2;
                    let data = epoll::EventData::new_u64(token);
                    match epoll::add(&self.node.epoll, &link, data, epoll::EventFlags::IN) {
                        Ok(()) => drop(self.links.insert(token, (link, None))),
                        Err(error) => {
                            tracing::warn!(%error, "a link of the software device cannot be added to epoll: closing it")
                        }
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "a link of the software device cannot be accepted: trying again");
                    // Most likely out of file descriptors: retry when some are closed.
                    std::thread::sleep(TICK);
                    return;
                }
            }
        }
    }

    fn receive(&mut self, token: u64) {
        let Some((link, peer)) = self.links.get_mut(&token) else {
            return;
        };
        let mut is_called = false;
        let mut messages = 0;
        let end = loop {
            // The other messages raise another event.
            if messages == MESSAGES_PER_EVENT {
                break None;
            }
            messages += 1;
            match link.receive() {
                Ok(Packet::Empty) => break None,
                Ok(Packet::End) => break Some(None),
                Ok(Packet::Garbage) => break Some(Some("it sent an invalid message".to_owned())),
                Ok(Packet::Message(message, files)) => {
                    is_called |= message == LinkMessage::Wake;
                    if let Err(reason) = handle_message(&self.node, link, peer, message, files) {
                        break Some(Some(reason));
                    }
                }
                Err(error) => break Some(Some(error.to_string())),
            }
        };
        if is_called {
            self.handle_unattended_contexts();
        }
        let Some(reason) = end else {
            return;
        };
        // Closing the socket also removes it from the epoll set.
        let Some((_, peer)) = self.links.remove(&token) else {
            return;
        };
        let gid = peer.map(|peer| peer.gid);
        if let Some(reason) = reason {
            tracing::warn!(
                ?gid,
                reason,
                "closed a link of the software device: the peer broke its protocol or the socket failed. Check that both run the same version"
            );
        }
        if let Some(gid) = gid {
            self.node.forget_peer(gid);
        }
    }

    /// Handles one-sided requests of peers for contexts that no thread polls.
    fn handle_unattended_contexts(&mut self) {
        self.node.contexts(&mut self.contexts);
        for context in self.contexts.drain(..) {
            // A context that has an owner now is attended, or is tried again at the next tick.
            if let Some(mut state) = context.try_enter() {
                state.handle_unattended();
            }
        }
    }

    fn time_to_tick(&self) -> Duration {
        // Relaxed: only this thread sets it.
        if self.node.ticks_slowly.load(Ordering::Relaxed) {
            TICK_WHILE_IDLE
        } else {
            TICK
        }
    }

    fn tick(&mut self, now: Instant) {
        // Set first and cleared below. Consider a context that falls asleep while it awaits
        // something, after this tick found it at rest. It sees this store, because the tick entered
        // it in between and the owner word's release and acquire order the two. So it knows that it
        // has to wake the engine (`CompletionQueue::arm`).
        self.node.ticks_slowly.store(true, Ordering::Relaxed);
        let mut is_idle = true;
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
                if !state.progress_while_idle(now) {
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

/// Handles a link message. An error is the reason to close the link.
pub(crate) fn handle_message(
    node: &Node,
    link: &IncomingLink,
    peer: &mut Option<Arc<Peer>>,
    message: LinkMessage,
    files: Vec<OwnedFd>,
) -> Result<(), String> {
    let wrong = |error: io::Error| error.to_string();
    let Some(peer) = peer else {
        *peer = Some(greet(node, link, message)?);
        return Ok(());
    };
    let without = |_| String::from("a message came without its files");
    match message {
        LinkMessage::Hello { .. } => return Err("it sent a second hello".into()),
        LinkMessage::Arena { number } => {
            let [file] = files.try_into().map_err(without)?;
            let mapping = Mapping::from_peer(&file, 1, PeerMemory::Arena).map_err(wrong)?;
            peer.add_arena(number, mapping);
        }
        LinkMessage::ArenaGone { number } => peer.remove_arena(number),
        LinkMessage::Context { number } => {
            let files = files.try_into().map_err(without)?;
            let engine = peer.engine.clone();
            let notifier = ContextNotifier::from_peer(files, engine).map_err(wrong)?;
            peer.add_context(number, notifier);
        }
        LinkMessage::ContextGone { number } => peer.remove_context(number),
        // The engine handles it after the messages before it.
        LinkMessage::Wake => {}
        LinkMessage::Attach {
            from,
            to,
            context,
            ready_index,
        } => {
            let [ring] = files.try_into().map_err(without)?;
            let notifier = peer.context(context).ok_or_else(|| {
                format!("it attached a ring of its context {context}, which it has not announced")
            })?;
            let ring = Mapping::from_peer(&ring, RING_LEN, PeerMemory::Ring).map_err(wrong)?;
            let notifier = RingNotifier::new(notifier, ready_index as usize);
            let sender = RingSender::new(ring, notifier).map_err(wrong)?;
            // A queue pair that has been destroyed meanwhile needs no ring.
            if let Some((context, qp_index)) = node.find_queue_pair(to) {
                let ring = NewRing {
                    gid: peer.gid,
                    qp_num: from,
                    sender,
                };
                if let Ok(mut state) = context.enter() {
                    state.attach(qp_index, to, ring);
                }
            }
        }
    }
    Ok(())
}

/// Handles the first message of a link, which has to be a hello, and returns the peer.
fn greet(node: &Node, link: &IncomingLink, message: LinkMessage) -> Result<Arc<Peer>, String> {
    let LinkMessage::Hello {
        layout_version,
        gid,
    } = message
    else {
        return Err("its first message was not a hello".into());
    };
    if layout_version != LAYOUT_VERSION {
        return Err(format!(
            "its shared memory has layout {layout_version}, ours has {LAYOUT_VERSION}"
        ));
    }
    if !link.is_from(gid).map_err(|error| error.to_string())? {
        return Err(format!("it is not the process of {gid}, or another user's"));
    }
    Ok(node.peer(gid))
}
