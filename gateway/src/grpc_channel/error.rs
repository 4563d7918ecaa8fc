//! What fails on the way to a server, and how far the call had got.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use verbline::{CallError, Code, Execution, Status};

/// The reason that a [`GrpcChannel`](crate::GrpcChannel) is not connected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrpcConnectError {
    /// The target has no form that the channel knows.
    #[error("cannot connect to '{target}': {why}")]
    Target {
        /// The target, as the application specified it.
        target: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The roots of the system cannot be used, or the host is no name that a certificate can have.
    #[cfg(feature = "tls")]
    #[error("cannot connect to {target}: {source}")]
    Tls {
        /// The target, as the application specified it.
        target: String,
        /// The reason.
        source: Arc<verbline::tls::TlsError>,
    },
    /// The server cannot be reached, does not speak HTTP/2, or has not proved who it is.
    #[error("cannot connect to {target}: {source}")]
    Connect {
        /// The target, as the application specified it.
        target: String,
        /// The reason.
        source: Arc<io::Error>,
    },
    /// The server has not answered in time.
    #[error("cannot connect to {target}: no answer within {timeout:?}")]
    Timeout {
        /// The target, as the application specified it.
        target: String,
        /// The time limit.
        timeout: Duration,
    },
}

impl GrpcConnectError {
    /// Returns the error of a call that waited for the connection.
    pub(super) fn into_call_error(self) -> CallError {
        let status = Status::unavailable(self.to_string()).with_source(Arc::new(self));
        CallError::from_status(status, Execution::NeverSent)
    }
}

/// Creates the error of a call that no trailers have ended.
#[cold]
pub(super) fn failed(code: Code, message: impl Into<String>, execution: Execution) -> CallError {
    CallError::from_status(Status::new(code, message), execution)
}

/// Converts the error of a request that has been passed to the connection.
///
/// A stream that the server refuses was not looked at (RFC 9113, 8.7). Nor was one behind the last one
/// that a `GOAWAY` without an error names (6.8): h2 ends it with this error, and the others with that of
/// the connection when it ends. But hyper also reports a `GOAWAY` for a stream that it has just opened,
/// whichever the last one is, and does not ask for its body then.
#[cold]
pub(super) fn of_hyper(error: &hyper::Error, body_was_asked_for: bool) -> CallError {
    let of_stream = error
        .source()
        .and_then(|source| source.downcast_ref::<h2::Error>());
    let reason = of_stream.and_then(h2::Error::reason);
    let is_refused = of_stream.is_some_and(|error| {
        let is_left_out = error.is_go_away() && body_was_asked_for;
        error.is_remote()
            && match reason {
                Some(h2::Reason::NO_ERROR) => is_left_out,
                Some(h2::Reason::REFUSED_STREAM) => error.is_reset(),
                _ => false,
            }
    });
    let execution = match is_refused {
        true => Execution::NotStarted,
        false => Execution::MayHaveRun,
    };
    let code = match reason {
        Some(h2::Reason::CANCEL) => Code::Cancelled,
        Some(h2::Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(h2::Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        Some(h2::Reason::REFUSED_STREAM | h2::Reason::NO_ERROR) | None => Code::Unavailable,
        Some(_) => Code::Internal,
    };
    failed(code, with_source(error), execution)
}

/// Returns the text of an error, and that of its source.
pub(super) fn with_source(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
