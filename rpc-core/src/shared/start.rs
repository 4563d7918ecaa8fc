//! [`Start`]: waits until the pollers of a new channel have connected.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use super::error::ChannelError;
use crate::stream::wakers::wake_all;

/// The progress of a channel's initial connection, over all pollers.
#[derive(Debug)]
pub struct Start(Mutex<StartState>);

#[derive(Debug)]
struct StartState {
    outstanding: usize,
    error: Option<ChannelError>,
    waker: Option<Waker>,
}

impl Start {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(StartState {
            outstanding: 0,
            error: None,
            waker: None,
        })))
    }

    /// Waits for so many pollers. Called before any of them begins.
    pub(super) fn expect(&self, pollers: usize) {
        self.lock().outstanding = pollers;
    }

    fn lock(&self) -> MutexGuard<'_, StartState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, outcome: Result<(), ChannelError>) {
        let mut state = self.lock();
        state.outstanding = state.outstanding.saturating_sub(1);
        if let Err(error) = outcome {
            state.error.get_or_insert(error);
        }
        let waker = state.waker.take();
        drop(state);
        wake_all(waker);
    }

    pub(super) fn poll(&self, waker: &Waker) -> Poll<Result<(), ChannelError>> {
        let mut state = self.lock();
        if let Some(error) = state.error.take() {
            return Poll::Ready(Err(error));
        }
        if state.outstanding == 0 {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(waker.clone());
        Poll::Pending
    }
}

/// Reports one poller's outcome to [`Start`], if anyone waits for it, exactly once, even if the
/// poller's thread panics.
#[derive(Debug)]
pub(super) struct Report(pub(super) Option<Arc<Start>>);

impl Report {
    /// Returns true if somebody waits for the outcome.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.is_some()
    }

    /// Reports the outcome of the first attempt. Later ones are of no interest.
    pub(super) fn send(&mut self, outcome: Result<(), ChannelError>) {
        if let Some(start) = self.0.take() {
            start.report(outcome);
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.send(Err(ChannelError::PollerPanicked));
    }
}
