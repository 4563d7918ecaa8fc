//! [`ChannelCore`]: the state shared by the clones of a channel.

use std::cell::OnceCell;
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;

use crate::driver::handle::{ConnectedLink, Poller, SendLimits};
use crate::driver::link::LinkKey;
use crate::method::MethodSpec;
use crate::method::remote::{Interner, NamedMethods, RemoteMethods, of_names};
use crate::protocol::frame::HEADER_LEN;
use crate::protocol::inline_frame::SpareFrame;
use crate::protocol::session::ServerSession;
use crate::stats::MethodCounters;

/// One connection as seen by its channels: its poller, and the server's method numbers.
pub(crate) struct ChannelCore {
    pub(crate) poller: Rc<dyn Poller>,
    pub(crate) link: LinkKey,
    /// Length of the longest frame that is sent inline.
    pub(crate) longest_inline: usize,
    /// What may be sent on the connection.
    pub(crate) lengths: SendLimits,
    /// A spare frame, for requests and responses.
    pub(crate) inline_frame: SpareFrame,
    address: String,
    numbers: MethodNumbers,
    /// The server's methods, once the application has asked for them.
    methods: OnceCell<RemoteMethods>,
    called: OnceCell<Box<CalledMethod>>,
}

/// A method that has been called through a channel. A list, so that references stay valid while
/// methods are added; a call compares a few pointers.
pub(crate) struct CalledMethod {
    spec: &'static MethodSpec,
    /// The server's number for the method, or `None` if the server has no such method.
    pub(crate) number: Option<u16>,
    pub(crate) counters: Arc<MethodCounters>,
    next: OnceCell<Box<Self>>,
}

/// A server's method numbers on one connection.
#[derive(Debug)]
pub(crate) struct MethodNumbers {
    named: Arc<NamedMethods>,
    /// Numbers keyed by the address of the method's constant, so that a call compares a few
    /// pointers instead of hashing a path. Filled as methods are first called.
    resolved: Vec<(*const MethodSpec, Option<u16>)>,
}

impl ChannelCore {
    pub(crate) fn new(poller: Rc<dyn Poller>, address: &str, connected: ConnectedLink) -> Self {
        poller.acquire_ref(connected.link);
        Self {
            // A longer message goes the way on which it is refused.
            longest_inline: poller
                .longest_inline()
                .min(HEADER_LEN.saturating_add(connected.lengths.message.bytes())),
            lengths: connected.lengths,
            poller,
            link: connected.link,
            inline_frame: SpareFrame::default(),
            address: address.to_owned(),
            numbers: MethodNumbers::from_session(&connected.session),
            methods: OnceCell::new(),
            called: OnceCell::new(),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the methods that the server has named.
    pub(crate) fn methods(&self) -> RemoteMethods {
        let methods = || of_names(&self.numbers.named, &mut Interner::default());
        self.methods.get_or_init(methods).clone()
    }

    /// Returns a method's number and counters.
    #[inline]
    pub(crate) fn resolve(&self, spec: &'static MethodSpec) -> &CalledMethod {
        let mut entry = &self.called;
        loop {
            let method = entry.get_or_init(|| self.first_call(spec));
            if ptr::eq(method.spec, spec) {
                return method;
            }
            entry = &method.next;
        }
    }

    #[cold]
    fn first_call(&self, spec: &'static MethodSpec) -> Box<CalledMethod> {
        Box::new(CalledMethod {
            spec,
            number: self.numbers.find(spec),
            counters: self.poller.poller_counters().called(spec),
            next: OnceCell::new(),
        })
    }
}

impl MethodNumbers {
    pub(crate) fn from_session(session: &ServerSession) -> Self {
        Self {
            named: Arc::new(session.numbers()),
            resolved: Vec::new(),
        }
    }

    /// Returns what the server has named.
    pub(crate) fn named(&self) -> &Arc<NamedMethods> {
        &self.named
    }

    /// Returns the server's number for a method, or `None` if the server has no such method, or one
    /// of another kind.
    fn find(&self, method: &MethodSpec) -> Option<u16> {
        let (number, kind) = *self.named.get(method.path)?;
        (kind == method.kind).then_some(number)
    }

    /// Like [`find`](Self::find), and remembers the number for the next call of the method.
    pub(crate) fn number_of(&mut self, method: &'static MethodSpec) -> Option<u16> {
        let mut resolved = self.resolved.iter();
        if let Some((_, number)) = resolved.find(|(spec, _)| ptr::eq(*spec, method)) {
            return *number;
        }
        let number = self.find(method);
        self.resolved.push((method, number));
        number
    }
}

impl Drop for ChannelCore {
    fn drop(&mut self) {
        self.poller.release_ref(self.link);
    }
}
