//! [`ReaderTask`]: the task that waits for what arrives on a stream.

use std::mem;
use std::task::Waker;

/// Who has to be woken for the reader.
#[derive(Debug)]
pub(crate) enum ReaderWake {
    /// The future that the poller itself runs, or the handler that it polls.
    Own,
    Other(Waker),
}

/// The task that waits, or that waited last.
#[derive(Debug, Default)]
pub(crate) struct ReaderTask {
    /// Stays when the poller itself polls the task that is woken, for the next time.
    waker: Option<Waker>,
    waits: bool,
    /// The poller itself polls the task: in its turns, or between them.
    is_own: bool,
}

impl ReaderTask {
    /// Notes that the task waits.
    #[inline]
    pub(super) fn wait(&mut self) {
        self.waits = true;
    }

    /// Notes that nobody waits any more. Returns the waker.
    pub(super) fn leave(&mut self) -> Option<Waker> {
        self.waits = false;
        self.waker.take()
    }

    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the place of the waker of the task that waits. It may be another task than the last one.
    #[inline]
    pub(super) fn place(&mut self) -> &mut Option<Waker> {
        self.is_own = false;
        &mut self.waker
    }

    /// Returns true if this is the waker of the latest task, and the poller itself polls that.
    #[inline]
    pub(super) fn is_own(&self, waker: &Waker) -> bool {
        self.is_own && matches!(&self.waker, Some(own) if own.will_wake(waker))
    }

    /// Takes the waker, if the task waits.
    pub(crate) fn wake(&mut self) -> Option<Waker> {
        let waits = mem::take(&mut self.waits);
        if waits { self.waker.take() } else { None }
    }

    /// Like [`wake`](Self::wake), by the poller that polls the task itself if its waker is `own`. That
    /// waker stays: it needs neither to be cloned for the next time nor to be called.
    #[inline(always)]
    pub(crate) fn wake_by(&mut self, own: Option<&Waker>) -> Option<ReaderWake> {
        if !mem::take(&mut self.waits) {
            return None;
        }
        match (&self.waker, own) {
            (Some(waker), Some(own)) if waker.will_wake(own) => {
                self.is_own = true;
                Some(ReaderWake::Own)
            }
            _ => self.waker.take().map(ReaderWake::Other),
        }
    }
}
