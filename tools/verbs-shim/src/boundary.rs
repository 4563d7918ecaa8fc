//! The boundary to the program: errors become errnos, and panics `EIO`.

use std::ffi::c_int;
use std::fmt::Display;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::{mem, ptr};

use verbline_verbs::{ModifyError, OpenError, PostErrorReason, VerbsError};

/// An errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);

    /// Makes it of an error, whose sentence is written with `VERBS_SHIM_DEBUG`.
    fn because(number: c_int, error: &dyn Display) -> Self {
        say(error);
        Self(number)
    }
}

/// Writes why a call was refused, if the variable `VERBS_SHIM_DEBUG` is set.
pub(crate) fn say(what: &dyn Display) {
    if std::env::var_os("VERBS_SHIM_DEBUG").is_some() {
        // The program's standard error may be closed.
        let _ = writeln!(io::stderr(), "verbs-shim: {what}");
    }
}

impl From<VerbsError> for Errno {
    fn from(error: VerbsError) -> Self {
        let number = match &error {
            VerbsError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            VerbsError::Exhausted { .. } => libc::ENOMEM,
            VerbsError::NotSupported { .. } => libc::EOPNOTSUPP,
            VerbsError::Forked(_) => libc::EIO,
            _ => libc::EINVAL,
        };
        Self::because(number, &error)
    }
}

impl From<OpenError> for Errno {
    fn from(error: OpenError) -> Self {
        let number = match &error {
            OpenError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::ENODEV,
        };
        Self::because(number, &error)
    }
}

impl From<ModifyError> for Errno {
    fn from(error: ModifyError) -> Self {
        let number = match &error {
            ModifyError::Unreachable { .. } => libc::EHOSTUNREACH,
            ModifyError::Os { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            ModifyError::Draining => libc::EBUSY,
            ModifyError::Forked(_) => libc::EIO,
            _ => libc::EINVAL,
        };
        Self::because(number, &error)
    }
}

impl From<PostErrorReason> for Errno {
    fn from(error: PostErrorReason) -> Self {
        let number = match &error {
            PostErrorReason::QueueFull { .. } => libc::ENOMEM,
            PostErrorReason::Refused { errno } => *errno,
            PostErrorReason::Forked(_) => libc::EIO,
            _ => libc::EINVAL,
        };
        Self::because(number, &error)
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Self::because(error.raw_os_error().unwrap_or(libc::EIO), &error)
    }
}

fn caught<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // Unwinding into C would end the process. Every lock here is used whatever its poison says, and
    // what it guards is consistent between two statements.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO)))
}

fn set_errno(Errno(number): Errno) {
    // SAFETY: the address of this thread's errno, which is always there.
    unsafe { *libc::__errno_location() = number };
}

/// For functions that return 0, or the errno.
pub(crate) fn number(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    caught(body).map_or_else(|Errno(number)| number, |()| 0)
}

/// For functions that return 0 or more, or -1 with `errno`.
pub(crate) fn count(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    caught(body).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// An object that was made for the program, which owns it from then on.
pub(crate) struct Made<T>(pub(crate) *mut T);

impl<T> From<Box<T>> for Made<T> {
    fn from(made: Box<T>) -> Self {
        Self(Box::into_raw(made))
    }
}

/// Keeps signals away from this thread, and from threads that it starts meanwhile: the program's signals
/// are for its own threads, and a handler writes into a stack whose pages are being shared.
pub(crate) struct NoSignals(libc::sigset_t);

impl NoSignals {
    pub(crate) fn new() -> Self {
        // SAFETY: the sets are this function's, and are written before they are read.
        unsafe {
            let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: the set that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// For functions that return an object, or null with `errno`. The object begins with its head, which is
/// what the program sees.
pub(crate) fn object<T, H, M: Into<Made<T>>>(body: impl FnOnce() -> Result<M, Errno>) -> *mut H {
    let signals = NoSignals::new();
    let made = caught(body);
    drop(signals);
    match made {
        Ok(made) => made.into().0.cast(),
        Err(errno) => {
            set_errno(errno);
            ptr::null_mut()
        }
    }
}

/// For functions that return null with `errno` because they are not there.
pub(crate) fn absent<T>() -> *mut T {
    set_errno(Errno::UNSUPPORTED);
    ptr::null_mut()
}

/// Locks, whatever a panic has left: see `caught`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread of a program at a time does between two calls: it enters with the first and leaves with
/// the second.
#[derive(Debug, Default)]
pub(crate) struct Section {
    state: Mutex<SectionState>,
    is_free: Condvar,
}

#[derive(Debug, Default)]
struct SectionState {
    inside: Option<ThreadId>,
    waiting: usize,
}

impl Section {
    /// Waits until no other thread is inside. A thread that is inside stays there.
    pub(crate) fn enter(&self) {
        let this = thread::current().id();
        let mut state = lock(&self.state);
        while state.inside.is_some_and(|other| other != this) {
            state.waiting += 1;
            let waited = self.is_free.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        state.inside = Some(this);
    }

    /// Does nothing in a thread that is not inside.
    pub(crate) fn leave(&self) {
        let mut state = lock(&self.state);
        if state.inside == Some(thread::current().id()) {
            state.inside = None;
            if state.waiting > 0 {
                self.is_free.notify_one();
            }
        }
    }
}

/// How many objects need another one, which is not destroyed before (`EBUSY`).
#[derive(Debug, Default)]
pub(crate) struct Users(AtomicUsize);

impl Users {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn check_none(&self) -> Result<(), Errno> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Errno::BUSY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_is_in_a_section() {
        let (section, inside) = (Section::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        section.enter();
                        assert_eq!(inside.fetch_add(1, Ordering::AcqRel), 0);
                        // Gives the others the chance to be wrong.
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::AcqRel);
                        section.leave();
                    }
                });
            }
        });
        // A thread that is inside may begin again, and one that is not leaves nothing.
        section.enter();
        section.enter();
        thread::scope(|scope| {
            scope.spawn(|| section.leave());
        });
        assert!(lock(&section.state).inside.is_some());
        section.leave();
        assert!(lock(&section.state).inside.is_none());
    }
}
