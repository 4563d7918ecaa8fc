//! [`catch_panic`]: keeps a panic of application code from ending the poller.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::status::Status;

/// Runs application code and converts a panic to a status.
#[inline(always)]
pub(crate) fn catch_panic<R>(run: impl FnOnce() -> R) -> Result<R, Status> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(output) => Ok(output),
        Err(payload) => Err(status_of(payload)),
    }
}

#[cold]
#[inline(never)]
fn status_of(payload: Box<dyn Any + Send>) -> Status {
    let message = panic_message(&*payload);
    let status = Status::internal(format!("the handler panicked: {message}"));
    // The panic's payload may panic in its destructor. The payload of that second panic is leaked.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(again);
    }
    status
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}
