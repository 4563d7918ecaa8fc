//! [`Forked`]: the error of every call in a child process after `fork(2)`.

/// The process was forked after the device was opened. None of the device's objects works in the
/// child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the device was opened before fork() and works in the parent only; a child has to start a program (exec) that opens its own"
)]
pub struct Forked;
