//! [`Call`]: what interceptors see of a call that begins.

use std::fmt;
use std::time::Instant;

use crate::message::{Extensions, Parts};
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

/// A call that begins, as [`Interceptor::begin`](super::Interceptor::begin) sees it.
pub struct Call<'a> {
    pub(super) side: Side,
    pub(super) method: &'static MethodSpec,
    pub(super) request: Parts<'a>,
    pub(super) locals: &'a mut Extensions,
}

impl Call<'_> {
    /// Returns the side on which the interceptor runs.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the method.
    #[must_use]
    pub fn method(&self) -> &'static MethodSpec {
        self.method
    }

    /// Returns the process that has made the call, on a server, as far as it is known. On a client
    /// `None`.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        self.request.peer
    }

    /// Returns the metadata of the request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.request.metadata
    }

    /// Returns the metadata of the request for modification. On a client it is sent, and on a server
    /// the handler gets it.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.request.metadata
    }

    /// Returns the extensions of the request: values for the handler, which stay in this process. On a
    /// client, those that the application has set.
    #[must_use]
    pub fn extensions(&self) -> &Extensions {
        self.request.extensions
    }

    /// Returns the extensions of the request for modification.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        self.request.extensions
    }

    /// Returns the values of this call that only interceptors see, up to its end: see
    /// [`End::locals`](super::End::locals). Those of the same type replace each other, so each
    /// interceptor should use a type of its own.
    #[must_use]
    pub fn locals(&self) -> &Extensions {
        self.locals
    }

    /// Returns the values that only interceptors see for modification.
    pub fn locals_mut(&mut self) -> &mut Extensions {
        self.locals
    }

    /// Returns the moment at which the call ends with `DEADLINE_EXCEEDED`, or `None` if nothing limits
    /// it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.request.deadline()
    }

    /// Ends the call at `moment`, if it would not end earlier. So do the calls that its handler makes.
    pub fn limit_deadline(&mut self, moment: Instant) {
        self.request.limit_deadline(moment);
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("side", &self.side)
            .field("method", &self.method.path)
            .finish_non_exhaustive()
    }
}
