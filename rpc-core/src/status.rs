//! [`Status`]: the outcome of a failed call, with one of gRPC's seventeen canonical codes.
//!
//! The codes and their meanings come from `google/rpc/code.proto` and from gRPC's "Status codes and
//! their use". Every response header carries the code's number.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::limits::{Direction, MessageLimit};
use crate::metadata::{Metadata, MetadataError};
use crate::peer_sentence::PeerSentence;

/// gRPC's canonical status codes, with their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The caller cancelled the call.
    Cancelled = 1,
    /// An error that fits no other code.
    Unknown = 2,
    /// The request is invalid, whatever the state of the system.
    InvalidArgument = 3,
    /// The deadline passed. The call may have run nevertheless.
    DeadlineExceeded = 4,
    /// The requested entity does not exist.
    NotFound = 5,
    /// The entity to create already exists.
    AlreadyExists = 6,
    /// The caller is authenticated but lacks permission.
    PermissionDenied = 7,
    /// A quota, a size limit or a queue is exhausted.
    ResourceExhausted = 8,
    /// The system is not in the state that the call requires.
    FailedPrecondition = 9,
    /// The call conflicted with a concurrent one. Retry the whole transaction.
    Aborted = 10,
    /// The operation went past the valid range.
    OutOfRange = 11,
    /// The server does not implement this method.
    Unimplemented = 12,
    /// An invariant is broken, which indicates a bug.
    Internal = 13,
    /// The server is unreachable at the moment. A later attempt may succeed.
    Unavailable = 14,
    /// Data is lost or corrupted and cannot be recovered.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, ordered by number.
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

    /// Returns the code with this number, or [`Code::Unknown`] if the number is not assigned. A
    /// later protocol may assign it; gRPC requires its clients to map such numbers to `UNKNOWN`.
    #[must_use]
    pub fn from_number(number: u16) -> Self {
        Self::ALL
            .get(usize::from(number))
            .copied()
            .unwrap_or(Self::Unknown)
    }

    /// Returns the code's number on the wire.
    #[must_use]
    pub fn number(self) -> u16 {
        self as u16
    }

    /// Returns the code with this number, as gRPC's libraries and `google.rpc.Status` hold it, or
    /// [`Code::Unknown`] if the number is not assigned.
    #[must_use]
    pub fn from_i32(number: i32) -> Self {
        u16::try_from(number).map_or(Self::Unknown, Self::from_number)
    }

    /// Returns a sentence about the code, for people.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Ok => "the call succeeded",
            Self::Cancelled => "the caller cancelled the call",
            Self::Unknown => "an error that fits no other code",
            Self::InvalidArgument => "the request is invalid",
            Self::DeadlineExceeded => "the deadline passed before the call completed",
            Self::NotFound => "the requested entity does not exist",
            Self::AlreadyExists => "the entity to create already exists",
            Self::PermissionDenied => "the caller lacks permission",
            Self::ResourceExhausted => "a quota, a size limit or a queue is exhausted",
            Self::FailedPrecondition => "the system is not in the state that the call requires",
            Self::Aborted => "the call conflicted with a concurrent one",
            Self::OutOfRange => "the operation went past the valid range",
            Self::Unimplemented => "the server does not implement the method",
            Self::Internal => "an invariant is broken",
            Self::Unavailable => "the server is unreachable at the moment",
            Self::DataLoss => "data is lost or corrupted and cannot be recovered",
            Self::Unauthenticated => "the caller is not authenticated",
        }
    }

    /// Returns the canonical name, such as `DEADLINE_EXCEEDED`.
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

impl From<i32> for Code {
    fn from(number: i32) -> Self {
        Self::from_i32(number)
    }
}

