//! [`ChannelCore`]: what the clones of a channel share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr;
use std::rc::Rc;

use crate::driver::LinkKey;
use crate::method::MethodSpec;
use crate::outgoing::{Joined, Poller};
use crate::session::ServerSession;

/// One connection, as its channels see it: its poller, and the server's numbers for methods.
pub(crate) struct ChannelCore {
    pub(crate) poller: Rc<dyn Poller>,
    pub(crate) link: LinkKey,
    address: String,
    methods: RefCell<MethodNumbers>,
}

/// A server's numbers for methods, on one connection.
#[derive(Debug)]
pub(crate) struct MethodNumbers {
    numbers: HashMap<String, u16>,
    /// Numbers by the address of the method's constant, so that a call compares a few pointers
    /// instead of hashing a path. Filled as methods are first called.
    resolved: Vec<(*const MethodSpec, Option<u16>)>,
}

impl ChannelCore {
    pub(crate) fn new(poller: Rc<dyn Poller>, address: &str, joined: Joined) -> Self {
        poller.hold(joined.link);
        Self {
            poller,
            link: joined.link,
            address: address.to_owned(),
            methods: RefCell::new(MethodNumbers::of(&joined.session)),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The server's number for a method; `None` if it has no such method.
    pub(crate) fn number_of(&self, method: &'static MethodSpec) -> Option<u16> {
        self.methods.borrow_mut().number_of(method)
    }
}

impl MethodNumbers {
    pub(crate) fn of(session: &ServerSession) -> Self {
        Self {
            numbers: session.numbers(),
            resolved: Vec::new(),
        }
    }

    /// The server's number for a method; `None` if it has no such method.
    pub(crate) fn number_of(&mut self, method: &'static MethodSpec) -> Option<u16> {
        let known = self
            .resolved
            .iter()
            .find(|(spec, _)| ptr::eq(*spec, method));
        if let Some((_, number)) = known {
            return *number;
        }
        let number = self.numbers.get(method.path).copied();
        self.resolved.push((method, number));
        number
    }
}

impl Drop for ChannelCore {
    fn drop(&mut self) {
        self.poller.let_go(self.link);
    }
}
