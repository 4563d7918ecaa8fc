//! [`SharedNode`]: a shared channel whose poller is stepped by hand, over any transport.

use std::cell::RefCell;
use std::io;

use super::loopback::Loopback;
use crate::clock::Clock;
use crate::shared::{Channel, SharedPoller, Spawner};
use crate::transport::Transport;

/// A channel with its poller. Handshakes run immediately, on the same thread.
pub struct SharedNode<T: Transport> {
    channel: Channel,
    poller: RefCell<SharedPoller<T>>,
}

/// Runs jobs immediately: the transports of tests do not block.
struct InlineSpawner;

impl Spawner for InlineSpawner {
    fn spawn(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        job();
        Ok(())
    }
}

impl<T: Transport> SharedNode<T> {
    /// Creates a channel to `address` over `transport` that uses `clock`. The reconnect delays are
    /// generated from `seed`.
    pub fn over(transport: T, clock: &Clock, address: &str, seed: u64) -> Self {
        let (channel, poller) = Channel::stepped(transport, clock, address, seed, InlineSpawner);
        Self {
            channel,
            poller: RefCell::new(poller),
        }
    }

    /// Returns the channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Takes one turn. Returns true if it found anything to do.
    pub fn step(&self) -> bool {
        self.poller.borrow_mut().turn()
    }

    /// Expires deadlines, as a poller does periodically.
    pub fn check_timers(&self) {
        self.poller.borrow_mut().check_timers();
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.poller.borrow().leftovers()
    }

    /// Accesses the transport, between two turns.
    pub fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.poller.borrow().with_transport(act)
    }
}

impl SharedNode<Loopback> {
    /// Delivers a frame that no peer has sent, on each of the channel's connections.
    pub fn inject(&self, frame: &[u8]) {
        self.with_transport(|loopback| {
            for connection in loopback.connections() {
                loopback.inject(connection, frame.to_vec());
            }
        });
    }
}
