//! [`Status`]: how a call ended when it did not end well, with gRPC's seventeen canonical codes.
//!
//! Source of the codes and their meanings: `google/rpc/code.proto` and the gRPC core's "Status
//! codes and their use". The numbers travel in every response header.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::metadata::Metadata;

/// gRPC's canonical codes, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Code {
    /// It worked.
    Ok = 0,
    /// The caller gave the call up.
    Cancelled = 1,
    /// Nothing better is known.
    Unknown = 2,
    /// The request is wrong whatever the state of the system.
    InvalidArgument = 3,
    /// The time allowed passed; the call may have run all the same.
    DeadlineExceeded = 4,
    /// What was asked for does not exist.
    NotFound = 5,
    /// What should be made exists already.
    AlreadyExists = 6,
    /// The caller is known and may not do this.
    PermissionDenied = 7,
    /// A quota, a size or a queue is used up.
    ResourceExhausted = 8,
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9,
    /// The call lost against a concurrent one; repeat the whole transaction.
    Aborted = 10,
    /// Past the valid range.
    OutOfRange = 11,
    /// The server has no such method.
    Unimplemented = 12,
    /// An invariant is broken: a bug.
    Internal = 13,
    /// The server cannot be reached now; later it may.
    Unavailable = 14,
    /// Data is lost or corrupted for good.
    DataLoss = 15,
    /// The caller is not known.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The code with this number; [`Code::Unknown`] for a number that a later protocol may use, as
    /// gRPC asks of its clients.
    #[must_use]
    pub fn from_number(number: u16) -> Self {
        Self::ALL
            .get(usize::from(number))
            .copied()
            .unwrap_or(Self::Unknown)
    }

    /// Its number on the wire.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
    }

    /// Its canonical name: `DEADLINE_EXCEEDED`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The outcome of a call that failed, as its handler said it. One pointer wide, so that the
/// `Result` around a response costs nothing while all goes well.
#[derive(Clone)]
pub struct Status(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    message: String,
    details: Bytes,
    metadata: Metadata,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl Status {
    /// A status with a code and a message for the person who reads the client's log.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            details: Bytes::new(),
            metadata: Metadata::new(),
            source: None,
        }))
    }

    /// The same with details: by gRPC's convention an encoded `google.rpc.Status`.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.0.details = details.into();
        self
    }

    /// The same with metadata for the client.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.0.metadata = metadata;
        self
    }

    /// The same with the error that caused it. It stays on this side: it does not travel.
    #[must_use]
    pub fn with_source(mut self, source: Arc<dyn Error + Send + Sync>) -> Self {
        self.0.source = Some(source);
        self
    }

    /// Its code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Its message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Its details, empty if there are none.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        &self.0.details
    }

    /// Its metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }
}

macro_rules! constructors {
    ($($name:ident => $code:ident),* $(,)?) => {
        impl Status {
            $(
                #[doc = concat!("A status with [`Code::", stringify!($code), "`].")]
                #[must_use]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors! {
    cancelled => Cancelled,
    unknown => Unknown,
    invalid_argument => InvalidArgument,
    deadline_exceeded => DeadlineExceeded,
    not_found => NotFound,
    already_exists => AlreadyExists,
    permission_denied => PermissionDenied,
    resource_exhausted => ResourceExhausted,
    failed_precondition => FailedPrecondition,
    aborted => Aborted,
    out_of_range => OutOfRange,
    unimplemented => Unimplemented,
    internal => Internal,
    unavailable => Unavailable,
    data_loss => DataLoss,
    unauthenticated => Unauthenticated,
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Status");
        debug
            .field("code", &self.0.code)
            .field("message", &self.0.message);
        if !self.0.details.is_empty() {
            debug.field("details", &self.0.details);
        }
        if !self.0.metadata.is_empty() {
            debug.field("metadata", &self.0.metadata);
        }
        if let Some(source) = &self.0.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.message.is_empty() {
            write!(f, "{}", self.0.code)
        } else {
            write!(f, "{}: {}", self.0.code, self.0.message)
        }
    }
}

impl Error for Status {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbered_and_named_as_grpc_does() {
        for (number, code) in (0u16..).zip(Code::ALL) {
            assert_eq!(code.number(), number);
            assert_eq!(Code::from_number(number), code);
        }
        assert_eq!(Code::ALL.len(), 17);
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Code::from_number(u16::MAX), Code::Unknown);
        assert_eq!(Code::Unauthenticated.name(), "UNAUTHENTICATED");
    }

    #[test]
    fn a_status_is_one_pointer_wide() {
        assert_eq!(size_of::<Status>(), size_of::<usize>());
        assert_eq!(size_of::<Result<(), Status>>(), size_of::<usize>());
    }

    #[test]
    fn a_status_reads_well() {
        let status = Status::not_found("no user 7");
        assert_eq!(status.to_string(), "NOT_FOUND: no user 7");
        assert_eq!(Status::new(Code::Aborted, "").to_string(), "ABORTED");
    }
}
