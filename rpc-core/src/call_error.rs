//! [`CallError`]: the reason that a client's call returned no response.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::codec::DecodeError;
use crate::limits::{Direction, LengthLimit, MessageLimit};
use crate::metadata::Metadata;
use crate::status::{self, Code, Status};
use crate::transport::{CloseReason, ConnectError, FORKED};

/// How far a failed call got, which decides whether it may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Execution {
    /// No byte of the request left this process. A retry is safe.
    NeverSent,
    /// The request was sent and no response arrived: the handler may have run, may still be
    /// running, or may never have started.
    MayHaveRun,
    /// The server responded that it did not start the handler. A retry is safe.
    NotStarted,
    /// The server responded after it had started the handler.
    Answered,
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverSent => "never sent",
            Self::MayHaveRun => "may have run",
            Self::NotStarted => "not started",
            Self::Answered => "answered",
        })
    }
}

/// The reason that a call returned no response: the server's status, or a failure on this side. One
/// pointer wide.
#[derive(Clone)]
pub struct CallError(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    cause: Cause,
    execution: Execution,
    pushback: Option<Duration>,
    /// The sentence of [`CallError::message`], if the server has sent none.
    sentence: OnceLock<String>,
}

/// The reason for the failure.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The server responded with this status.
    Remote(Status),
    /// A layer of this process between the application and the server failed the call with this status:
    /// see [`CallError::from_status`].
    Local(Status),
    /// The deadline passed on this side's clock.
    DeadlineExceeded {
        /// The error of the latest attempt to connect, if a shared channel was not connected and the
        /// call waited for it.
        latest: Option<Arc<ConnectError>>,
    },
    /// This side has given the call up: its future, or the stream of its responses, was dropped.
    Cancelled,
    /// The connection closed.
    Disconnected(CloseReason),
    /// The server is overloaded, and has asked its clients to send no calls for a while that ends after
    /// this call's deadline. The call was never sent.
    PushedBack {
        /// How long the channel still sends no calls: the server's pushback, with jitter.
        wait: Duration,
    },
    /// The shared channel is not connected because its latest attempt failed. The call was never
    /// sent.
    NotConnected {
        /// The server's address, as the application specified it.
        address: String,
        /// The error of the latest attempt, or `None` if the channel is closed.
        latest: Option<Arc<ConnectError>>,
    },
    /// The process was forked after the channel was made: the channel works in the parent only. The
    /// call was never sent.
    Forked,
    /// A message of the request, or its metadata, is longer than a limit: the sender's, the receiver's
    /// or the method's.
    RequestTooLong {
        /// Bytes of the encoded message, or of the metadata if that is too long.
        message_len: usize,
        /// The most bytes that it may have.
        limit: usize,
        /// Whose limit this is.
        exceeded: LengthLimit,
    },
    /// The server has no such method. The handshake lists the server's methods, so nothing was
    /// sent.
    Unimplemented {
        /// `package.Service/Method`: the method's name between peers.
        path: &'static str,
    },
    /// The server has answered, and this side does not receive the response, which is too long or for
    /// which there is no memory.
    NotReceived(Status),
    /// The response does not decode as the method's response type, or would take too much memory.
    Undecodable(DecodeError),
}

impl CallError {
    pub(crate) fn new(cause: Cause, execution: Execution) -> Self {
        Self(Box::new(Inner {
            cause,
            execution,
            pushback: None,
            sentence: OnceLock::new(),
        }))
    }

    pub(crate) fn remote(status: Status) -> Self {
        Self::new(Cause::Remote(status), Execution::Answered)
    }

    /// Creates the error of a call whose handler the server did not start. `pushback` is how long
    /// the server asks for no further calls.
    pub(crate) fn not_started(status: Status, pushback: Duration) -> Self {
        Self::new(Cause::Remote(status), Execution::NotStarted).with_pushback(pushback)
    }

    /// Creates the error of a call that did not end on a connection of this crate: for channels over
    /// channels, channels over other protocols, and mocks.
    ///
    /// `execution` is how far the call got. If it is [`Answered`](Execution::Answered) or
    /// [`NotStarted`](Execution::NotStarted), the status is the server's and becomes
    /// [`Cause::Remote`]; otherwise it is this side's, and becomes [`Cause::Local`]. A status with
    /// [`Code::Ok`], which no call that failed has, becomes one with [`Code::Unknown`].
    ///
    /// ```
    /// use rpc_core::{CallError, Execution, Status};
    ///
    /// let status = Status::unavailable("no server is left");
    /// let error = CallError::from_status(status, Execution::NeverSent);
    /// assert!(error.is_retryable());
    /// assert_eq!(
    ///     error.to_string(),
    ///     "UNAVAILABLE: no server is left; the call was never sent"
    /// );
    /// ```
    #[must_use]
    pub fn from_status(status: Status, execution: Execution) -> Self {
        let status = status.of_failure();
        let cause = match execution {
            Execution::Answered | Execution::NotStarted => Cause::Remote(status),
            Execution::NeverSent | Execution::MayHaveRun => Cause::Local(status),
        };
        Self::new(cause, execution)
    }

