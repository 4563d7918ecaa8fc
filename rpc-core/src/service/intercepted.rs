//! The interceptors of a server: [`Interceptors`] of a method, and [`on_executor`] for handlers that run there.
//!
//! A method without interceptors is registered with [`NoInterceptors`], of which nothing is left in its
//! code.

use std::future::poll_fn;
use std::mem;
use std::ops::Deref;
use std::pin::pin;
use std::rc::Rc;
use std::time::Instant;

use super::input::Input;
use crate::codec::Codec;
use crate::deadline;
use crate::intercept::{Chain, Decided, Ending, Interception, Later, Replied, Side};
use crate::message::Response;
use crate::method::MethodSpec;
use crate::status::{Code, Status};
use crate::stream::intercepted::CallMessages;

/// The interceptors of a method whose handlers run on the poller.
pub(super) trait Interceptors<I: Input> {
    /// Those of one call. They see its end when this is dropped, if they have not seen it before.
    type Call;

    fn of_call(&self) -> Self::Call;

    /// Asks whether the handler may run. If it has to wait, the decision is to be given to
    /// [`go_on`](Self::go_on).
    fn begin(call: &mut Self::Call, argument: &mut I::Argument) -> Result<Option<Later>, Status>;

    /// Goes on with a decision for which the call has waited.
    fn go_on(
        call: &mut Self::Call,
        decided: Decided,
        argument: &mut I::Argument,
    ) -> Result<Option<Later>, Status>;

    /// Returns the deadline of a call that has begun, which had this deadline before.
    fn deadline(call: &Self::Call, before: Option<Instant>) -> Option<Instant>;

    /// Returns the deadline, once, if an interceptor has limited it.
    fn take_limit(call: &mut Self::Call) -> Option<Instant>;

    /// Shows what the handler has answered.
    fn end<S: Codec<Res>, Res>(call: &mut Self::Call, outcome: &mut Result<Response<Res>, Status>);

    /// Shows the end of a call whose handler has panicked.
    fn end_panicked(call: &mut Self::Call);
}

/// There are none.
pub(super) struct NoInterceptors;

impl<I: Input> Interceptors<I> for NoInterceptors {
    type Call = ();

    #[inline(always)]
    fn of_call(&self) -> Self::Call {}

    #[inline(always)]
    fn begin((): &mut (), _: &mut I::Argument) -> Result<Option<Later>, Status> {
        Ok(None)
    }

    fn go_on((): &mut (), _: Decided, _: &mut I::Argument) -> Result<Option<Later>, Status> {
        Ok(None)
    }

    #[inline(always)]
    fn deadline((): &(), before: Option<Instant>) -> Option<Instant> {
        before
    }

    #[inline(always)]
    fn take_limit((): &mut ()) -> Option<Instant> {
        None
    }

    #[inline(always)]
    fn end<S: Codec<Res>, Res>((): &mut (), _: &mut Result<Response<Res>, Status>) {}

    #[inline(always)]
    fn end_panicked((): &mut ()) {}
}

/// Some of a method. The calls of a poller share them without locked instructions.
pub(super) struct PollerInterceptors {
    chain: Rc<Chain>,
    method: &'static MethodSpec,
}

impl PollerInterceptors {
    pub(super) fn new(chain: &Chain, method: &'static MethodSpec) -> Self {
        Self {
            chain: Rc::new(chain.clone()),
            method,
        }
    }
}

impl<I: Input> Interceptors<I> for PollerInterceptors {
    type Call = InterceptedCall<Rc<Chain>>;

    #[inline]
    fn of_call(&self) -> Self::Call {
        InterceptedCall::new(Rc::clone(&self.chain), self.method)
    }

    #[inline]
    fn begin(call: &mut Self::Call, argument: &mut I::Argument) -> Result<Option<Later>, Status> {
        call.begin::<I>(argument)
    }

    fn go_on(
        call: &mut Self::Call,
        decided: Decided,
        argument: &mut I::Argument,
    ) -> Result<Option<Later>, Status> {
        call.go_on::<I>(decided, argument)
    }

    #[inline]
    fn deadline(call: &Self::Call, _: Option<Instant>) -> Option<Instant> {
        call.deadline
    }

    #[inline]
    fn take_limit(call: &mut Self::Call) -> Option<Instant> {
        match mem::take(&mut call.is_limited) {
            true => call.deadline,
            false => None,
        }
    }

