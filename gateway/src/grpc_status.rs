//! [`GrpcStatus`]: the end of a call, as its trailers say it.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use verbline::client::Cause;
use verbline::message::bytes::Bytes;
use verbline::{CallError, Code, Execution, Metadata};

use crate::headers::{BASE64, write_metadata};

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(crate) const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
pub(crate) const EXECUTION: HeaderName = HeaderName::from_static("verbline-execution");

/// What `grpc-message` writes as `%` and two digits: everything but printable ASCII, and `%` itself.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// How a call ends.
#[derive(Clone, Debug)]
pub(crate) struct GrpcStatus {
    code: Code,
    message: String,
    details: Bytes,
    metadata: Metadata,
    /// How far a call got that the server's handler has not answered.
    execution: Option<Execution>,
    pushback: Option<Duration>,
    is_torn: bool,
}

impl GrpcStatus {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Bytes::new(),
            metadata: Metadata::new(),
            execution: None,
            pushback: None,
            is_torn: false,
        }
    }

    /// The end of a call that succeeded.
    pub(crate) fn ok(trailing: Metadata) -> Self {
        Self {
            metadata: trailing,
            ..Self::new(Code::Ok, "")
        }
    }

    /// The status of a call that never left the gateway.
    pub(crate) fn never_sent(code: Code, message: impl Into<String>) -> Self {
        Self::new(code, message).with_execution(Execution::NeverSent)
    }

    /// Says how far the call got.
    pub(crate) fn with_execution(mut self, execution: Execution) -> Self {
        self.execution = Some(execution);
        self
    }

    /// The status of a call of which there were attempts before. What they have done is not known here.
    pub(crate) fn after_other_attempts(mut self) -> Self {
        self.execution = self.execution.map(|_| Execution::MayHaveRun);
        self
    }

    /// The status of a request that breaks gRPC's rules, with the code of other servers.
    pub(crate) fn malformed(what: impl fmt::Display) -> Self {
        Self::new(Code::Internal, format!("the request is malformed: {what}"))
    }

    /// The status of a call whose client has gone. Nobody reads it.
    pub(crate) fn torn() -> Self {
        Self {
            is_torn: true,
            ..Self::new(Code::Cancelled, "the request ended before its end")
        }
    }

    pub(crate) fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Returns true if the server knows nothing of the call.
    pub(crate) fn is_never_sent(&self) -> bool {
        self.execution == Some(Execution::NeverSent)
    }

    /// The status of a call that the channel has ended.
    pub(crate) fn from_error(error: &CallError) -> Self {
        let mut status = Self::new(error.code(), sentence(error));
        if let Some(remote) = error.status() {
            status.details = Bytes::copy_from_slice(remote.details());
            status.metadata = remote.metadata().clone();
        }
        status.execution = match error.execution() {
            Execution::Answered => None,
            execution => Some(execution),
        };
        status.pushback = match error.cause() {
            Cause::PushedBack { wait } => Some(*wait),
            _ => error.pushback(),
        };
        status
    }

    /// Writes what follows the last message, or is the whole response if there is no message.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        write_metadata(&self.metadata, headers);
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code.number()));
        if !self.message.is_empty() {
            let message = utf8_percent_encode(&self.message, ENCODED).to_string();
            insert(headers, GRPC_MESSAGE, &message);
        }
        if !self.details.is_empty() {
            insert(headers, GRPC_DETAILS, &BASE64.encode(&self.details));
        }
        if let Some(pushback) = self.pushback {
            // A fraction of a millisecond is not no time.
            let millis = pushback.as_nanos().div_ceil(1_000_000);
            insert(headers, GRPC_PUSHBACK, &millis.to_string());
        }
        if let Some(execution) = self.execution {
            insert(headers, EXECUTION, &execution.to_string().replace(' ', "-"));
        }
    }

    /// Returns the trailers.
    pub(crate) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        self.write(&mut trailers);
        trailers
    }
}

/// What the client may read about a failure. The server's address is not for clients of the gateway.
fn sentence(error: &CallError) -> String {
    match error.cause() {
        Cause::NotConnected { .. } => "the gateway is not connected to its server".to_owned(),
        // Its reason may name the server's address.
        Cause::Disconnected(_) => "the gateway's connection to its server has ended".to_owned(),
        Cause::DeadlineExceeded { latest: Some(_) } => {
            "the deadline passed before the gateway was connected to its server".to_owned()
        }
        _ => error.message().to_owned(),
    }
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // All of them are printable ASCII.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_percent_encoded() {
        let status = GrpcStatus::new(Code::Unknown, "\t\nwith 100 % ☺");
        let trailers = status.trailers();
        assert_eq!(trailers[GRPC_STATUS], "2");
        assert_eq!(trailers[GRPC_MESSAGE], "%09%0Awith 100 %25 %E2%98%BA");
        assert_eq!(trailers.len(), 2);
    }

    #[test]
    fn pushback_is_rounded_up_to_milliseconds() {
        let status = GrpcStatus {
            pushback: Some(Duration::from_micros(1500)),
            ..GrpcStatus::new(Code::Unavailable, "")
        };
        assert_eq!(status.trailers()[GRPC_PUSHBACK], "2");
    }

    #[test]
    fn a_call_that_was_never_sent_says_so() {
        let trailers = GrpcStatus::never_sent(Code::Unavailable, "").trailers();
        assert_eq!(trailers[EXECUTION], "never-sent");
        assert!(!trailers.contains_key(GRPC_MESSAGE));
    }
}
