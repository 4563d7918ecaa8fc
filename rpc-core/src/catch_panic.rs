//! [`catch_panic`]: keeps a panic of application code from ending the poller.

use std::any::Any;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::status::Status;

/// The message of a panic that was caught.
#[derive(Debug)]
pub(crate) struct Panic(String);

/// Runs application code, and catches its panic.
#[inline(always)]
pub(crate) fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, Panic> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(output) => Ok(output),
        Err(payload) => Err(Panic::new(payload)),
    }
}

impl Panic {
    #[cold]
    #[inline(never)]
    fn new(payload: Box<dyn Any + Send>) -> Self {
        let panic = Self(message_of(&*payload).to_owned());
        // The panic's payload may panic in its destructor. The payload of that second panic is leaked.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            mem::forget(again);
        }
        panic
    }

    /// Continues the panic on another thread, without another report by the panic hook.
    pub(crate) fn resume(self) -> ! {
        resume_unwind(Box::new(self))
    }

    /// Logs the panic of the handler of the method `path`, and returns the status of its call. The
    /// message stays in the log: it may name what the client should not know.
    #[cold]
    #[inline(never)]
    pub(crate) fn report(&self, path: &'static str) -> Status {
        if self.needs_runtime() {
            let remedy = "it uses an async runtime, and a poller has none: serve it with an executor \
                          (`ServerBuilder::executor`)";
            log_limited!(
                error,
                for path,
                method = path,
                "the handler panicked: {remedy}: {self}"
            );
            // For a developer who has not set a log up yet.
            return Status::internal(format!("the handler panicked: {remedy}"));
        }
        log_limited!(error, for path, method = path, "the handler panicked: {self}");
        Status::internal("the handler panicked; the server's log has the reason")
    }

    /// Returns true for the panic of an async runtime's types outside of the runtime.
    fn needs_runtime(&self) -> bool {
        let texts = ["there is no reactor running", "no current reactor"];
        texts.iter().any(|text| self.0.contains(text))
    }
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn message_of(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        // It was caught before.
        .or_else(|| {
            payload
                .downcast_ref()
                .map(|Panic(message)| message.as_str())
        })
        .unwrap_or("(no message)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_does_not_learn_why_a_handler_panicked() {
        let panic = catch_panic(|| panic!("the password is {}", 42)).unwrap_err();
        assert_eq!(panic.to_string(), "the password is 42");
        assert!(!panic.report("a.B/C").to_string().contains("42"));
        assert!(!panic.needs_runtime());
        let again = catch_panic(|| panic.resume()).unwrap_err();
        assert_eq!(again.to_string(), "the password is 42");
    }

    #[test]
    fn a_handler_without_its_runtime_is_told_what_to_do() {
        let panic = catch_panic(|| {
            panic!(
                "there is no reactor running, must be called from the context of a Tokio 1.x runtime"
            )
        });
        let status = panic.unwrap_err().report("a.B/C");
        let message = status.message();
        assert!(message.contains("serve it with an executor"), "{message}");
    }
}