    /// Sets how long the server asks for no further calls: see [`pushback`](Self::pushback).
    #[must_use]
    pub fn with_pushback(mut self, wait: Duration) -> Self {
        self.0.pushback = (!wait.is_zero()).then_some(wait);
        self
    }

    /// Returns the cause, to match on.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }

    /// Returns how far the call may have got.
    #[must_use]
    pub fn execution(&self) -> Execution {
        self.0.execution
    }

    /// Returns how long an overloaded server asks its clients to send no further calls, if it answered
    /// this call so: for 10 seconds at most, whatever it says. A shared channel keeps to it by itself;
    /// [`Cause::PushedBack`] has the rest of that time, for a call that it did not send.
    #[must_use]
    pub fn pushback(&self) -> Option<Duration> {
        self.0.pushback
    }

    /// Returns the server's status, if the server failed the call, or that of a layer which failed it
    /// on this side ([`Cause::Local`]).
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match &self.0.cause {
            Cause::Remote(status) | Cause::Local(status) => Some(status),
            _ => None,
        }
    }

    /// Returns true if the same call may be made again, and may then succeed: its handler was not
    /// started, and the reason may pass, such as a server that is not reachable or is overloaded. If
    /// the server asked for [`pushback`](Self::pushback), wait that long.
    ///
    /// A call that [may have run](Execution::MayHaveRun) returns false. Repeat it only if its method
    /// may run twice. Limit the number of attempts: the reason may be one that does not pass, such as
    /// a limit of the server's build that this side does not know. A
    /// [`LocalChannel`](crate::LocalChannel) must be connected again first.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        let was_started = match self.execution() {
            Execution::NeverSent | Execution::NotStarted => false,
            Execution::MayHaveRun | Execution::Answered => true,
        };
        let may_pass = matches!(
            self.code(),
            Code::Unavailable | Code::ResourceExhausted | Code::Aborted
        );
        // A request that is too long stays so, and a channel that was closed stays closed.
        let is_permanent = matches!(
            self.0.cause,
            Cause::RequestTooLong { .. } | Cause::NotConnected { latest: None, .. }
        );
        !was_started && may_pass && !is_permanent
    }

    /// Returns the message of the [`status`](Self::status), or a sentence about the failure on this side.
    #[must_use]
    pub fn message(&self) -> &str {
        match self.status() {
            Some(status) => status.message(),
            None => (self.0.sentence).get_or_init(|| self.0.cause.to_string()),
        }
    }

    /// Returns the details of the [`status`](Self::status), which are empty if it has none or if the
    /// call failed without one.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        self.status().map_or(&[], Status::details)
    }

    /// Returns the metadata of the [`status`](Self::status), which is empty if it has none or if the
    /// call failed without one.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        self.status().map_or(&NONE, Status::metadata)
    }

    /// Returns the canonical code: the server's, or the one that matches a failure on this side.
    #[must_use]
    pub fn code(&self) -> Code {
        match &self.0.cause {
            Cause::Remote(status) | Cause::Local(status) | Cause::NotReceived(status) => {
                status.code()
            }
            Cause::DeadlineExceeded { .. } => Code::DeadlineExceeded,
            Cause::Cancelled => Code::Cancelled,
            Cause::Disconnected(_) | Cause::NotConnected { .. } => Code::Unavailable,
            Cause::Forked => Code::FailedPrecondition,
            Cause::RequestTooLong { .. } | Cause::PushedBack { .. } => Code::ResourceExhausted,
            Cause::Unimplemented { .. } => Code::Unimplemented,
            Cause::Undecodable(error) if error.is_over_budget() => Code::ResourceExhausted,
            Cause::Undecodable(_) => Code::Internal,
        }
    }
}

impl Cause {
    /// Builds the cause of a request whose message exceeds this limit.
    #[cold]
    pub(crate) fn request_too_long(message_len: usize, limit: MessageLimit) -> Self {
        Self::RequestTooLong {
            message_len,
            limit: limit.bytes(),
            exceeded: limit.kind,
        }
    }

    /// Builds the cause of a request whose metadata is too long.
    #[cold]
    pub(crate) fn metadata_too_long(metadata_len: usize, limit: usize) -> Self {
        let limit = MessageLimit::new(limit, LengthLimit::Metadata);
        Self::request_too_long(metadata_len, limit)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.cause {
            // The message may be a peer's, and a status without one is printed as its code.
            Cause::Remote(status) | Cause::Local(status) => write!(f, "{status}")?,
            cause => write!(f, "{}: {cause}", self.code())?,
        }
        match (&self.0.cause, self.0.execution) {
            (Cause::Remote(_) | Cause::Undecodable(_), _) => {}
            (_, Execution::NeverSent) => f.write_str("; the call was never sent")?,
            (_, Execution::Answered) => f.write_str("; the server has answered the call")?,
            _ => f.write_str("; the call may have run")?,
        }
        match self.0.pushback {
            Some(pushback) => write!(f, "; try again in {pushback:?}"),
            None => Ok(()),
        }
    }
}