impl From<Code> for i32 {
    fn from(code: Code) -> Self {
        code.number().into()
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The outcome of a failed call, as reported by its handler. One pointer wide, so that the `Result`
/// around a response adds no cost to a successful call.
#[derive(Clone)]
pub struct Status(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    message: String,
    details: Bytes,
    metadata: Metadata,
    source: Option<Arc<dyn Error + Send + Sync>>,
    /// An interceptor of the server has refused the call, so that its handler was not started.
    is_refusal: bool,
}

impl Status {
    /// Builds the status of a message that is longer than a limit.
    #[cold]
    pub(crate) fn message_too_long(len: usize, limit: MessageLimit, direction: Direction) -> Self {
        let exceeds = limit.kind.exceeded(limit.bytes(), direction);
        Self::resource_exhausted(format!(
            "the {}'s message of {len} bytes {exceeds}",
            direction.name()
        ))
    }

    /// Creates a status from a code and a message for the person who reads the client's log.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            code,
            message: message.into(),
            details: Bytes::new(),
            metadata: Metadata::new(),
            source: None,
            is_refusal: false,
        }))
    }

    /// Sets the details. By gRPC's convention they are an encoded `google.rpc.Status`.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.0.details = details.into();
        self
    }

    /// Sets the metadata that is sent to the client.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.0.metadata = metadata;
        self
    }

    /// Sets the error that caused this status. It stays in this process and is never sent.
    #[must_use]
    pub fn with_source(mut self, source: Arc<dyn Error + Send + Sync>) -> Self {
        self.0.source = Some(source);
        self
    }

    /// Replaces `OK` with `UNKNOWN`: a call that failed has not succeeded.
    pub(crate) fn of_failure(mut self) -> Self {
        if self.0.code == Code::Ok {
            self.0.code = Code::Unknown;
        }
        self
    }

    /// Notes that the call which ends with this status is refused, so that its handler is not started.
    pub(crate) fn into_refusal(self) -> Self {
        let mut status = self.of_failure();
        status.0.is_refusal = true;
        status
    }

    /// Returns true if the call is refused.
    pub(crate) fn is_refusal(&self) -> bool {
        self.0.is_refusal
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the details, which are empty if none were set.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        &self.0.details
    }

    /// Returns the metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Returns the metadata for modification.
    ///
    /// ```
    /// use rpc_core::Status;
    ///
    /// let mut status = Status::not_found("no cart");
    /// status.metadata_mut().insert("cart-id", "17")?;
    /// assert_eq!(status.metadata().get("cart-id"), Some("17"));
    /// # Ok::<(), rpc_core::MetadataError>(())
    /// ```
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.0.metadata
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
            // It may be a peer's.
            write!(f, "{}: {}", self.0.code, PeerSentence::new(&self.0.message))
        }
    }
}

impl Error for Status {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Returns the code that fits an error of input or output, as in tonic.
pub(crate) fn code_of_io(error: &io::Error) -> Code {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::BrokenPipe | Kind::WouldBlock | Kind::WriteZero | Kind::Interrupted => Code::Internal,
        Kind::ConnectionRefused
        | Kind::ConnectionReset
        | Kind::NotConnected
        | Kind::AddrInUse
        | Kind::AddrNotAvailable => Code::Unavailable,
        Kind::AlreadyExists => Code::AlreadyExists,
        Kind::ConnectionAborted => Code::Aborted,
        Kind::InvalidData => Code::DataLoss,
        Kind::InvalidInput => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::PermissionDenied => Code::PermissionDenied,
        Kind::TimedOut => Code::DeadlineExceeded,
        Kind::UnexpectedEof => Code::OutOfRange,
        _ => Code::Unknown,
    }
}

/// Converts an error of input or output, for use with `?` in a handler. The code fits the error's
/// kind, as in tonic.
impl From<io::Error> for Status {
    fn from(error: io::Error) -> Self {
        Self::new(code_of_io(&error), error.to_string()).with_source(Arc::new(error))
    }
}

/// Converts the error of a handler that sets metadata, for use with `?`: the code is `INTERNAL`.
impl From<MetadataError> for Status {
    fn from(error: MetadataError) -> Self {
        Self::internal(error.to_string()).with_source(Arc::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_input_or_output_becomes_a_status() {
        fn handler() -> Result<(), Status> {
            Err(io::Error::new(io::ErrorKind::NotFound, "no such file"))?
        }
        let status = handler().unwrap_err();
        assert_eq!(status.to_string(), "NOT_FOUND: no such file");
        assert!(
            status
                .source()
                .is_some_and(|source| source.is::<io::Error>())
        );
    }

    #[test]
    fn codes_are_numbered_and_named_as_grpc_does() {
        for (number, code) in (0u16..).zip(Code::ALL) {
            assert_eq!(code.number(), number);
            assert_eq!(Code::from_number(number), code);
        }
        assert_eq!(Code::ALL.len(), 17);
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Code::from_number(u16::MAX), Code::Unknown);
        assert_eq!(Code::from(-1), Code::Unknown);
        assert_eq!(Code::from(5), Code::NotFound);
        assert_eq!(i32::from(Code::NotFound), 5);
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
