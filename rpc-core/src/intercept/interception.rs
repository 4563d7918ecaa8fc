//! [`Interception`]: the interceptors of one call, from the first `begin` to the last `end`.

use std::fmt;
use std::ops::Deref;
use std::time::Instant;

use super::begin::{Begin, Decided, Decision, Later};
use super::call::{Call, Side};
use super::chain::Chain;
use super::end::{End, Ending, Messages};
use crate::catch_panic::{Panic, catch_panic};
use crate::message::{Extensions, Parts};
use crate::method::MethodSpec;
use crate::status::{Code, Status};

/// The interceptors of one call. Its owner calls [`begin`](Self::begin) once, and [`end`](Self::end)
/// also when it is dropped.
pub(crate) struct Interception<C: Deref<Target = Chain>> {
    chain: C,
    side: Side,
    method: &'static MethodSpec,
    /// The interceptors that have let the call pass and have not seen its end: the first ones of the
    /// chain.
    passed: usize,
    locals: Extensions,
    began: Option<Instant>,
}

impl<C: Deref<Target = Chain>> Interception<C> {
    #[inline]
    pub(crate) fn new(chain: C, side: Side, method: &'static MethodSpec) -> Self {
        Self {
            chain,
            side,
            method,
            passed: 0,
            locals: Extensions::new(),
            began: None,
        }
    }

    /// Asks each interceptor, up to the first that refuses the call or has to wait. If one has to wait, its
    /// decision is to be given to [`go_on`](Self::go_on).
    #[inline]
    pub(crate) fn begin(&mut self, request: Parts<'_>) -> Result<Option<Later>, Status> {
        if self.chain.measures_time {
            self.began = Some(self.chain.clock.now());
        }
        self.ask(request)
    }

    /// Goes on with a decision for which the call has waited.
    #[cold]
    pub(crate) fn go_on(
        &mut self,
        decided: Decided,
        mut request: Parts<'_>,
    ) -> Result<Option<Later>, Status> {
        let panicked = |panicked: Panic| report(&panicked, "begin", self.method);
        if let Some(change) = decided.map_err(panicked)?? {
            let mut call = Call {
                side: self.side,
                method: self.method,
                request: request.reborrow(),
                locals: &mut self.locals,
            };
            catch_panic(|| change(&mut call)).map_err(panicked)??;
        }
        self.passed += 1;
        self.ask(request)
    }

    #[inline]
    fn ask(&mut self, request: Parts<'_>) -> Result<Option<Later>, Status> {
        let mut call = Call {
            side: self.side,
            method: self.method,
            request,
            locals: &mut self.locals,
        };
        while let Some(interceptor) = self.chain.get(self.passed) {
            match catch_panic(|| interceptor.begin(&mut call)) {
                Ok(Begin(Decision::Now(decided))) => decided?,
                Ok(Begin(Decision::Later(later))) => return Ok(Some(later)),
                Err(panicked) => return Err(report(&panicked, "begin", self.method)),
            }
            self.passed += 1;
        }
        Ok(None)
    }

    /// Returns true if an interceptor has to see the end of the call.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.passed > 0
    }

    /// Shows the end of the call to the interceptors that have let it pass, the last one first. Does
    /// nothing if they have seen it.
    pub(crate) fn end<'a>(&'a mut self, ending: Ending<'a>, messages: &'a dyn Messages) {
        let since = |began| self.chain.clock.now().saturating_duration_since(began);
        let mut end = End {
            side: self.side,
            method: self.method,
            elapsed: self.began.map(since),
            locals: &mut self.locals,
            ending,
            messages,
        };
        while self.passed > 0 {
            self.passed -= 1;
            let interceptor = &self.chain[self.passed];
            if let Err(panicked) = catch_panic(|| interceptor.end(&mut end)) {
                let _ = report(&panicked, "end", self.method);
            }
        }
    }

    /// Returns the code of a handler that is dropped before it has an answer.
    #[cold]
    pub(crate) fn code_of_dropped(&self, deadline: Option<Instant>) -> Code {
        if std::thread::panicking() {
            return Code::Internal;
        }
        match deadline.is_some_and(|deadline| deadline <= self.chain.clock.now()) {
            true => Code::DeadlineExceeded,
            false => Code::Cancelled,
        }
    }
}

/// Logs the panic of an interceptor, and returns the status of its call.
#[cold]
#[inline(never)]
fn report(panicked: &Panic, function: &'static str, method: &'static MethodSpec) -> Status {
    let path = method.path;
    log_limited!(
        error,
        for path,
        method = path,
        "an interceptor panicked in `{function}`: {panicked}"
    );
    Status::internal("an interceptor panicked; the log has the reason")
}

impl<C: Deref<Target = Chain>> fmt::Debug for Interception<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interception")
            .field("method", &self.method.path)
            .field("passed", &self.passed)
            .finish_non_exhaustive()
    }
}

impl<C: Deref<Target = Chain>> Drop for Interception<C> {
    #[inline]
    fn drop(&mut self) {
        // Its owner ends the call first, and knows how.
        debug_assert_eq!(
            self.passed, 0,
            "a call ended and its interceptors were not told"
        );
    }
}
