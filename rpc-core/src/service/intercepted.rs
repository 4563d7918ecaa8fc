//! [`Intercepted`]: a call of a server around whose handler interceptors run.
//!
//! A method without interceptors is registered as it is. Those of a method that has some are part of
//! its future, so they run where the handler runs, and see the end of the call when the future is
//! dropped.
//!
//! ```text
//!  new ──▶ all pass ──▶ the handler runs ──▶ end
//!   │         ▲
//!   ├─▶ one waits ─┐
//!   └──────────────┴──▶ one refuses ──▶ end
//! ```

use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use pin_project_lite::pin_project;

use super::input::Input;
use crate::codec::Codec;
use crate::deadline;
use crate::intercept::{Chain, Ending, Interception, Later, Replied, Side};
use crate::message::Response;
use crate::method::MethodSpec;
use crate::status::Status;
use crate::stream::intercepted::CallMessages;

pin_project! {
    /// The future of a call between its interceptors. `F` is the handler's, which `H` makes.
    pub(super) struct Intercepted<C, I, S, F, H>
    where
        C: Deref<Target = Chain>,
        I: Input,
    {
        // Dropped before `call`, which ends then.
        #[pin]
        handler: Option<F>,
        // What is there before the handler runs.
        pending: Option<Pending<I::Argument, H>>,
        call: InterceptedCall<C>,
        codec: PhantomData<fn(S)>,
    }
}

/// A call whose handler does not run.
enum Pending<A, H> {
    /// An interceptor has to decide. Then the handler's future is made of these.
    Waiting(Later, A, H),
    Refused(Status),
}

/// One call, until its interceptors have seen its end.
struct InterceptedCall<C: Deref<Target = Chain>> {
    interception: Interception<C>,
    messages: CallMessages,
    deadline: Option<Instant>,
    /// An interceptor has limited the deadline.
    is_limited: bool,
}

impl<C, I, S, F, H> Intercepted<C, I, S, F, H>
where
    C: Deref<Target = Chain>,
    I: Input,
    H: FnOnce(I::Argument) -> F,
{
    /// Asks the interceptors of `chain`, and makes the handler's future if they let the call pass.
    #[inline]
    pub(super) fn new(
        chain: C,
        method: &'static MethodSpec,
        mut argument: I::Argument,
        make: H,
    ) -> Self {
        let mut call = InterceptedCall {
            interception: Interception::new(chain, Side::Server, method),
            messages: I::messages(&mut argument),
            deadline: I::parts(&mut argument).deadline(),
            is_limited: false,
        };
        let (handler, pending) = match call.interception.begin(I::parts(&mut argument)) {
            Ok(None) => (Some(call.make::<I, F>(argument, make)), None),
            Ok(Some(later)) => (None, Some(Pending::Waiting(later, argument, make))),
            Err(status) => (None, Some(Pending::Refused(status))),
        };
        Self {
            handler,
            pending,
            call,
            codec: PhantomData,
        }
    }
}

impl<C: Deref<Target = Chain>> InterceptedCall<C> {
    /// Makes the handler's future of a call that all interceptors have let pass.
    #[inline]
    fn make<I: Input, F>(
        &mut self,
        mut argument: I::Argument,
        make: impl FnOnce(I::Argument) -> F,
    ) -> F {
        let deadline = I::parts(&mut argument).deadline();
        if deadline != self.deadline {
            self.is_limited = true;
            self.deadline = deadline;
        }
        make(argument)
    }

    /// Waits for a decision, and makes the handler's future if all interceptors let the call pass then.
    #[cold]
    fn poll_pending<I: Input, F, H: FnOnce(I::Argument) -> F>(
        &mut self,
        place: &mut Option<Pending<I::Argument, H>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<F, Status>> {
        loop {
            let (mut later, mut argument, make) = match place.take() {
                Some(Pending::Waiting(later, argument, make)) => (later, argument, make),
                Some(Pending::Refused(status)) => return Poll::Ready(Err(status)),
                None => unreachable!("something is pending"),
            };
            let Poll::Ready(decided) = later.poll(cx) else {
                *place = Some(Pending::Waiting(later, argument, make));
                return Poll::Pending;
            };
            let asked = self.interception.go_on(decided, I::parts(&mut argument));
            match asked {
                Ok(None) => return Poll::Ready(Ok(self.make::<I, F>(argument, make))),
                Ok(Some(later)) => *place = Some(Pending::Waiting(later, argument, make)),
                Err(status) => return Poll::Ready(Err(status)),
            }
        }
    }

    /// Shows the end of the call to its interceptors.
    #[inline]
    fn end<'a>(&'a mut self, ending: Ending<'a>) {
        self.interception.end(ending, &self.messages);
    }
}

impl<C, I, S, F, H, Res> Future for Intercepted<C, I, S, F, H>
where
    C: Deref<Target = Chain>,
    I: Input,
    S: Codec<Res>,
    F: Future<Output = Result<Response<Res>, Status>>,
    H: FnOnce(I::Argument) -> F,
{
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let call = this.call;
        if this.pending.is_some() {
            match ready!(call.poll_pending::<I, F, H>(this.pending, cx)) {
                Ok(handler) => this.handler.set(Some(handler)),
                Err(status) => {
                    let mut status = status.into_refusal();
                    call.end(Ending::Failed(&mut status));
                    return Poll::Ready(Err(status));
                }
            }
        }
        let Some(handler) = this.handler.as_mut().as_pin_mut() else {
            // The future was polled after completion. The contract of `Future` permits any result.
            return Poll::Pending;
        };
        let scope = call.is_limited.then(|| deadline::enter(call.deadline));
        let mut outcome = ready!(handler.poll(cx));
        this.handler.set(None);
        drop(scope);
        match &mut outcome {
            Ok(response) => {
                let mut reply = Replied::new(response, S::encoded_len);
                call.end(Ending::Succeeded(&mut reply));
            }
            Err(status) => call.end(Ending::Failed(status)),
        }
        Poll::Ready(outcome)
    }
}

impl<C: Deref<Target = Chain>> Drop for InterceptedCall<C> {
    #[inline]
    fn drop(&mut self) {
        if self.interception.has_begun() {
            let code = self.interception.code_of_dropped(self.deadline);
            self.end(Ending::Dropped(code));
        }
    }
}
