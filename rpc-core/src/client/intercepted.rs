//! Interceptors of a client: around a unary call ([`intercepted`]), and before a stream is opened
//! ([`begin_stream`]). They are the same for both kinds of channels.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use crate::call_error::{CallError, Execution};
use crate::intercept::{Chain, Ending, Interception, Messages, Replied, Side, Traffic};
use crate::message::{Parts, Request, Response};
use crate::method::MethodSpec;
use crate::status::Status;
use crate::stream::intercepted::InterceptedStream;

pin_project! {
    /// The future of a call through a channel that may have interceptors.
    #[project = MaybeInterceptedPinned]
    pub(super) enum MaybeIntercepted<C, I> {
        Plain { #[pin] call: C },
        Intercepted { #[pin] call: I },
    }
}

impl<C: Future, I: Future<Output = C::Output>> Future for MaybeIntercepted<C, I> {
    type Output = C::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        match self.project() {
            MaybeInterceptedPinned::Plain { call } => call.poll(cx),
            MaybeInterceptedPinned::Intercepted { call } => call.poll(cx),
        }
    }
}

/// A unary call, which begins when it is polled first.
pub(crate) trait UnaryCall:
    Future<Output = Result<Response<Self::Response>, CallError>> + Unpin
{
    type Response;

    /// Returns the request without its message, whose deadline is decided now.
    fn begin(&mut self) -> Parts<'_>;
    fn method(&self) -> &'static MethodSpec;
    fn request_len(&self) -> usize;
    fn response_len(response: &Self::Response) -> usize;
}

/// Makes a call between the interceptors of `chain`.
pub(crate) async fn intercepted<C: UnaryCall>(chain: &Chain, call: C) -> C::Output {
    let mut call = InterceptedCall {
        interception: Interception::new(chain, Side::Client, call.method()),
        call,
    };
    if let Err(status) = call.interception.begin(call.call.begin()).await {
        let error = refused(status);
        call.end(Ending::Error(&error));
        return Err(error);
    }
    let mut outcome = (&mut call.call).await;
    match &mut outcome {
        Ok(response) => {
            let mut reply = Replied::new(response, C::response_len);
            call.end(Ending::Succeeded(&mut reply));
        }
        Err(error) => call.end(Ending::Error(error)),
    }
    outcome
}

/// Returns the error of a call that an interceptor of this side has refused.
#[cold]
fn refused(status: Status) -> CallError {
    CallError::from_status(status, Execution::NeverSent)
}

struct InterceptedCall<'a, C: UnaryCall> {
    interception: Interception<&'a Chain>,
    call: C,
}

impl<C: UnaryCall> InterceptedCall<'_, C> {
    fn end<'a>(&'a mut self, ending: Ending<'a>) {
        self.interception.end(ending, &self.call);
    }
}

impl<C: UnaryCall> Drop for InterceptedCall<'_, C> {
    fn drop(&mut self) {
        if self.interception.has_begun() {
            let code = self.interception.code_of_dropped(None);
            self.end(Ending::Dropped(code));
        }
    }
}

impl<C: UnaryCall> Messages for C {
    fn requests(&self) -> Traffic {
        Traffic::one(self.request_len())
    }

    fn responses(&self) -> Traffic {
        Traffic::default()
    }
}

/// Asks the interceptors of `chain`, if there is one, whether a stream may be opened. `after` converts
/// a timeout.
pub(crate) async fn begin_stream<R>(
    chain: Option<&Arc<Chain>>,
    method: &'static MethodSpec,
    request: &mut Request<R>,
    after: impl FnOnce(Duration) -> Option<Instant>,
) -> Result<Option<Box<InterceptedStream>>, CallError> {
    let Some(chain) = chain else {
        return Ok(None);
    };
    request.settle_deadline(after);
    let mut stream = Box::new(InterceptedStream::new(Arc::clone(chain), method));
    match stream.interception.begin(request.parts_mut()).await {
        Ok(()) => Ok(Some(stream)),
        Err(status) => {
            let mut end = Err(refused(status));
            stream.end(&mut end);
            end.map(|_| None)
        }
    }
}
