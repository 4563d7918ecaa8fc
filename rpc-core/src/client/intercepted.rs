//! Interceptors of a client: those of a unary call ([`InterceptedCall`]), and what they say before a
//! stream is opened ([`begin_stream`]). They are the same for both kinds of channels.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::call_error::{CallError, Execution};
use crate::intercept::{Chain, Ending, Interception, Later, Messages, Replied, Side, Traffic};
use crate::message::{Head, Request, Response};
use crate::method::MethodSpec;
use crate::status::Status;
use crate::stream::intercepted::InterceptedStream;

/// The future of a unary call through a channel that may have interceptors.
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

    fn method(&self) -> &'static MethodSpec;
    /// Returns the request without its message.
    fn head(&mut self) -> &mut Head;
    fn request_len(&self) -> usize;
    fn response_len(response: &Self::Response) -> usize;
}

/// A unary call between the interceptors of its channel.
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
    Refused,
}

// The call is `Unpin`, and nothing else is pinned.
impl<C: UnaryCall> Unpin for InterceptedCall<'_, C> {}

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
    #[inline(always)]
    fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let asked = match self.state {
            State::Passed => return Poll::Ready(Ok(())),
            State::New => self.interception.begin(self.call.head()),
            State::Waiting(_) => return self.poll_waiting(cx),
            // The future was polled after completion. The contract of `Future` permits any result.
            State::Refused => return Poll::Pending,
        };
        self.asked(asked, cx)
    }

    #[inline(always)]
    fn asked(
        &mut self,
        asked: Result<Option<Later>, Status>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Status>> {
        match asked {
            Ok(None) => {
                self.state = State::Passed;
                Poll::Ready(Ok(()))
            }
            Ok(Some(later)) => {
                self.state = State::Waiting(later);
                self.poll_waiting(cx)
            }
            Err(status) => Poll::Ready(Err(status)),
        }
    }

    #[cold]
    #[inline(never)]
    fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        while let State::Waiting(later) = &mut self.state {
            let decided = ready!(later.poll(cx));
            self.state = match self.interception.go_on(decided, self.call.head())? {
                Some(later) => State::Waiting(later),
                None => State::Passed,
            };
        }
        Poll::Ready(Ok(()))
    }

    #[inline(always)]
    fn end<'b>(&'b mut self, ending: Ending<'b>) {
        self.interception.end(ending, &self.call);
    }

    #[cold]
    #[inline(never)]
    fn refused(&mut self, status: Status) -> CallError {
        self.state = State::Refused;
        let error = refused(status);
        self.end(Ending::Error(&error));
        error
    }

    #[cold]
    #[inline(never)]
    fn end_dropped(&mut self) {
        let code = self.interception.code_of_dropped(None);
        self.end(Ending::Dropped(code));
    }
}

impl<C: UnaryCall> Future for InterceptedCall<'_, C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.get_mut();
        if let Err(status) = ready!(this.poll_begin(cx)) {
            return Poll::Ready(Err(this.refused(status)));
        }
        let mut polled = Pin::new(&mut this.call).poll(cx);
        match &mut polled {
            Poll::Pending => {}
            Poll::Ready(Ok(response)) => {
                let mut reply = Replied::new(response, C::response_len);
                this.end(Ending::Succeeded(&mut reply));
            }
            Poll::Ready(Err(error)) => this.end(Ending::Error(error)),
        }
        polled
    }
}

impl<C: UnaryCall> Drop for InterceptedCall<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if self.interception.has_begun() {
            self.end_dropped();
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

/// Returns the error of a call that an interceptor of this side has refused.
#[cold]
fn refused(status: Status) -> CallError {
    CallError::from_status(status, Execution::NeverSent)
}

/// What interceptors say before a stream is opened: those of the stream, or why it is not opened.
pub(crate) type Begun = Result<Box<InterceptedStream>, CallError>;

/// Asks the interceptors of `chain` whether a stream may be opened.
pub(crate) async fn begin_stream<R>(
    chain: &Arc<Chain>,
    method: &'static MethodSpec,
    request: &mut Request<R>,
) -> Begun {
    let head = request.head_mut();
    let mut stream = Box::new(InterceptedStream::new(Arc::clone(chain), method));
    let mut asked = stream.interception.begin(head);
    loop {
        match asked {
            Ok(None) => return Ok(stream),
            Ok(Some(mut later)) => {
                let decided = poll_fn(|cx| later.poll(cx)).await;
                asked = stream.interception.go_on(decided, head);
            }
            Err(status) => {
                let error = refused(status);
                stream.end(&mut Err(error.clone()));
                return Err(error);
            }
        }
    }
}
