//! [`HandlerCells`]: a method with its message types, and the futures of its handlers.
//!
//! The four kinds of methods differ in what their handlers take ([`Input`]). All handlers are one
//! future each, whose outcome is a response: with a message, or `Response<()>` if the messages have
//! gone through [`Responses`](crate::Responses).
//!
//! The future of a call is built in a cell and stays there until it completes. Cells are boxed once
//! and refilled with [`Pin::set`], so a method allocates nothing after warm-up.
//!
//! All application code of a server runs here: decoding into the application's types, the handler,
//! its destructors, and encoding. None of it can bring the poller down, because a panic becomes
//! `INTERNAL` for that call alone.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use slab::Slab;

use super::handler::{EncodedResponse, Handler, HandlerKey, RawRequest, Served};
use super::input::{Input, Receiving};
use super::intercepted::Interceptors;
use super::response_lengths::{ResponseLengths, encode, encode_chunks};
use crate::catch_panic::{Panic, catch_panic};
use crate::codec::LongMessage;
use crate::codec::{Allocate, Codec};
use crate::deadline;
use crate::intercept::Later;
use crate::message::Response;
use crate::method::MethodKind;
use crate::status::Status;

/// Memory for a handler's future, which is reused. Boxed, so that a future stays where it is from its
/// first poll until it completes.
type FutureCell<F> = Pin<Box<Option<F>>>;

pub(super) struct HandlerCells<H, F, I: Input, S, Res, X: Interceptors<I>> {
    /// The method, for the log.
    path: &'static str,
    make: H,
    interceptors: X,
    /// Cells without a future.
    free: RefCell<Vec<FutureCell<F>>>,
    /// The futures that are pending, and the responses that wait for a send slot.
    kept: RefCell<Slab<KeptOf<F, I, Res, X>>>,
    /// `I` makes the handler's argument, `S` encodes the response.
    input_and_codec: PhantomData<fn(I, S)>,
}

enum Kept<F, A, Res, C> {
    /// A request whose message is being decoded, with its deadline. The handler's future is made of it.
    Receiving(Receiving<A>, Option<Instant>),
    /// A call that waits for one of its interceptors, with its deadline.
    Waiting(Box<Waiting<A, C>>, Option<Instant>),
    /// With the deadline of its call, and its interceptors.
    Future(FutureCell<F>, Option<Instant>, C),
    Response(Response<Res>),
    /// The future is being polled.
    Polling,
}

/// A call that waits for one of its interceptors.
struct Waiting<A, C> {
    later: Later,
    asked: Asked<A, C>,
}

/// A call whose interceptors have been asked. The handler's future is made of the argument.
struct Asked<A, C> {
    argument: A,
    call: C,
}

/// What a method keeps of a call.
type KeptOf<F, I, Res, X> = Kept<F, <I as Input>::Argument, Res, <X as Interceptors<I>>::Call>;

/// The interceptors' part of a method's call.
type AskedOf<I, X> = Asked<<I as Input>::Argument, <X as Interceptors<I>>::Call>;

impl<H, F, I: Input, S, Res, X: Interceptors<I>> HandlerCells<H, F, I, S, Res, X> {
    pub(super) fn new(path: &'static str, make: H, interceptors: X) -> Self {
        Self {
            path,
            make,
            interceptors,
            free: RefCell::default(),
            kept: RefCell::default(),
            input_and_codec: PhantomData,
        }
    }
}

