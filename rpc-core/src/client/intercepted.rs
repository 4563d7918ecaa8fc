//! Interceptors of a client: around a unary call ([`InterceptedCall`]), and before a stream is opened
//! ([`begin_stream`]). They are the same for both kinds of channels.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::call_error::{CallError, Execution};
use crate::intercept::{Chain, Ending, Interception, Later, Messages, Replied, Side, Traffic};
use crate::message::{Parts, Request, Response};
use crate::method::MethodSpec;
use crate::status::Status;
use crate::stream::intercepted::InterceptedStream;

/// The future of a call through a channel that may have interceptors.
pub(super) enum MaybeIntercepted<'a, C: UnaryCall> {
    Plain(C),
    Intercepted(InterceptedCall<'a, C>),
}

impl<C: UnaryCall> Future for MaybeIntercepted<'_, C> {
    type Output = C::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        match self.get_mut() {
            Self::Plain(call) => Pin::new(call).poll(cx),
            Self::Intercepted(call) => Pin::new(call).poll(cx),
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

/// A call between the interceptors of a channel.
pub(crate) struct InterceptedCall<'a, C: UnaryCall> {
    interception: Interception<&'a Chain>,
    call: C,
    state: State,
}

enum State {
    New,
    /// An interceptor has to decide.
    Waiting(Later),
    /// All interceptors have let the call pass.
    Passed,
}

impl<'a, C: UnaryCall> InterceptedCall<'a, C> {
    #[inline]
    pub(crate) fn new(chain: &'a Chain, call: C) -> Self {
        Self {
            interception: Interception::new(chain, Side::Client, call.method()),
            call,
            state: State::New,
        }
    }

    /// Asks the interceptors whether the call may be made.
    #[inline]
    fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let mut asked = match &mut self.state {
            State::Passed => return Poll::Ready(Ok(())),
            State::New => self.interception.begin(self.call.begin()),
            State::Waiting(later) => {
                let decided = ready!(later.poll(cx));
                self.interception.go_on(decided, self.call.begin())
            }
        };
        while let Some(mut later) = asked? {
            match later.poll(cx) {
                Poll::Ready(decided) => {
                    asked = self.interception.go_on(decided, self.call.begin());
                }
                Poll::Pending => {
                    self.state = State::Waiting(later);
                    return Poll::Pending;
                }
            }
        }
        self.state = State::Passed;
        Poll::Ready(Ok(()))
    }

    fn end<'b>(&'b mut self, ending: Ending<'b>) {
        self.interception.end(ending, &self.call);
    }
}

// The call is `Unpin`, and nothing else is pinned.
impl<C: UnaryCall> Unpin for InterceptedCall<'_, C> {}

impl<C: UnaryCall> Future for InterceptedCall<'_, C> {
    type Output = C::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.get_mut();
        if let Err(status) = ready!(this.poll_begin(cx)) {
            let error = refused(status);
            this.end(Ending::Error(&error));
            return Poll::Ready(Err(error));
        }
        let mut outcome = ready!(Pin::new(&mut this.call).poll(cx));
        match &mut outcome {
            Ok(response) => {
                let mut reply = Replied::new(response, C::response_len);
                this.end(Ending::Succeeded(&mut reply));
            }
            Err(error) => this.end(Ending::Error(error)),
        }
        Poll::Ready(outcome)
    }
}

/// Returns the error of a call that an interceptor of this side has refused.
#[cold]
fn refused(status: Status) -> CallError {
    CallError::from_status(status, Execution::NeverSent)
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

/// Asks the interceptors of `chain` whether a stream may be opened. `after` converts a timeout.
pub(crate) async fn begin_stream<R>(
    chain: &Arc<Chain>,
    method: &'static MethodSpec,
    request: &mut Request<R>,
    after: impl FnOnce(Duration) -> Option<Instant>,
) -> Result<Box<InterceptedStream>, CallError> {
    request.settle_deadline(after);
    let mut stream = Box::new(InterceptedStream::new(Arc::clone(chain), method));
    let mut asked = stream.interception.begin(request.parts_mut());
    loop {
        match asked {
            Ok(None) => return Ok(stream),
            Ok(Some(mut later)) => {
                let decided = poll_fn(|cx| later.poll(cx)).await;
                asked = stream.interception.go_on(decided, request.parts_mut());
            }
            Err(status) => {
                let error = refused(status);
                stream.end(&mut Err(error.clone()));
                return Err(error);
            }
        }
    }
}
