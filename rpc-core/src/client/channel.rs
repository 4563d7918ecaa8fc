//! [`ChannelCore`]: the state shared by the clones of a channel.

use std::cell::{Ref, RefCell};
use std::collections::HashMap;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;

use crate::driver::handle::{ConnectedLink, Poller};
use crate::driver::link::LinkKey;
use crate::method::MethodSpec;
use crate::protocol::session::ServerSession;
use crate::stats::MethodCounters;

/// One connection as seen by its channels: its poller, and the server's method numbers.
pub(crate) struct ChannelCore {
    pub(crate) poller: Rc<dyn Poller>,
    pub(crate) link: LinkKey,
    address: String,
    methods: RefCell<MethodNumbers>,
    /// The counters of each resolved method, in the order of resolution.
    counters: RefCell<Vec<Arc<MethodCounters>>>,
}

/// A server's method numbers on one connection.
#[derive(Debug)]
pub(crate) struct MethodNumbers {
    numbers: HashMap<String, u16>,
    /// Numbers keyed by the address of the method's constant, so that a call compares a few
    /// pointers instead of hashing a path. Filled as methods are first called.
    resolved: Vec<(*const MethodSpec, Option<u16>)>,
}

impl ChannelCore {
    pub(crate) fn new(poller: Rc<dyn Poller>, address: &str, connected: ConnectedLink) -> Self {
        poller.acquire_ref(connected.link);
        Self {
            poller,
            link: connected.link,
            address: address.to_owned(),
            methods: RefCell::new(MethodNumbers::from_session(&connected.session)),
            counters: RefCell::default(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns a method's index among the methods called so far, and the server's number for it, or
    /// `None` if the server has no such method.
    pub(crate) fn resolve(&self, method: &'static MethodSpec) -> (usize, Option<u16>) {
        let resolved = self.methods.borrow_mut().resolve(method);
        let mut counters = self.counters.borrow_mut();
        if resolved.0 == counters.len() {
            counters.push(self.poller.poller_counters().called(method));
        }
        resolved
    }

    /// Returns the counters of the method at this index.
    pub(crate) fn counters(&self, index: usize) -> Ref<'_, MethodCounters> {
        Ref::map(self.counters.borrow(), |counters| &*counters[index])
    }
}

impl MethodNumbers {
    pub(crate) fn from_session(session: &ServerSession) -> Self {
        Self {
            numbers: session.numbers(),
            resolved: Vec::new(),
        }
    }

    /// Returns the server's number for a method, or `None` if the server has no such method.
    pub(crate) fn number_of(&mut self, method: &'static MethodSpec) -> Option<u16> {
        self.resolve(method).1
    }

    /// Like [`number_of`](Self::number_of), and also returns the method's index among those
    /// resolved.
    fn resolve(&mut self, method: &'static MethodSpec) -> (usize, Option<u16>) {
        let known = self
            .resolved
            .iter()
            .position(|(spec, _)| ptr::eq(*spec, method));
        if let Some(index) = known {
            return (index, self.resolved[index].1);
        }
        let number = self.numbers.get(method.path).copied();
        self.resolved.push((method, number));
        (self.resolved.len() - 1, number)
    }
}

impl Drop for ChannelCore {
    fn drop(&mut self) {
        self.poller.release_ref(self.link);
    }
}
