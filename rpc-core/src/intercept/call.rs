//! [`Call`]: what interceptors see of a call that begins.

use std::fmt;
use std::time::Instant;

use crate::clock::Clock;
use crate::message::{Extensions, Head};
use crate::metadata::Metadata;
use crate::method::MethodSpec;
use crate::peer::Peer;

/// The side of a call on which an interceptor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The call is made.
    Client,
    /// The call is served.
    Server,
}

/// What both ends of an interception know of a call.
pub(super) struct About {
    pub(super) side: Side,
    pub(super) method: &'static MethodSpec,
    pub(super) locals: Extensions,
    /// The time of the first `begin`, if an interceptor measures.
    pub(super) began: Option<Instant>,
}

/// A call that begins, as [`Interceptor::begin`](super::Interceptor::begin) sees it.
pub struct Call<'a> {
    pub(super) about: &'a mut About,
    pub(super) request: &'a mut Head,
    pub(super) clock: &'a Clock,
}

impl Call<'_> {
    /// Returns the side on which the interceptor runs.
    #[must_use]
    pub fn side(&self) -> Side {
        self.about.side
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &'static MethodSpec {
        self.about.method
    }

    /// Returns the process that has made the call, on a server, as far as it is known. On a client
    /// `None`.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.request.peer()
    }

    /// Returns the metadata of the request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.request.metadata
    }

    /// Returns the metadata of the request for modification. On a client it is sent, and on a server
    /// the handler gets it.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.request.metadata
    }

    /// Returns the extensions of the request: values for the handler, which stay in this process. On a
    /// client, those that the application has set.
    #[must_use]
    pub fn extensions(&self) -> &Extensions {
        &self.request.extensions
    }

    /// Returns the extensions of the request for modification.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.request.extensions
    }

    /// Returns the values of this call that only interceptors see, up to its end: see
    /// [`End::locals`](super::End::locals). Those of the same type replace each other, so each
    /// interceptor should use a type of its own.
    #[must_use]
    pub fn locals(&self) -> &Extensions {
        &self.about.locals
    }

    /// Returns the values that only interceptors see for modification.
    pub fn locals_mut(&mut self) -> &mut Extensions {
        &mut self.about.locals
    }

    /// Returns the moment at which the call ends with `DEADLINE_EXCEEDED`, or `None` if nothing limits
    /// it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match self.about.side {
            Side::Server => self.request.deadline(),
            Side::Client => (self.request).deadline_of_call(|timeout| self.clock.after(timeout)),
        }
    }

    /// Ends the call at `moment`, if it would not end earlier. So do the calls that its handler makes.
    pub fn limit_deadline(&mut self, moment: Instant) {
        self.settle_deadline();
        self.request.limit_deadline(moment);
    }

    /// Decides the deadline of a client's call, which begins now, unless it is decided.
    pub(super) fn settle_deadline(&mut self) {
        if self.about.side == Side::Client {
            self.request
                .settle_deadline(|timeout| self.clock.after(timeout));
        }
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("side", &self.about.side)
            .field("method", &self.about.method.path)
            .finish_non_exhaustive()
    }
}
