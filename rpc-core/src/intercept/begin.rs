//! [`Begin`]: what an interceptor decides about a call that begins.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::call::Call;
use crate::catch_panic::{Panic, catch_panic};
use crate::status::Status;

/// What [`Interceptor::begin`](super::Interceptor::begin) has decided.
#[must_use]
pub struct Begin(pub(super) Decision);

pub(super) enum Decision {
    Now(Result<(), Status>),
    Later(Later),
}

/// Changes a call, when what its interceptor has waited for is there.
pub(crate) type Change = Box<dyn FnOnce(&mut Call<'_>) -> Result<(), Status> + Send>;

/// The outcome of what an interceptor has waited for.
pub(crate) type Decided = Result<Result<Option<Change>, Status>, Panic>;

/// A decision that an interceptor waits for. It does not refer to the call, which stays where it is.
pub(crate) struct Later(Option<Waiting>);

/// Ends with what changes the call, if anything does.
type Waiting = Pin<Box<dyn Future<Output = Result<Option<Change>, Status>> + Send>>;

impl Begin {
    /// The call goes on.
    pub const PASS: Self = Self(Decision::Now(Ok(())));

    /// The call fails with this status.
    pub fn refuse(status: Status) -> Self {
        Self(Decision::Now(Err(status)))
    }

    /// The outcome of `decision` decides. The call waits for it.
    pub fn later(decision: impl Future<Output = Result<(), Status>> + Send + 'static) -> Self {
        let decision = async { decision.await.map(|()| None) };
        Self(Decision::Later(Later(Some(Box::pin(decision)))))
    }

    /// Waits for `value`, with which `then` decides and may change the call: to add a token which has
    /// to be fetched first, for example.
    ///
    /// ```
    /// use rpc_core::Status;
    /// use rpc_core::intercept::{Begin, Call, Interceptor};
    ///
    /// struct Token;
    ///
    /// impl Interceptor for Token {
    ///     fn begin(&self, _: &mut Call<'_>) -> Begin {
    ///         Begin::later_with(fetch_token(), |token, call| {
    ///             call.metadata_mut().insert("authorization", format!("Bearer {token}"))?;
    ///             Ok(())
    ///         })
    ///     }
    /// }
    ///
    /// async fn fetch_token() -> Result<String, Status> {
    ///     # Ok("secret".to_owned())
    ///     // …
    /// }
    /// ```
    pub fn later_with<V: Send + 'static>(
        value: impl Future<Output = Result<V, Status>> + Send + 'static,
        then: impl FnOnce(V, &mut Call<'_>) -> Result<(), Status> + Send + 'static,
    ) -> Self {
        let decision = async {
            let value = value.await?;
            let change: Change = Box::new(move |call| then(value, call));
            Ok(Some(change))
        };
        Self(Decision::Later(Later(Some(Box::pin(decision)))))
    }
}

impl From<Result<(), Status>> for Begin {
    #[inline]
    fn from(decided: Result<(), Status>) -> Self {
        Self(Decision::Now(decided))
    }
}

impl Later {
    /// Waits for the decision. A panic is caught.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Decided> {
        let Some(waiting) = &mut self.0 else {
            unreachable!("it is there until it is dropped");
        };
        match catch_panic(|| waiting.as_mut().poll(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(decided)) => Poll::Ready(Ok(decided)),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}

impl Drop for Later {
    /// Catches a panic of the future's destructor: the caller may be a poller.
    fn drop(&mut self) {
        let waiting = self.0.take();
        if let Err(panicked) = catch_panic(|| drop(waiting)) {
            log_limited!(
                error,
                "the destructor of what an interceptor waited for panicked: {panicked}"
            );
        }
    }
}

impl fmt::Debug for Begin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Decision::Now(decided) => f.debug_tuple("Now").field(decided).finish(),
            Decision::Later(_) => f.write_str("Later"),
        }
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later")
    }
}