    #[inline]
    fn end<S: Codec<Res>, Res>(call: &mut Self::Call, outcome: &mut Result<Response<Res>, Status>) {
        call.end_with::<S, Res>(outcome);
    }

    #[cold]
    fn end_panicked(call: &mut Self::Call) {
        call.end(Ending::Dropped(Code::Internal));
    }
}

/// Runs a handler between the interceptors of its service, on an executor.
pub(super) async fn on_executor<I, S, Res, F>(
    chain: &Chain,
    method: &'static MethodSpec,
    mut argument: I::Argument,
    make: impl FnOnce(I::Argument) -> F,
) -> Result<Response<Res>, Status>
where
    I: Input,
    S: Codec<Res>,
    F: Future<Output = Result<Response<Res>, Status>>,
{
    let mut call = InterceptedCall::new(chain, method);
    let refusal = |status: Status| status.into_refusal();
    let mut asked = call.begin::<I>(&mut argument).map_err(refusal)?;
    while let Some(mut later) = asked {
        let decided = poll_fn(|cx| later.poll(cx)).await;
        asked = call.go_on::<I>(decided, &mut argument).map_err(refusal)?;
    }
    let deadline = call.deadline;
    let mut handler = pin!(make(argument));
    let mut outcome = poll_fn(|cx| {
        let _scope = deadline::enter(deadline);
        handler.as_mut().poll(cx)
    })
    .await;
    call.end_with::<S, Res>(&mut outcome);
    outcome
}

/// The interceptors of one call.
pub(super) struct InterceptedCall<C: Deref<Target = Chain>> {
    interception: Interception<C>,
    messages: CallMessages,
    /// When the call ends.
    deadline: Option<Instant>,
    /// An interceptor has limited the deadline, and the driver does not know.
    is_limited: bool,
}

impl<C: Deref<Target = Chain>> InterceptedCall<C> {
    #[inline]
    fn new(chain: C, method: &'static MethodSpec) -> Self {
        Self {
            interception: Interception::new(chain, Side::Server, method),
            messages: CallMessages::new(method.kind, Side::Server),
            deadline: None,
            is_limited: false,
        }
    }

    #[inline]
    fn begin<I: Input>(&mut self, argument: &mut I::Argument) -> Result<Option<Later>, Status> {
        I::count(argument, &mut self.messages);
        let head = I::head(argument);
        self.deadline = head.deadline();
        let asked = self.interception.begin(head);
        self.asked::<I>(asked, argument)
    }

    #[cold]
    fn go_on<I: Input>(
        &mut self,
        decided: Decided,
        argument: &mut I::Argument,
    ) -> Result<Option<Later>, Status> {
        let asked = self.interception.go_on(decided, I::head(argument));
        self.asked::<I>(asked, argument)
    }

    #[inline]
    fn asked<I: Input>(
        &mut self,
        asked: Result<Option<Later>, Status>,
        argument: &mut I::Argument,
    ) -> Result<Option<Later>, Status> {
        let deadline = I::head(argument).deadline();
        if deadline != self.deadline {
            self.deadline = deadline;
            self.is_limited = true;
        }
        match asked {
            Ok(asked) => Ok(asked),
            Err(status) => Err(self.refused(status)),
        }
    }

    /// Shows the refusal to the interceptors that have let the call pass.
    #[cold]
    fn refused(&mut self, status: Status) -> Status {
        let mut status = status.of_failure();
        self.end(Ending::Failed(&mut status));
        status
    }

    #[inline(always)]
    fn end_with<S: Codec<Res>, Res>(&mut self, outcome: &mut Result<Response<Res>, Status>) {
        match outcome {
            Ok(response) => {
                let mut reply = Replied::new(response, S::encoded_len);
                self.end(Ending::Succeeded(&mut reply));
            }
            Err(status) => self.end(Ending::Failed(status)),
        }
    }

    #[inline]
    fn end<'a>(&'a mut self, ending: Ending<'a>) {
        self.interception.end(ending, &self.messages);
    }

    #[cold]
    fn end_dropped(&mut self) {
        let code = self.interception.code_of_dropped(self.deadline);
        self.end(Ending::Dropped(code));
    }
}

impl<C: Deref<Target = Chain>> Drop for InterceptedCall<C> {
    #[inline]
    fn drop(&mut self) {
        if self.interception.has_begun() {
            self.end_dropped();
        }
    }
}
