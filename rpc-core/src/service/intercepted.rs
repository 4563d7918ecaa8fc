//! [`InterceptedCall`]: a call of a server around whose handler interceptors run.
//!
//! A method without interceptors is registered as it is. Those of a method that has some are part of
//! its future, so they run where the handler runs, and see the end of the call when the future is
//! dropped.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::time::Instant;

use super::input::Input;
use crate::codec::Codec;
use crate::deadline;
use crate::intercept::{Chain, Ending, Interception, Replied, Side};
use crate::message::Response;
use crate::method::MethodSpec;
use crate::status::Status;
use crate::stream::intercepted::CallMessages;

/// Runs the handler of a call between the interceptors of `chain`.
pub(super) async fn intercepted<I, S, Res, C, F>(
    chain: C,
    method: &'static MethodSpec,
    mut argument: I::Argument,
    handler: impl FnOnce(I::Argument) -> F,
) -> Result<Response<Res>, Status>
where
    I: Input,
    S: Codec<Res>,
    C: Deref<Target = Chain>,
    F: Future<Output = Result<Response<Res>, Status>>,
{
    let mut call = InterceptedCall {
        interception: Interception::new(chain, Side::Server, method),
        messages: I::messages(&mut argument),
        deadline: I::parts(&mut argument).deadline(),
    };
    if let Err(status) = call.interception.begin(I::parts(&mut argument)).await {
        let mut status = status.into_refusal();
        let ending = Ending::Failed(&mut status);
        call.interception.end(ending, &call.messages);
        return Err(status);
    }
    let deadline = I::parts(&mut argument).deadline();
    let limited = (deadline != call.deadline).then_some(deadline);
    call.deadline = deadline;
    let mut running = pin!(handler(argument));
    let mut outcome = poll_fn(|cx| {
        let _scope = limited.map(deadline::enter);
        running.as_mut().poll(cx)
    })
    .await;
    match &mut outcome {
        Ok(response) => {
            let mut reply = Replied::new(response, S::encoded_len);
            let ending = Ending::Succeeded(&mut reply);
            call.interception.end(ending, &call.messages);
        }
        Err(status) => {
            let ending = Ending::Failed(status);
            call.interception.end(ending, &call.messages);
        }
    }
    outcome
}

/// One call, while its handler runs.
struct InterceptedCall<C: Deref<Target = Chain>> {
    interception: Interception<C>,
    messages: CallMessages,
    deadline: Option<Instant>,
}

impl<C: Deref<Target = Chain>> Drop for InterceptedCall<C> {
    #[inline]
    fn drop(&mut self) {
        if self.interception.has_begun() {
            let code = self.interception.code_of_dropped(self.deadline);
            let ending = Ending::Dropped(code);
            self.interception.end(ending, &self.messages);
        }
    }
}
