//! Interceptors: code that runs before and after each call, on either side. The rules are those of
//! [`Interceptor`]; `docs/interceptors.md` is the guide.
//!
//! Ready to use are [`BearerCheck`] and [`BearerSource`] for tokens, [`CallLog`] for a line per failed
//! or slow call, and [`MethodDeadlines`].

mod bearer_check;
mod bearer_source;
mod call_log;
mod method_deadlines;

pub use self::bearer_check::BearerCheck;
pub use self::bearer_source::{BearerSource, Token};
pub use self::call_log::CallLog;
pub use self::method_deadlines::MethodDeadlines;

#[doc(inline)]
pub use rpc_core::intercept::{Begin, Call, End, Interceptor, Side, Traffic};

/// The metadata that carries a token, as in HTTP (RFC 6750, section 2.1).
const AUTHORIZATION: &str = "authorization";

#[cfg(test)]
mod tests;
