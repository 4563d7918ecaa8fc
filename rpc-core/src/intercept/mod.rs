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

mod begin;
mod call;
mod chain;
mod end;
mod interception;

use std::sync::Arc;

pub use self::begin::Begin;
pub(crate) use self::begin::{Decided, Later};
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
///     |call: &mut Call<'_>| match call.peer().map(|peer| peer.address()) {
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
    /// Decides whether the call goes on, at once or [later](Begin::later). It may read and change the
    /// metadata of the request, and what only interceptors and the handler see.
    ///
    /// A refusal is the status of the call. On a server, the client learns that the handler did not
    /// start, so that it may try the call again ([`CallError::is_retryable`](crate::CallError::is_retryable)
    /// has the codes). On a client, the call was never sent.
    ///
    /// On a server, the deadline of the call ends a `begin` that waits. On a client it does not: what
    /// `begin` waits for has to end by itself. The call then fails if its deadline has passed.
    fn begin(&self, call: &mut Call<'_>) -> Begin {
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

impl<F> Interceptor for F
where
    F: Fn(&mut Call<'_>) -> Result<(), Status> + Send + Sync + 'static,
{
    #[inline]
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        self(call).into()
    }
}

/// So that one interceptor serves several servers and channels.
impl<I: Interceptor + ?Sized> Interceptor for Arc<I> {
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        (**self).begin(call)
    }

    fn end(&self, end: &mut End<'_>) {
        (**self).end(end);
    }

    fn measures_time(&self) -> bool {
        (**self).measures_time()
    }
}
