//! [`End`]: what interceptors see of a call that has ended.

use std::fmt;
use std::time::Duration;

use super::call::{About, Side};
use crate::call_error::{CallError, Execution};
use crate::clock::Clock;
use crate::message::{Extensions, Response};
use crate::metadata::Metadata;
use crate::method::MethodSpec;
use crate::status::{Code, Status};

/// Messages of one direction of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many messages.
    pub messages: u64,
    /// Bytes of all of them, encoded, without metadata and headers.
    pub bytes: u64,
}

impl Traffic {
    /// One message of this length.
    pub(crate) fn one(len: usize) -> Self {
        Self {
            messages: 1,
            bytes: len as u64,
        }
    }
}

/// The messages of a call. They are counted only if an interceptor asks.
pub(crate) trait Messages {
    fn requests(&self) -> Traffic;
    /// Returns those of a stream. A single response is in [`Reply`].
    fn responses(&self) -> Traffic;
}

/// What has come of a call that has succeeded, whatever its message is.
pub(crate) trait Reply {
    /// Returns the length of its message, which the end of a stream does not have.
    fn message_len(&self) -> usize;
    fn trailing_metadata(&self) -> &Metadata;
    fn trailing_metadata_mut(&mut self) -> &mut Metadata;
}

/// The response of a call with one response message, and how its length is found.
pub(crate) struct Replied<'a, T, L> {
    response: &'a mut Response<T>,
    len: L,
}

impl<'a, T, L: Fn(&T) -> usize> Replied<'a, T, L> {
    pub(crate) fn new(response: &'a mut Response<T>, len: L) -> Self {
        Self { response, len }
    }
}

impl<T, L: Fn(&T) -> usize> Reply for Replied<'_, T, L> {
    fn message_len(&self) -> usize {
        (self.len)(self.response.get_ref())
    }

    fn trailing_metadata(&self) -> &Metadata {
        self.response.trailing_metadata()
    }

    fn trailing_metadata_mut(&mut self) -> &mut Metadata {
        self.response.trailing_metadata_mut()
    }
}

/// The end of a client's stream that has succeeded is its trailing metadata.
impl Reply for Metadata {
    fn message_len(&self) -> usize {
        0
    }

    fn trailing_metadata(&self) -> &Metadata {
        self
    }

    fn trailing_metadata_mut(&mut self) -> &mut Metadata {
        self
    }
}

/// How a call has ended.
pub(crate) enum Ending<'a> {
    Succeeded(&'a mut dyn Reply),
    /// On a server.
    Failed(&'a mut Status),
    /// On a client.
    Error(&'a CallError),
    /// The future of the call or its handler was dropped.
    Dropped(Code),
}

/// The end of a call, as [`Interceptor::end`](super::Interceptor::end) sees it.
pub struct End<'a> {
    pub(super) about: &'a mut About,
    pub(super) clock: &'a Clock,
    pub(super) ending: Ending<'a>,
    pub(super) messages: &'a dyn Messages,
}

impl End<'_> {
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

    /// Returns how the call has ended.
    ///
    /// On a server, this is what the handler has answered, or the refusal of a later interceptor. The
    /// handler of a call that ended before it had an answer was dropped: at the call's deadline
    /// (`DEADLINE_EXCEEDED`), or because its client or the connection was gone or the server ended
    /// (`CANCELLED`). A client that drops its call sees `CANCELLED`.
    #[must_use]
    pub fn code(&self) -> Code {
        match &self.ending {
            Ending::Succeeded(_) => Code::Ok,
            Ending::Failed(status) => status.code(),
            Ending::Error(error) => error.code(),
            Ending::Dropped(code) => *code,
        }
    }

    /// Returns the status of a call that has failed with one: on a client, that of
    /// [`CallError::status`].
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match &self.ending {
            Ending::Failed(status) => Some(status),
            Ending::Error(error) => error.status(),
            Ending::Succeeded(_) | Ending::Dropped(_) => None,
        }
    }

    /// Returns the error that the application gets, on a client.
    #[must_use]
    pub fn error(&self) -> Option<&CallError> {
        match self.ending {
            Ending::Error(error) => Some(error),
            Ending::Succeeded(_) | Ending::Failed(_) | Ending::Dropped(_) => None,
        }
    }

    /// Returns how far the call has got, on a client. `None` on a server, and if the client has dropped
    /// the call.
    #[must_use]
    pub fn execution(&self) -> Option<Execution> {
        match (self.about.side, &self.ending) {
            (Side::Client, Ending::Succeeded(_)) => Some(Execution::Answered),
            (_, Ending::Error(error)) => Some(error.execution()),
            _ => None,
        }
    }

    /// Returns the time since the first `begin`, or `None` if no interceptor
    /// [measures it](super::Interceptor::measures_time).
    #[must_use]
    pub fn elapsed(&self) -> Option<Duration> {
        let began = self.about.began?;
        Some(self.clock.now().saturating_duration_since(began))
    }

    /// Returns the messages of the client: on a server, those that the handler has read.
    #[must_use]
    pub fn requests(&self) -> Traffic {
        match self.execution() {
            Some(Execution::NeverSent) => Traffic::default(),
            _ => self.messages.requests(),
        }
    }

    /// Returns the messages of the server: on a client, those that the application has read.
    #[must_use]
    pub fn responses(&self) -> Traffic {
        if self.about.method.kind.server_streams() {
            return self.messages.responses();
        }
        match &self.ending {
            Ending::Succeeded(reply) => Traffic::one(reply.message_len()),
            Ending::Failed(_) | Ending::Error(_) | Ending::Dropped(_) => Traffic::default(),
        }
    }

    /// Returns the metadata with which the call ends: that of the response or of the status.
    #[must_use]
    pub fn trailing_metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        match &self.ending {
            Ending::Succeeded(reply) => reply.trailing_metadata(),
            Ending::Failed(status) => status.metadata(),
            Ending::Error(error) => error.metadata(),
            Ending::Dropped(_) => &NONE,
        }
    }

    /// Returns the metadata with which the call ends for modification: on a server it is sent, and on a
    /// client the application gets it. `None` for a client's error and for a call that was dropped.
    pub fn trailing_metadata_mut(&mut self) -> Option<&mut Metadata> {
        match &mut self.ending {
            Ending::Succeeded(reply) => Some(reply.trailing_metadata_mut()),
            Ending::Failed(status) => Some(status.metadata_mut()),
            Ending::Error(_) | Ending::Dropped(_) => None,
        }
    }

    /// Returns the values of this call that only interceptors see: see
    /// [`Call::locals`](super::Call::locals).
    #[must_use]
    pub fn locals(&self) -> &Extensions {
        &self.about.locals
    }

    /// Returns the values that only interceptors see for modification.
    pub fn locals_mut(&mut self) -> &mut Extensions {
        &mut self.about.locals
    }
}

impl fmt::Debug for End<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End")
            .field("side", &self.about.side)
            .field("method", &self.about.method.path)
            .field("code", &self.code())
            .finish_non_exhaustive()
    }
}
