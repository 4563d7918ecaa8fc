//! [`SharedNode`]: a shared channel whose poller is stepped by hand, over any transport.

use std::cell::RefCell;
use std::rc::Rc;

use rpc_core::Channel;
use rpc_core::for_testing::{Clock, SteppedPoller};
use rpc_core::transport::Transport;

use crate::loopback::Loopback;

/// A channel with its poller, which may have further channels. Handshakes run immediately, on the same
/// thread, unless the test [holds](Self::hold_handshakes) them.
pub struct SharedNode<T: Transport> {
    channel: Channel,
    stepped: RefCell<SteppedPoller<T>>,
    held: HeldHandshakes,
}

/// The handshakes that wait, while the test holds them.
type HeldHandshakes = Rc<RefCell<Option<Vec<Box<dyn FnOnce()>>>>>;

impl<T: Transport> SharedNode<T> {
    /// Creates a channel to `address` over `transport` that uses `clock`. The reconnect delays are
    /// generated from `seed`.
    pub fn over(transport: T, clock: &Clock, address: &str, seed: u64) -> Self {
        let held = HeldHandshakes::default();
        let begun = Rc::clone(&held);
        // Immediately, because the transports of tests do not block, or when the test says so.
        let stepped = SteppedPoller::new(transport, clock, move |handshake| {
            if let Some(held) = &mut *begun.borrow_mut() {
                held.push(handshake);
                return;
            }
            handshake();
        });
        Self {
            channel: stepped.channel(address, seed),
            stepped: RefCell::new(stepped),
            held,
        }
    }

    /// Holds the handshakes that begin from now on, as if no thread were free.
    pub fn hold_handshakes(&self) {
        self.held.borrow_mut().get_or_insert_default();
    }

    /// Performs one of the handshakes that are held. `choose` gets their number and returns the index
    /// of one. Returns false if there is none.
    pub fn release_handshake(&self, choose: impl FnOnce(usize) -> usize) -> bool {
        let mut held = self.held.borrow_mut();
        let Some(waiting) = held.as_mut().filter(|waiting| !waiting.is_empty()) else {
            return false;
        };
        let index = choose(waiting.len());
        let handshake = waiting.swap_remove(index);
        drop(held);
        handshake();
        true
    }

    /// Creates another channel over the same poller.
    #[must_use]
    pub fn add_channel(&self, address: &str, seed: u64) -> Channel {
        self.stepped.borrow().channel(address, seed)
    }

    /// Returns the number of channels that the poller has not removed.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.stepped.borrow().channels()
    }

    /// Returns the channel.
    #[must_use]
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Takes one turn. Returns true if it found anything to do.
    pub fn step(&self) -> bool {
        self.stepped.borrow_mut().turn()
    }

    /// Expires deadlines, as a poller does at the end of a sleep. The next turn settles their calls.
    pub fn expire_deadlines(&self) {
        self.stepped.borrow_mut().expire_deadlines();
    }

    /// Expires deadlines, as a poller does periodically, and settles their calls.
    pub fn check_timers(&self) {
        self.stepped.borrow_mut().check_timers();
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.stepped.borrow().leftovers()
    }

    /// Accesses the transport, between two turns.
    pub fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.stepped.borrow().with_transport(act)
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
