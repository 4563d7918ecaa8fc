//! [`SharedNode`]: a shared channel whose poller is stepped by hand, over any transport.

use std::cell::RefCell;
use std::io;

use super::loopback::Loopback;
use crate::clock::Clock;
use crate::shared::{Channel, Elsewhere, SharedPoller};
use crate::transport::Transport;

/// A channel with its poller. Handshakes are carried out when they are asked for, on the same thread.
pub struct SharedNode<T: Transport> {
    channel: Channel,
    poller: RefCell<SharedPoller<T>>,
}

/// At once: the transports of tests do not block.
struct AtOnce;

impl Elsewhere for AtOnce {
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        job();
        Ok(())
    }
}

impl<T: Transport> SharedNode<T> {
    /// A channel to `address` over `transport`, with the time of `clock`; the waits before it connects
    /// again come from `seed`.
    pub fn over(transport: T, clock: &Clock, address: &str, seed: u64) -> Self {
        let (channel, poller) = Channel::stepped(transport, clock, address, seed, AtOnce);
        Self {
            channel,
            poller: RefCell::new(poller),
        }
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// One turn; whether it found anything.
    pub fn step(&self) -> bool {
        self.poller.borrow_mut().turn()
    }

    /// Ends what is overdue, as a poller does now and then.
    pub fn look_at_the_clock(&self) {
        self.poller.borrow_mut().look_at_the_clock();
    }

    /// What is under way, in words: nothing when all calls have ended.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.poller.borrow().leftovers()
    }

    /// Looks at its transport, between two turns.
    pub fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.poller.borrow().with_transport(act)
    }
}

impl SharedNode<Loopback> {
    /// Lets a frame arrive on each of its connections that no honest peer has sent.
    pub fn inject(&self, frame: &[u8]) {
        self.with_transport(|loopback| {
            for connection in loopback.connections() {
                loopback.inject(connection, frame.to_vec());
            }
        });
    }
}
