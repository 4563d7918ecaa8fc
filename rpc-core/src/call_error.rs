//! [`CallError`]: the reason that a client's call returned no response.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::codec::DecodeError;
use crate::limits::{Direction, LengthLimit, MessageLimit};
use crate::status::{Code, Status};
use crate::transport::{CloseReason, ConnectError};

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
}

/// The reason for the failure.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The server responded with this status.
    Remote(Status),
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
        }))
    }

    pub(crate) fn remote(status: Status) -> Self {
        Self::new(Cause::Remote(status), Execution::Answered)
    }

    /// Creates the error of a call whose handler the server did not start. `pushback` is how long
    /// the server asks for no further calls.
    pub(crate) fn not_started(status: Status, pushback: Duration) -> Self {
        Self(Box::new(Inner {
            cause: Cause::Remote(status),
            execution: Execution::NotStarted,
            pushback: (!pushback.is_zero()).then_some(pushback),
        }))
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

    /// Returns how long an overloaded server asks its clients to send no further calls, if it did. A
    /// shared channel keeps to it by itself.
    #[must_use]
    pub fn pushback(&self) -> Option<Duration> {
        self.0.pushback
    }

    /// Returns the server's status, if the server failed the call.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match &self.0.cause {
            Cause::Remote(status) => Some(status),
            _ => None,
        }
    }

    /// Returns the canonical code: the server's, or the one that matches a failure on this side.
    #[must_use]
    pub fn code(&self) -> Code {
        match &self.0.cause {
            Cause::Remote(status) | Cause::NotReceived(status) => status.code(),
            Cause::DeadlineExceeded { .. } => Code::DeadlineExceeded,
            Cause::Cancelled => Code::Cancelled,
            Cause::Disconnected(_) | Cause::NotConnected { .. } => Code::Unavailable,
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
        let verb = if self.0.execution == Execution::NeverSent {
            "was never sent"
        } else {
            "may have run"
        };
        match &self.0.cause {
            Cause::Remote(status) => {
                write!(f, "{status}")?;
                match self.0.pushback {
                    Some(pushback) => write!(f, "; try again in {pushback:?}"),
                    None => Ok(()),
                }
            }
            Cause::DeadlineExceeded { latest } => {
                write!(f, "{}: the call's deadline passed", self.code())?;
                if let Some(error) = latest {
                    write!(f, " before the channel was connected: {error}")?;
                }
                write!(f, "; the call {verb}")
            }
            Cause::Cancelled => {
                write!(
                    f,
                    "{}: this side gave the call up; the call {verb}",
                    self.code()
                )
            }
            Cause::Disconnected(reason) => {
                write!(f, "{}: {reason}; the call {verb}", self.code())
            }
            Cause::PushedBack { wait } => write!(
                f,
                "{}: the server is overloaded and wants no calls for {wait:?}, which is more time than \
                 the call has left; the call was never sent",
                self.code()
            ),
            Cause::NotConnected { address, latest } => {
                write!(f, "{}: not connected to {address}", self.code())?;
                match latest {
                    Some(error) => write!(f, ": {error}")?,
                    None => f.write_str(": the channel has been closed")?,
                }
                f.write_str("; the call was never sent")
            }
            Cause::RequestTooLong {
                message_len,
                limit,
                exceeded,
            } => {
                let what = match exceeded {
                    LengthLimit::Metadata => "metadata",
                    _ => "message",
                };
                let exceeds = exceeded.exceeded(*limit, Direction::Request);
                write!(
                    f,
                    "{}: the request's {what} of {message_len} bytes {exceeds}; the call {verb}",
                    self.code()
                )
            }
            Cause::Unimplemented { path } => write!(
                f,
                "{}: the server has no method {path}; the call was never sent",
                self.code()
            ),
            Cause::NotReceived(status) => {
                write!(f, "{status}; the server has answered the call")
            }
            Cause::Undecodable(error) => {
                write!(f, "{}: cannot decode the response: {error}", self.code())
            }
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
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.cause {
            Cause::Remote(status) => Some(status),
            Cause::Undecodable(error) => Some(error),
            Cause::Disconnected(CloseReason::Failed(error)) => Some(&**error),
            Cause::NotConnected {
                latest: Some(error),
                ..
            }
            | Cause::DeadlineExceeded {
                latest: Some(error),
            } => Some(&**error),
            _ => None,
        }
    }
}

/// Converts the error of a nested call into the handler's own status, for use with `?`.
///
/// The code is kept, and the message says that a nested call failed. The details and metadata of a
/// remote status are dropped: the remote server addressed them to this process, not to its clients.
impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let code = error.code();
        let message = match error.status() {
            Some(status) => format!("in a nested call: {}", status.message()),
            None => format!("in a nested call: {error}"),
        };
        Self::new(code, message).with_source(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Codec, ProstCodec};

    #[test]
    fn a_call_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Result<(), CallError>>(), size_of::<usize>());
    }

    #[test]
    fn an_error_says_what_and_whether_it_may_have_run() {
        let error = CallError::new(
            Cause::Disconnected(CloseReason::PeerGone),
            Execution::MayHaveRun,
        );
        assert_eq!(error.code(), Code::Unavailable);
        assert!(
            error.to_string().ends_with("the call may have run"),
            "{error}"
        );
        let error = CallError::new(
            Cause::RequestTooLong {
                message_len: 9000,
                limit: 4096,
                exceeded: LengthLimit::Receiver,
            },
            Execution::NeverSent,
        );
        assert_eq!(
            error.to_string(),
            "RESOURCE_EXHAUSTED: the request's message of 9000 bytes exceeds the server's limit of 4096 \
             bytes: raise `max_message_len` on the server; the call was never sent"
        );
        assert_eq!(format!("{error:?}"), error.to_string());
    }

    #[test]
    fn a_response_over_its_budget_exhausts_resources() {
        // 500,000 empty fields of two bytes with a length.
        let bytes = [10, 0].repeat(500_000);
        let error = <ProstCodec as Codec<u64>>::decode(&bytes).unwrap_err();
        let error = CallError::new(Cause::Undecodable(error), Execution::Answered);
        assert_eq!(error.code(), Code::ResourceExhausted);
        let expected = "the message of 1000000 bytes would take more than 8065536 bytes decoded";
        assert!(error.to_string().ends_with(expected), "{error}");
        let error = <ProstCodec as Codec<u64>>::decode(&[8]).unwrap_err();
        let error = CallError::new(Cause::Undecodable(error), Execution::Answered);
        assert_eq!(error.code(), Code::Internal);
    }

    #[test]
    fn a_nested_failure_keeps_its_code_and_its_source() {
        let status = Status::from(CallError::remote(Status::not_found("no user 7")));
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "in a nested call: no user 7");
        assert!(status.source().is_some());
    }
}
