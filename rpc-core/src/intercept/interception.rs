//! [`Interception`]: the interceptors of one call, from the first `begin` to the last `end`.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::time::Instant;

use super::begin::{Decided, Decision, Later};
use super::call::{About, Call, Side};
use super::chain::Chain;
use super::end::{End, Ending, Messages};
use crate::catch_panic::{Panic, catch_panic};
use crate::message::{Extensions, Head};
use crate::method::MethodSpec;
use crate::status::{Code, Status};

/// The interceptors of one call. Its owner calls [`begin`](Self::begin) once, and [`end`](Self::end)
/// also when it is dropped.
pub(crate) struct Interception<C: Deref<Target = Chain>> {
    chain: C,
    about: About,
    /// The interceptors that have let the call pass and have not seen its end: the first ones of the
    /// chain.
    passed: usize,
}

impl<C: Deref<Target = Chain>> Interception<C> {
    #[inline]
    pub(crate) fn new(chain: C, side: Side, method: &'static MethodSpec) -> Self {
        Self {
            chain,
            about: About {
                side,
                method,
                locals: Extensions::new(),
                began: None,
            },
            passed: 0,
        }
    }

    /// Asks each interceptor, up to the first that refuses the call or has to wait. If one has to wait, its
    /// decision is to be given to [`go_on`](Self::go_on).
    #[inline(always)]
    pub(crate) fn begin(&mut self, request: &mut Head) -> Result<Option<Later>, Status> {
        if self.chain.measures_time {
            self.about.began = Some(self.chain.clock.now());
        }
        self.ask(request)
    }

    /// Goes on with a decision for which the call has waited.
    #[cold]
    pub(crate) fn go_on(
        &mut self,
        decided: Decided,
        request: &mut Head,
    ) -> Result<Option<Later>, Status> {
        let method = self.about.method;
        let panicked = |panicked: Panic| report(&panicked, "begin", method);
        if let Some(change) = decided.map_err(panicked)?? {
            let mut call = Call {
                about: &mut self.about,
                request,
                clock: &self.chain.clock,
            };
            catch_panic(|| change(&mut call)).map_err(panicked)??;
        }
        self.passed += 1;
        self.ask(request)
    }

    #[inline(always)]
    fn ask(&mut self, request: &mut Head) -> Result<Option<Later>, Status> {
        let (chain, passed) = (&*self.chain, &mut self.passed);
        let mut call = Call {
            about: &mut self.about,
            request,
            clock: &chain.clock,
        };
        // One that panics has not let the call pass.
        let asked = catch_panic(|| {
            while let Some(interceptor) = chain.get(*passed) {
                match interceptor.begin(&mut call).0 {
                    Decision::Now(decided) => decided?,
                    Decision::Later(later) => {
                        // The time of the call passes while it waits.
                        call.settle_deadline();
                        return Ok(Some(later));
                    }
                }
                *passed += 1;
            }
            Ok(None)
        });
        asked.unwrap_or_else(|panicked| Err(report(&panicked, "begin", self.about.method)))
    }

    /// Returns true if an interceptor has to see the end of the call.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.passed > 0
    }

    /// Shows the end of the call to the interceptors that have let it pass, the last one first. Does
    /// nothing if they have seen it.
    #[inline(always)]
    pub(crate) fn end<'a>(&'a mut self, ending: Ending<'a>, messages: &'a dyn Messages) {
        let (chain, passed, method) = (&*self.chain, &mut self.passed, self.about.method);
        let mut end = End {
            about: &mut self.about,
            clock: &chain.clock,
            ending,
            messages,
        };
        while *passed > 0 {
            let ended = catch_panic(|| {
                while let Some(interceptor) = chain[..*passed].last() {
                    *passed -= 1;
                    interceptor.end(&mut end);
                }
            });
            // The others see the end nevertheless.
            if let Err(panicked) = ended {
                let _ = report(&panicked, "end", method);
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

/// Drops what an interceptor has left. Its destructor may panic, and the caller may be a poller.
#[cold]
#[inline(never)]
fn drop_values(values: Extensions, method: &'static MethodSpec) {
    if let Err(panicked) = catch_panic(|| drop(values)) {
        let _ = report(&panicked, "drop", method);
    }
}

impl<C: Deref<Target = Chain>> fmt::Debug for Interception<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interception")
            .field("method", &self.about.method.path)
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
        if !self.about.locals.is_empty() {
            drop_values(mem::take(&mut self.about.locals), self.about.method);
        }
    }
}
