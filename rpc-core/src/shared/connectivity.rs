//! [`ConnectivityState`]: how a channel stands with its server, and [`Watch`], to be told of it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::transport::ConnectError;

/// How a channel stands with its server. Names and meanings are gRPC's ("gRPC Connectivity Semantics
/// and API").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectivityState {
    /// Not connected, and not about to be: the first call connects.
    Idle,
    /// A connection is being made. Calls wait for it.
    Connecting,
    /// Calls go out.
    Ready,
    /// The latest attempt has failed, and the next one waits. Calls fail at once, unless they
    /// [wait for ready](crate::Request::wait_for_ready).
    TransientFailure,
    /// It will not connect any more.
    Shutdown,
}

impl fmt::Display for ConnectivityState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Ready => "ready",
            Self::TransientFailure => "transient failure",
            Self::Shutdown => "shutdown",
        })
    }
}

/// The state of each poller's connection, and of the channel that is made of them. Off the data path.
#[derive(Debug)]
pub(crate) struct Connectivity(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    states: Vec<ConnectivityState>,
    /// Of the channel: what is told to watchers.
    overall: ConnectivityState,
    /// Counts changes of the overall state.
    version: u64,
    latest_error: Option<Arc<ConnectError>>,
    /// Of each watch, while it waits.
    watches: Slab<Option<Waker>>,
}

impl Connectivity {
    pub(crate) fn new(pollers: usize, state: ConnectivityState) -> Self {
        Self(Mutex::new(Inner {
            states: vec![state; pollers],
            overall: state,
            version: 0,
            latest_error: None,
            watches: Slab::new(),
        }))
    }

    /// One poller's connection has changed.
    pub(crate) fn set(&self, poller: usize, state: ConnectivityState) {
        self.change(poller, state, None);
    }

    /// One poller's attempt has failed.
    pub(crate) fn fail(&self, poller: usize, error: Arc<ConnectError>) {
        self.change(poller, ConnectivityState::TransientFailure, Some(error));
    }

    fn change(&self, poller: usize, state: ConnectivityState, error: Option<Arc<ConnectError>>) {
        let mut inner = self.lock();
        inner.states[poller] = state;
        let any = |wanted| inner.states.contains(&wanted);
        // As gRPC sums up the connections of one channel: the best of them counts.
        let overall = [
            ConnectivityState::Ready,
            ConnectivityState::Connecting,
            ConnectivityState::Idle,
            ConnectivityState::TransientFailure,
        ]
        .into_iter()
        .find(|&state| any(state))
        .unwrap_or(ConnectivityState::Shutdown);
        if error.is_some() {
            inner.latest_error = error;
        }
        let mut wakers: Vec<Waker> = Vec::new();
        if inner.overall != overall {
            inner.overall = overall;
            inner.version += 1;
            let watches = inner.watches.iter_mut();
            wakers = watches.filter_map(|(_, waker)| waker.take()).collect();
        }
        drop(inner);
        for waker in wakers {
            waker.wake();
        }
    }

    pub(crate) fn state(&self) -> ConnectivityState {
        self.lock().overall
    }

    pub(crate) fn latest_error(&self) -> Option<Arc<ConnectError>> {
        self.lock().latest_error.clone()
    }

    /// The state, once it is another than that of `seen`.
    fn poll_changed(
        &self,
        watch: usize,
        seen: &mut u64,
        cx: &mut Context<'_>,
    ) -> Poll<ConnectivityState> {
        let mut inner = self.lock();
        if inner.version != *seen {
            *seen = inner.version;
            return Poll::Ready(inner.overall);
        }
        let before = inner.watches[watch].replace(cx.waker().clone());
        drop(inner);
        drop(before);
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells of changes of a channel's [`ConnectivityState`].
#[derive(Debug)]
pub struct Watch {
    connectivity: Arc<Connectivity>,
    /// Its place among the watches.
    place: usize,
    seen: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let waker = self.connectivity.lock().watches.remove(self.place);
        drop(waker);
    }
}

impl Watch {
    /// Of changes from now on.
    pub(super) fn of(connectivity: &Arc<Connectivity>) -> Self {
        let mut inner = connectivity.lock();
        Self {
            place: inner.watches.insert(None),
            seen: inner.version,
            connectivity: Arc::clone(connectivity),
        }
    }

    /// The next state that is another than the one before. States that lasted while nobody asked
    /// are passed over: what comes is the present one.
    pub async fn changed(&mut self) -> ConnectivityState {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await
    }

    fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<ConnectivityState> {
        self.connectivity
            .poll_changed(self.place, &mut self.seen, cx)
    }

    /// The present state.
    #[must_use]
    pub fn state(&self) -> ConnectivityState {
        self.connectivity.state()
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectivityState::{Connecting, Idle, Ready, Shutdown, TransientFailure};
    use super::*;

    #[test]
    fn the_best_of_the_connections_is_the_channels_state() {
        let connectivity = Connectivity::new(2, Idle);
        let cases = [
            (0, Connecting, Connecting),
            (0, Ready, Ready),
            (1, Connecting, Ready),
            (0, TransientFailure, Connecting),
            (1, TransientFailure, TransientFailure),
            (0, Shutdown, TransientFailure),
            (1, Shutdown, Shutdown),
        ];
        for (poller, state, overall) in cases {
            connectivity.set(poller, state);
            assert_eq!(connectivity.state(), overall, "{poller} {state}");
        }
    }

    #[test]
    fn a_watch_is_told_of_changes_and_of_nothing_else() {
        let connectivity = Arc::new(Connectivity::new(1, Connecting));
        let mut cx = Context::from_waker(Waker::noop());
        let mut watch = Watch::of(&connectivity);
        assert!(watch.poll_changed(&mut cx).is_pending());
        connectivity.set(0, Connecting);
        assert!(watch.poll_changed(&mut cx).is_pending());
        connectivity.set(0, Ready);
        connectivity.set(0, TransientFailure);
        let polled = watch.poll_changed(&mut cx);
        assert_eq!(polled, Poll::Ready(TransientFailure));
        assert!(watch.poll_changed(&mut cx).is_pending());
        drop(watch);
        assert!(connectivity.lock().watches.is_empty());
    }
}
