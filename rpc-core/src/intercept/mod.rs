//! [`Interceptor`]: code of the application that runs before and after calls, on either side.
//!
//! Authorisation, tokens, logs, traces and limits of rate are the same for all methods, so they are
//! written once, and given to a server ([`ServerBuilder::interceptor`]), to one service (`interceptor`
//! of a generated `…Server`), or to a channel ([`ChannelBuilder::interceptor`],
//! [`Channel::with_interceptor`], [`LocalChannel::with_interceptor`]).
//!
//! ```text
//!  client                                           server
//!  begin of the first                               decode the request
//!    begin of the second                            begin of the first
//!      encode, send ─────────────────────────────▶    begin of the second
//!                                                       the handler
//!      receive, decode ◀────────────────────────────  end of the second
//!    end of the second                              end of the first
//!  end of the first                                 encode the response
//! ```
//!
//! # Rules
//!
//! - Interceptors begin in the order in which they were added, those of the server before those of a
//!   service, and end in the reverse order. An interceptor whose `begin` refuses a call ends it: no
//!   later one begins, and the handler does not run.
//! - For each `begin` that lets a call pass there is exactly one [`end`](Interceptor::end), whatever
//!   happens to the call: also if its client or its connection is gone, if its future or its handler
//!   is dropped, if its executor drops it, or if it is dropped while a later `begin` waits.
//! - On a server, `begin` runs where the handler runs: on the poller, or on the service's
//!   [`Executor`](crate::Executor). One that waits on a poller must not need a runtime's reactor, as for
//!   handlers. On a client, it runs when the call is polled for the first time.
//! - A panic fails its call with `INTERNAL`, and no other one. A panic in `end` is logged only.
//! - A call of a stream begins when it is opened and ends with its response. Nothing runs for a
//!   message: wrap the stream in the handler for that.
//! - Without interceptors a call costs no instruction more on a server, and a branch on a client.
//!
//! [`ServerBuilder::interceptor`]: crate::ServerBuilder::interceptor
//! [`ChannelBuilder::interceptor`]: crate::ChannelBuilder::interceptor
//! [`Channel::with_interceptor`]: crate::Channel::with_interceptor
//! [`LocalChannel::with_interceptor`]: crate::LocalChannel::with_interceptor

mod call;
mod chain;
mod end;
mod interception;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

pub use self::call::{Call, Side};
pub(crate) use self::chain::Chain;
pub use self::end::{End, Traffic};
pub(crate) use self::end::{Ending, Messages, Replied};
pub(crate) use self::interception::Interception;
use crate::status::Status;

/// Code that runs before and after each call. The rules are those of the [module](self).
///
/// A closure that decides about calls is an interceptor:
///
/// ```
/// use rpc_core::Status;
/// use rpc_core::intercept::{Call, Interceptor};
///
/// fn only_from_this_host() -> impl Interceptor {
///     |call: &mut Call<'_>| match call.peer().and_then(|peer| peer.address()) {
///         Some(address) if address.ip().is_loopback() => Ok(()),
///         _ => Err(Status::permission_denied("this service is for its own host")),
///     }
/// }
/// # let _ = only_from_this_host();
/// ```
///
/// One that looks at the outcome is a type:
///
/// ```
/// use rpc_core::intercept::{Begin, Call, End, Interceptor};
///
/// struct Failures;
///
/// impl Interceptor for Failures {
///     fn measures_time(&self) -> bool {
///         true
///     }
///
///     fn end(&self, end: &mut End<'_>) {
///         if let Some(error) = end.status() {
///             eprintln!("{} failed after {:?}: {error}", end.method().path, end.elapsed());
///         }
///     }
/// }
/// ```
pub trait Interceptor: Send + Sync + 'static {
    /// Decides whether the call goes on, at once or [later](Begin::Later). It may read and change the
    /// metadata of the request, and what only interceptors and the handler see.
    ///
    /// A refusal is the status of the call. On a server, the client learns that the handler did not
    /// start, so that it may try the call again ([`CallError::is_retryable`](crate::CallError::is_retryable)
    /// has the codes). On a client, the call was never sent.
    ///
    /// On a server, the deadline of the call ends a `begin` that waits. On a client it does not: what
    /// `begin` waits for has to end by itself. The call then fails if its deadline has passed.
    fn begin<'a>(&'a self, call: &'a mut Call<'_>) -> Begin<'a> {
        let _ = call;
        Begin::PASS
    }

    /// Looks at the outcome of a call that `begin` has let pass. It may change the metadata of the
    /// response. It must not block.
    fn end(&self, end: &mut End<'_>) {
        let _ = end;
    }

    /// Returns true if `end` needs [`End::elapsed`]. The clock is read twice for each call then, and
    /// not otherwise. Asked once, when the interceptor is added.
    fn measures_time(&self) -> bool {
        false
    }
}

/// What [`Interceptor::begin`] has decided.
#[must_use]
pub enum Begin<'a> {
    /// The call goes on, or fails with this status.
    Now(Result<(), Status>),
    /// The future decides. The call waits for it.
    Later(Pin<Box<dyn Future<Output = Result<(), Status>> + Send + 'a>>),
}

impl<'a> Begin<'a> {
    /// The call goes on.
    pub const PASS: Self = Self::Now(Ok(()));

    /// The call fails with this status.
    pub fn refuse(status: Status) -> Self {
        Self::Now(Err(status))
    }

    /// The outcome of `future` decides.
    pub fn later(future: impl Future<Output = Result<(), Status>> + Send + 'a) -> Self {
        Self::Later(Box::pin(future))
    }
}

impl From<Result<(), Status>> for Begin<'_> {
    fn from(decided: Result<(), Status>) -> Self {
        Self::Now(decided)
    }
}

impl fmt::Debug for Begin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(decided) => f.debug_tuple("Now").field(decided).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

impl<F> Interceptor for F
where
    F: Fn(&mut Call<'_>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn begin<'a>(&'a self, call: &'a mut Call<'_>) -> Begin<'a> {
        Begin::Now(self(call))
    }
}

/// So that one interceptor serves several servers and channels.
impl<I: Interceptor + ?Sized> Interceptor for Arc<I> {
    fn begin<'a>(&'a self, call: &'a mut Call<'_>) -> Begin<'a> {
        (**self).begin(call)
    }

    fn end(&self, end: &mut End<'_>) {
        (**self).end(end);
    }

    fn measures_time(&self) -> bool {
        (**self).measures_time()
    }
}
