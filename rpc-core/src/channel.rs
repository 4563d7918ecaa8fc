//! [`ChannelCore`]: what the clones of a channel share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ptr;
use std::rc::Rc;

use crate::driver::LinkKey;
use crate::method::MethodSpec;
use crate::outgoing::{Joined, Poller};

/// One connection, as its channels see it: its poller, and the server's numbers for methods.
pub(crate) struct ChannelCore {
    pub(crate) poller: Rc<dyn Poller>,
    pub(crate) link: LinkKey,
    address: String,
    numbers: HashMap<String, u16>,
    /// Numbers by the address of the method's constant, so that a call compares a few pointers
    /// instead of hashing a path. Filled as methods are first called.
    resolved: RefCell<Vec<(*const MethodSpec, Option<u16>)>>,
}

impl ChannelCore {
    pub(crate) fn new(poller: Rc<dyn Poller>, address: &str, joined: Joined) -> Self {
        poller.hold(joined.link);
        Self {
            poller,
            link: joined.link,
            address: address.to_owned(),
            numbers: joined.session.numbers(),
            resolved: RefCell::default(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The server's number for a method; `None` if it has no such method.
    pub(crate) fn number_of(&self, method: &'static MethodSpec) -> Option<u16> {
        let mut resolved = self.resolved.borrow_mut();
        let known = resolved.iter().find(|(spec, _)| ptr::eq(*spec, method));
        if let Some((_, number)) = known {
            return *number;
        }
        let number = self.numbers.get(method.path).copied();
        resolved.push((method, number));
        number
    }
}

impl Drop for ChannelCore {
    fn drop(&mut self) {
        self.poller.let_go(self.link);
    }
}
