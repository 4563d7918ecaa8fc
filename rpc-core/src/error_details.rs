//! Typed details of errors: the standard messages of `google.rpc`, as gRPC sends them.
//!
//! A status has a code and a message for a person. For a program it may have [`ErrorDetails`] as well:
//! which field was not valid, how long to wait, which quota was exceeded.
//!
//! ```
//! use rpc_core::error_details::{BadRequest, bad_request::FieldViolation};
//! use rpc_core::{CallError, Code, Status};
//!
//! // The handler:
//! fn no_name() -> Status {
//!     let violation = FieldViolation {
//!         field: "name".to_owned(),
//!         description: "a greeting needs a name".to_owned(),
//!         ..FieldViolation::default()
//!     };
//!     let field_violations = vec![violation];
//!     let details = BadRequest { field_violations };
//!     Status::with_error_details(Code::InvalidArgument, "no name", details)
//! }
//!
//! // The client:
//! fn invalid_fields(error: &CallError) -> Vec<String> {
//!     let details = error.error_details().unwrap_or_default();
//!     let violations = details.bad_request.unwrap_or_default().field_violations;
//!     violations.into_iter().map(|violation| violation.field).collect()
//! }
//! # assert!(no_name().error_details().unwrap().bad_request.is_some());
//! # let _ = invalid_fields;
//! ```
//!
//! The bytes are an encoded `google.rpc.Status` ([`messages::Status`]), which gRPC's libraries carry in
//! the trailer `grpc-status-details-bin`. So a proxy can pass them on as they are.

use std::time::Duration;

use prost::{Message, Name};
use prost_types::Any;

use crate::call_error::CallError;
use crate::codec::{Codec, DecodeError, ProstCodec};
use crate::status::{Code, Status};

pub use self::messages::{
    BadRequest, DebugInfo, ErrorInfo, Help, LocalizedMessage, PreconditionFailure, QuotaFailure,
    RequestInfo, ResourceInfo, RetryInfo, bad_request, help, precondition_failure, quota_failure,
};

/// The messages, generated from `proto/google/rpc`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod messages {
    include!("error_details/google.rpc.rs");
}

/// The details of an error: at most one of each standard type, and any others.
///
/// Every standard message converts into `ErrorDetails` with this message alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorDetails {
    /// The cause, for programs to compare.
    pub error_info: Option<ErrorInfo>,
    /// When the client may try again.
    pub retry_info: Option<RetryInfo>,
    /// Information for the developers of the server.
    pub debug_info: Option<DebugInfo>,
    /// The quotas that the call exceeded.
    pub quota_failure: Option<QuotaFailure>,
    /// The conditions of the call that did not hold.
    pub precondition_failure: Option<PreconditionFailure>,
    /// The fields of the request that were not valid.
    pub bad_request: Option<BadRequest>,
    /// The call that failed, to find it again.
    pub request_info: Option<RequestInfo>,
    /// The resource that the call was about.
    pub resource_info: Option<ResourceInfo>,
    /// Where to read more.
    pub help: Option<Help>,
    /// A message for the user.
    pub localized_message: Option<LocalizedMessage>,
    /// Messages of other types, and further ones of the types above.
    pub other: Vec<Any>,
}

macro_rules! standard {
    ($($field:ident: $message:ident),* $(,)?) => {
        impl ErrorDetails {
            /// Returns all details, the standard ones first.
            fn to_any(&self) -> Vec<Any> {
                let mut all = Vec::new();
                $(all.extend(self.$field.as_ref().map(to_any));)*
                all.extend_from_slice(&self.other);
                all
            }

            /// Adds a detail that was received.
            fn add(&mut self, any: Any) -> Result<(), ErrorDetailsError> {
                $(
                    if self.$field.is_none() && is_a::<$message>(&any) {
                        self.$field = Some(from_any(&any)?);
                        return Ok(());
                    }
                )*
                self.other.push(any);
                Ok(())
            }
        }

        $(
            impl From<$message> for ErrorDetails {
                fn from(message: $message) -> Self {
                    Self {
                        $field: Some(message),
                        ..Self::default()
                    }
                }
            }
        )*
    };
}

standard! {
    error_info: ErrorInfo,
    retry_info: RetryInfo,
    debug_info: DebugInfo,
    quota_failure: QuotaFailure,
    precondition_failure: PreconditionFailure,
    bad_request: BadRequest,
    request_info: RequestInfo,
    resource_info: ResourceInfo,
    help: Help,
    localized_message: LocalizedMessage,
}

fn to_any<M: Message + Name>(message: &M) -> Any {
    Any {
        type_url: M::type_url(),
        value: message.encode_to_vec(),
    }
}

/// Returns true if the message is an `M`, whatever the domain of its type URL is.
fn is_a<M: Name>(any: &Any) -> bool {
    let name = any.type_url.rsplit('/').next();
    name == Some(M::full_name().as_str())
}

fn from_any<M: Message + Default + 'static>(any: &Any) -> Result<M, ErrorDetailsError> {
    <ProstCodec as Codec<M>>::decode(&any.value).map_err(|source| ErrorDetailsError::Detail {
        type_url: any.type_url.clone(),
        source,
    })
}

/// The reason that the details of a status could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorDetailsError {
    /// The details are not a `google.rpc.Status`.
    #[error("the details of the status are not an encoded google.rpc.Status")]
    NotAStatus(#[source] DecodeError),
    /// One of the details does not decode as its type.
    #[error("a detail of the status is not an encoded {type_url}")]
    Detail {
        /// The type that the detail claims to have.
        type_url: String,
        /// The error of decoding it.
        source: DecodeError,
    },
}

impl Status {
    /// Creates a status with typed details: [`ErrorDetails`], or one of the standard messages.
    #[must_use]
    pub fn with_error_details(
        code: Code,
        message: impl Into<String>,
        details: impl Into<ErrorDetails>,
    ) -> Self {
        let encoded = messages::Status {
            code: i32::from(code.number()),
            message: message.into(),
            details: details.into().to_any(),
        };
        let details = encoded.encode_to_vec();
        Self::new(code, encoded.message).with_details(details)
    }

    /// Returns the typed details. All of them are empty if the status has no details.
    ///
    /// # Errors
    ///
    /// Returns an error if the details are not those of [`with_error_details`], or of another library
    /// that keeps to gRPC's convention.
    ///
    /// [`with_error_details`]: Self::with_error_details
    pub fn error_details(&self) -> Result<ErrorDetails, ErrorDetailsError> {
        let decoded = <ProstCodec as Codec<messages::Status>>::decode(self.details());
        let decoded = decoded.map_err(ErrorDetailsError::NotAStatus)?;
        let mut details = ErrorDetails::default();
        for any in decoded.details {
            details.add(any)?;
        }
        Ok(details)
    }
}

impl CallError {
    /// Returns the typed details of the server's status. All of them are empty if the status has no
    /// details, or if this side failed the call.
    ///
    /// # Errors
    ///
    /// Returns an error as [`Status::error_details`] does.
    pub fn error_details(&self) -> Result<ErrorDetails, ErrorDetailsError> {
        self.status()
            .map_or_else(|| Ok(ErrorDetails::default()), Status::error_details)
    }
}

impl RetryInfo {
    /// Creates the detail that asks the client to wait for this long.
    #[must_use]
    pub fn after(delay: Duration) -> Self {
        // A delay that the message cannot hold, of many times the age of the universe, is left out.
        let retry_delay = prost_types::Duration::try_from(delay).ok();
        Self { retry_delay }
    }

    /// Returns how long the client is to wait, or `None` if that is not said or negative.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.retry_delay?.try_into().ok()
    }
}