impl<H, F, I, S, Res, X> HandlerCells<H, F, I, S, Res, X>
where
    F: Future<Output = Result<Response<Res>, Status>>,
    I: Input,
    S: Codec<Res>,
    X: Interceptors<I>,
{
    #[inline(always)]
    fn lengths(&self, response: &Response<Res>) -> Result<ResponseLengths, Status> {
        let is_stream = const { I::KIND.server_streams() };
        ResponseLengths::new::<S, Res>(response, is_stream)
    }

    #[inline]
    fn free_cell(&self) -> FutureCell<F> {
        let cell = self.free.borrow_mut().pop();
        cell.unwrap_or_else(|| Box::pin(None))
    }

    #[cold]
    fn keep(&self, kept: KeptOf<F, I, Res, X>) -> HandlerKey {
        // There is one entry per call in flight, which the 20 index bits of call ids bound.
        HandlerKey(self.kept.borrow_mut().insert(kept) as u32)
    }

    fn begin_poll(&self, key: HandlerKey) -> KeptOf<F, I, Res, X> {
        let kept = &mut self.kept.borrow_mut()[key.0 as usize];
        mem::replace(kept, Kept::Polling)
    }

    fn take_kept(&self, key: HandlerKey) -> Option<KeptOf<F, I, Res, X>> {
        self.kept.borrow_mut().try_remove(key.0 as usize)
    }

    /// Ends a poll: keeps a future that is pending, and frees the cell of one that has completed.
    /// `key` is the entry of a future that was pending before.
    #[inline(always)]
    fn after_poll(
        &self,
        mut cell: FutureCell<F>,
        polled: Result<Result<Option<Served>, Status>, Panic>,
        key: Option<HandlerKey>,
        deadline: Option<Instant>,
        mut call: X::Call,
    ) -> Served {
        let served = match polled {
            Ok(Ok(Some(served))) => served,
            Ok(Ok(None)) => {
                let limit = X::take_limit(&mut call);
                return self.pending(Kept::Future(cell, deadline, call), key, limit);
            }
            Ok(Err(status)) => Served::of_failure(status),
            Err(panicked) => {
                // The future may have panicked before or during its drop. It is not dropped twice.
                let _ = catch_panic(|| cell.as_mut().set(None));
                X::end_panicked(&mut call);
                Served::Failed(panicked.report(self.path))
            }
        };
        if let Some(key) = key {
            self.kept.borrow_mut().remove(key.0 as usize);
        }
        self.free.borrow_mut().push(cell);
        served
    }

    /// Polls the future in `cell`. If it completes, drops it, and encodes its response if it fits.
    /// All of this is application code. Returns `None` if the future is pending.
    #[inline(always)]
    fn poll_and_encode(
        &self,
        mut cell: Pin<&mut Option<F>>,
        cx: &mut Context<'_>,
        out: &mut [u8],
        call: &mut X::Call,
    ) -> Result<Option<Served>, Status> {
        let Some(future) = cell.as_mut().as_pin_mut() else {
            return Err(missing());
        };
        let mut polled = future.poll(cx);
        if let Poll::Ready(outcome) = &mut polled {
            cell.set(None);
            X::end::<S, Res>(call, outcome);
        }
        // The response is encoded where the poll has left it, and moved only if it does not fit.
        if let Poll::Ready(Ok(response)) = &polled {
            let len = self.lengths(response)?;
            if let Some(out) = out.get_mut(..len.total()) {
                encode::<S, Res>(response, len, out)?;
                return Ok(Some(Served::Encoded(len)));
            }
        }
        match polled {
            Poll::Ready(outcome) => {
                let (key, len) = self.keep_response(outcome?)?;
                Ok(Some(Served::Long(key, len)))
            }
            Poll::Pending => Ok(None),
        }
    }

    #[cold]
    fn keep_response(
        &self,
        response: Response<Res>,
    ) -> Result<(HandlerKey, ResponseLengths), Status> {
        let len = self.lengths(&response)?;
        Ok((self.keep(Kept::Response(response)), len))
    }

    /// Keeps what is pending. `key` is its entry if it was pending before, and `limit` its deadline if an
    /// interceptor has limited it.
    #[inline(always)]
    fn pending(
        &self,
        kept: KeptOf<F, I, Res, X>,
        key: Option<HandlerKey>,
        limit: Option<Instant>,
    ) -> Served {
        let key = self.keep_again(kept, key);
        match limit {
            None => Served::Pending(key),
            Some(limit) => Served::PendingUntil(key, Box::new(limit)),
        }
    }

    /// Keeps what is pending. `key` is its entry if it was pending before.
    #[inline(always)]
    fn keep_again(&self, kept: KeptOf<F, I, Res, X>, key: Option<HandlerKey>) -> HandlerKey {
        match key {
            Some(key) => {
                self.kept.borrow_mut()[key.0 as usize] = kept;
                key
            }
            None => self.keep(kept),
        }
    }
}