/// A sentence about the cause, without its code. For a status, it is the status's message.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote(status) | Self::Local(status) | Self::NotReceived(status) => {
                f.write_str(status.message())
            }
            Self::DeadlineExceeded { latest: None } => f.write_str("the call's deadline passed"),
            Self::DeadlineExceeded {
                latest: Some(error),
            } => write!(
                f,
                "the call's deadline passed before the channel was connected: {error}"
            ),
            Self::Cancelled => f.write_str("this side gave the call up"),
            Self::Disconnected(reason) => write!(f, "{reason}"),
            Self::PushedBack { wait } => write!(
                f,
                "the server is overloaded and wants no calls for {wait:?}, which is more time than the \
                 call has left"
            ),
            Self::NotConnected { address, latest } => match latest {
                Some(error) => write!(f, "not connected to {address}: {error}"),
                None => write!(f, "not connected to {address}: the channel has been closed"),
            },
            Self::Forked => f.write_str(FORKED),
            Self::RequestTooLong {
                message_len,
                limit,
                exceeded,
            } => {
                let what = match exceeded {
                    LengthLimit::Metadata => "metadata",
                    _ => "message",
                };
                let exceeds = exceeded.exceeded(*limit, Direction::Request);
                write!(f, "the request's {what} of {message_len} bytes {exceeds}")
            }
            Self::Unimplemented { path } => write!(f, "the server has no method {path}"),
            Self::Undecodable(error) => write!(f, "cannot decode the response: {error}"),
        }
    }
}

/// Prints the same sentence as `Display`, because a `main` that returns an error prints it with
/// `Debug`.
impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for CallError {
    /// Returns what lies below the cause. The sentence of this error includes that of the cause, so
    /// a printed chain repeats no sentence.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.cause {
            Cause::Remote(status) | Cause::Local(status) | Cause::NotReceived(status) => {
                status.source()
            }
            Cause::Undecodable(error) => error.source(),
            Cause::Disconnected(CloseReason::Failed(error)) => error.source(),
            Cause::NotConnected {
                latest: Some(error),
                ..
            }
            | Cause::DeadlineExceeded {
                latest: Some(error),
            } => error.source(),
            _ => None,
        }
    }
}

/// Converts the error of a nested call into the handler's own status, for use with `?`.
///
/// The code is kept, and the message says that a nested call failed. The details and metadata of a
/// remote status are dropped: the remote server addressed them to this process, not to its clients. So
/// are the address of the server and the reason for which it cannot be reached. The error becomes the
/// source, which stays in this process.
impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let message = match &error.0.cause {
            Cause::NotConnected { .. } => "the server cannot be reached",
            Cause::DeadlineExceeded { .. } => "the call's deadline passed",
            Cause::Disconnected(_) => "the connection to the server ended",
            _ => error.message(),
        };
        let message = format!("in a nested call: {message}");
        Self::new(error.code(), message).with_source(Arc::new(error))
    }
}

impl Status {
    /// Converts any error, for example one of an application's own types.
    ///
    /// - A `Status` is returned as it is, and a [`CallError`] is converted like a nested call's.
    /// - An error with a `Status`, a `CallError` or an [`io::Error`] among its sources gets the code of
    ///   the first one, and the details and metadata if that is a `Status`.
    /// - Any other error gets the code `UNKNOWN`.
    ///
    /// In the last two cases the message is that of `error`, which becomes the source.
    #[must_use]
    pub fn from_error(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = match error.into().downcast::<Self>() {
            Ok(status) => return *status,
            Err(error) => error,
        };
        let error = match error.downcast::<CallError>() {
            Ok(error) => return (*error).into(),
            Err(error) => error,
        };
        let status = match first_in_chain(&*error) {
            Some(Found::Status(found)) => Self::new(found.code(), error.to_string())
                .with_details(found.details().to_vec())
                .with_metadata(found.metadata().clone()),
            Some(Found::Code(code)) => Self::new(code, error.to_string()),
            None => Self::unknown(error.to_string()),
        };
        status.with_source(error.into())
    }
}

/// An error in a chain that has a code.
enum Found<'a> {
    Status(&'a Status),
    Code(Code),
}

/// Returns the first error in a chain that has a code.
fn first_in_chain<'a>(error: &'a (dyn Error + 'static)) -> Option<Found<'a>> {
    if let Some(status) = error.downcast_ref() {
        return Some(Found::Status(status));
    }
    if let Some(error) = error.downcast_ref::<CallError>() {
        return Some(Found::Code(error.code()));
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        // An error that it wraps is not among its sources.
        let wrapped = error.get_ref();
        let found = wrapped.and_then(|wrapped| first_in_chain(wrapped));
        let code = status::code_of_io(error);
        return found.or((code != Code::Unknown).then_some(Found::Code(code)));
    }
    first_in_chain(error.source()?)
}

#[cfg(test)]
mod tests;