impl<H, F, I, S, Res, X> HandlerCells<H, F, I, S, Res, X>
where
    H: Fn(I::Argument) -> F,
    F: Future<Output = Result<Response<Res>, Status>>,
    I: Input,
    S: Codec<Res>,
    X: Interceptors<I>,
{
    /// Serves a request whose message is long.
    #[cold]
    #[inline(never)]
    fn serve_long(
        &self,
        request: RawRequest<'_>,
        long: &LongMessage,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Served {
        match catch_panic(|| I::receive_long(request, long)) {
            Ok(Ok(receiving)) => self.receive(receiving, None, request.deadline, cx, out),
            Ok(Err(status)) => Served::NotStarted(status),
            Err(panicked) => Served::NotStarted(panicked.report(self.path)),
        }
    }

    /// Resumes what is no handler's future yet.
    #[cold]
    #[inline(never)]
    fn resume_other(
        &self,
        kept: KeptOf<F, I, Res, X>,
        key: HandlerKey,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Served {
        match kept {
            Kept::Receiving(receiving, deadline) => {
                self.receive(receiving, Some(key), deadline, cx, out)
            }
            Kept::Waiting(waiting, deadline) => self.wait(*waiting, Some(key), deadline, cx, out),
            Kept::Future(..) | Kept::Response(_) | Kept::Polling => Served::Failed(missing()),
        }
    }

    /// Waits for the message of a request, then builds the handler's future and polls it.
    #[cold]
    #[inline(never)]
    fn receive(
        &self,
        mut receiving: Receiving<I::Argument>,
        key: Option<HandlerKey>,
        deadline: Option<Instant>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Served {
        let status = match catch_panic(|| receiving.as_mut().poll(cx)) {
            Ok(Poll::Pending) => {
                let kept = Kept::Receiving(receiving, deadline);
                return Served::Pending(self.keep_again(kept, key));
            }
            Ok(Poll::Ready(Ok(mut argument))) => {
                let mut call = self.interceptors.of_call();
                let decided = X::begin(&mut call, &mut argument);
                return self.go_on(decided, Asked { argument, call }, key, deadline, cx, out);
            }
            Ok(Poll::Ready(Err(status))) => status,
            Err(panicked) => panicked.report(self.path),
        };
        self.not_started(status, key)
    }

    fn not_started(&self, status: Status, key: Option<HandlerKey>) -> Served {
        if let Some(key) = key {
            self.kept.borrow_mut().remove(key.0 as usize);
        }
        Served::NotStarted(status)
    }

    /// Waits for the decision of an interceptor.
    #[cold]
    #[inline(never)]
    fn wait(
        &self,
        mut waiting: Waiting<I::Argument, X::Call>,
        key: Option<HandlerKey>,
        deadline: Option<Instant>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Served {
        // Calls that the interceptor makes inherit the deadline, as those of the handler.
        let scope = deadline::enter(X::deadline(&waiting.asked.call, deadline));
        let polled = waiting.later.poll(cx);
        drop(scope);
        let Poll::Ready(decided) = polled else {
            let limit = X::take_limit(&mut waiting.asked.call);
            let deadline = X::deadline(&waiting.asked.call, deadline);
            return self.pending(Kept::Waiting(Box::new(waiting), deadline), key, limit);
        };
        let mut asked = waiting.asked;
        let decided = X::go_on(&mut asked.call, decided, &mut asked.argument);
        self.go_on(decided, asked, key, deadline, cx, out)
    }

    /// Builds the handler's future and polls it, unless the interceptors have decided otherwise.
    #[cold]
    #[inline(never)]
    fn go_on(
        &self,
        decided: Result<Option<Later>, Status>,
        asked: AskedOf<I, X>,
        key: Option<HandlerKey>,
        deadline: Option<Instant>,
        cx: &mut Context<'_>,
        out: &mut [u8],
    ) -> Served {
        match decided {
            Ok(None) => {}
            Ok(Some(later)) => {
                let waiting = Waiting { later, asked };
                return self.wait(waiting, key, deadline, cx, out);
            }
            Err(status) => {
                // The request is the application's, too.
                if let Err(panicked) = catch_panic(|| drop(asked)) {
                    let _ = panicked.report(self.path);
                }
                return self.not_started(status, key);
            }
        }
        let Asked { argument, mut call } = asked;
        let deadline = X::deadline(&call, deadline);
        let mut cell = self.free_cell();
        let polled = catch_panic(|| {
            let _scope = deadline::enter(deadline);
            cell.as_mut().set(Some((self.make)(argument)));
            self.poll_and_encode(cell.as_mut(), cx, out, &mut call)
        });
        self.after_poll(cell, polled, key, deadline, call)
    }
}

#[cold]
fn missing() -> Status {
    Status::internal("the handler's future is missing. This is a bug in Verbline")
}

impl<H, F, I, S, Res, X> Handler for HandlerCells<H, F, I, S, Res, X>
where
    H: Fn(I::Argument) -> F,
    F: Future<Output = Result<Response<Res>, Status>>,
    I: Input,
    S: Codec<Res>,
    X: Interceptors<I>,
{
    fn kind(&self) -> MethodKind {
        I::KIND
    }

    fn serve(&self, request: RawRequest<'_>, cx: &mut Context<'_>, out: &mut [u8]) -> Served {
        if let Some(long) = request.long {
            return self.serve_long(request, long, cx, out);
        }
        let mut cell = self.free_cell();
        let mut call = self.interceptors.of_call();
        let mut has_started = false;
        let mut waiting = None;
        let polled = catch_panic(|| {
            let mut argument = I::receive(request)?;
            if let Some(later) = X::begin(&mut call, &mut argument)? {
                waiting = Some((later, argument));
                return Ok(None);
            }
            has_started = true;
            let _scope = deadline::enter(X::deadline(&call, request.deadline));
            cell.as_mut().set(Some((self.make)(argument)));
            self.poll_and_encode(cell.as_mut(), cx, out, &mut call)
        });
        if let Some((later, argument)) = waiting {
            self.free.borrow_mut().push(cell);
            let asked = Asked { argument, call };
            return self.go_on(Ok(Some(later)), asked, None, request.deadline, cx, out);
        }
        let deadline = X::deadline(&call, request.deadline);
        match self.after_poll(cell, polled, None, deadline, call) {
            Served::Failed(status) if !has_started => Served::NotStarted(status),
            served => served,
        }
    }

    fn resume(&self, key: HandlerKey, cx: &mut Context<'_>, out: &mut [u8]) -> Served {
        let (mut cell, deadline, mut call) = match self.begin_poll(key) {
            Kept::Future(cell, deadline, call) => (cell, deadline, call),
            other => return self.resume_other(other, key, cx, out),
        };
        let polled = catch_panic(|| {
            let _scope = deadline::enter(deadline);
            self.poll_and_encode(cell.as_mut(), cx, out, &mut call)
        });
        self.after_poll(cell, polled, Some(key), deadline, call)
    }

    fn encode_response(&self, key: HandlerKey, out: &mut [u8]) -> Result<(), Status> {
        let Some(Kept::Response(response)) = self.take_kept(key) else {
            return Err(Status::internal(
                "the handler's response is missing. This is a bug in Verbline",
            ));
        };
        catch_panic(|| {
            let is_stream = const { I::KIND.server_streams() };
            let len = ResponseLengths::within(&response, is_stream, out.len());
            encode::<S, Res>(&response, len, out)?;
            drop(response);
            Ok(())
        })
        .unwrap_or_else(|panicked| Err(panicked.report(self.path)))
    }

    fn encode_chunks(
        &self,
        key: HandlerKey,
        len: ResponseLengths,
        allocate: Allocate<'_>,
    ) -> Result<EncodedResponse, Status> {
        let Some(Kept::Response(response)) = self.take_kept(key) else {
            return Err(Status::internal(
                "the handler's response is missing. This is a bug in Verbline",
            ));
        };
        catch_panic(|| encode_chunks::<S, Res>(response, len, allocate))
            .unwrap_or_else(|panicked| Err(panicked.report(self.path)))
    }

    fn discard(&self, key: HandlerKey) {
        let kept = self.take_kept(key);
        let dropped = catch_panic(|| match kept {
            Some(Kept::Future(mut cell, _, call)) => {
                cell.as_mut().set(None);
                drop(call);
                Some(cell)
            }
            Some(Kept::Receiving(..) | Kept::Waiting(..) | Kept::Response(_) | Kept::Polling)
            | None => None,
        });
        match dropped {
            Ok(cell) => self.free.borrow_mut().extend(cell),
            // The call has ended, so a panic in a destructor can only be logged.
            Err(panicked) => {
                let method = self.path;
                log_limited!(
                    error,
                    for method,
                    method,
                    "the destructor of a handler's future or response panicked: {panicked}"
                );
            }
        }
    }

    #[cfg(feature = "test-util")]
    fn in_use(&self) -> usize {
        self.kept.borrow().len()
    }
}

#[cfg(test)]
mod tests;
