//! [`ConnectivityState`], the state of a channel's connection, and [`Watch`], which reports its
//! changes.
//!
//! The five states and their rules are those of gRPC. While the channel is connecting, calls wait.
//! After a failed attempt, calls fail at once, unless they wait for ready.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use crate::method::remote::LatestMethods;
use crate::stream::wakers::wake_all;
use crate::transport::ConnectError;

/// The state of a channel's connection to its server. Names and meanings are gRPC's ("gRPC
/// Connectivity Semantics and API").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectivityState {
    /// Not connected, and no attempt is planned: the first call connects.
    Idle,
    /// A connection attempt is in progress. Calls wait for it.
    Connecting,
    /// Connected: calls are sent.
    Ready,
    /// The latest attempt has failed, and the channel waits before the next one. Calls fail at
    /// once, unless they [wait for ready](crate::Request::wait_for_ready).
    TransientFailure,
    /// The channel will not connect any more.
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

/// The state of each poller's connection, and the channel's overall state. Not used on the data
/// path.
#[derive(Debug)]
pub(crate) struct Connectivity {
    inner: Mutex<Inner>,
    /// For the channel's [dialers](crate::transport::Transport::dialer).
    pub(super) was_protected: Arc<AtomicBool>,
    /// What the server of the latest connection has named.
    pub(super) methods: LatestMethods,
}

#[derive(Debug)]
struct Inner {
    states: Vec<ConnectivityState>,
    /// The channel's state, as reported to watchers.
    overall: ConnectivityState,
    /// Number of changes of the overall state.
    version: u64,
    latest_error: Option<Arc<ConnectError>>,
    /// The waker of each watch that waits.
    watches: Slab<Option<Waker>>,
}

impl Connectivity {
    pub(crate) fn new(pollers: usize, state: ConnectivityState) -> Self {
        Self {
            inner: Mutex::new(Inner {
                states: vec![state; pollers],
                overall: state,
                version: 0,
                latest_error: None,
                watches: Slab::new(),
            }),
            was_protected: Arc::default(),
            methods: LatestMethods::default(),
        }
    }

    /// Records the state of one poller's connection, and the error of an attempt that has failed.
    pub(super) fn set(
        &self,
        poller: usize,
        state: ConnectivityState,
        error: Option<Arc<ConnectError>>,
    ) {
        let mut inner = self.lock();
        inner.states[poller] = state;
        let any = |wanted| inner.states.contains(&wanted);
        // Like gRPC, use the best state of all connections of the channel.
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
        wake_all(wakers);
    }

    pub(crate) fn state(&self) -> ConnectivityState {
        self.lock().overall
    }

    /// Returns the error of the latest failed attempt, unless the channel is connected.
    #[cold]
    pub(crate) fn unready_error(&self) -> Option<Arc<ConnectError>> {
        let inner = self.lock();
        let is_ready = inner.overall == ConnectivityState::Ready;
        inner.latest_error.clone().filter(|_| !is_ready)
    }

    pub(crate) fn latest_error(&self) -> Option<Arc<ConnectError>> {
        self.lock().latest_error.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code under the lock panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports changes of a channel's [`ConnectivityState`].
#[derive(Debug)]
pub struct Watch {
    connectivity: Arc<Connectivity>,
    /// Index among the watches.
    index: usize,
    seen: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let waker = self.connectivity.lock().watches.remove(self.index);
        drop(waker);
    }
}

impl Watch {
    /// Watches for changes from now on.
    pub(super) fn new(connectivity: &Arc<Connectivity>) -> Self {
        let mut inner = connectivity.lock();
        Self {
            index: inner.watches.insert(None),
            seen: inner.version,
            connectivity: Arc::clone(connectivity),
        }
    }

    /// Waits for the next state change and returns the current state. Intermediate states that
    /// occurred between two calls are skipped. After [`ConnectivityState::Shutdown`] there are no more
    /// changes, and it waits for ever.
    pub async fn changed(&mut self) -> ConnectivityState {
        std::future::poll_fn(|cx| self.poll_changed(cx)).await
    }

    fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<ConnectivityState> {
        let mut inner = self.connectivity.lock();
        if inner.version != self.seen {
            self.seen = inner.version;
            return Poll::Ready(inner.overall);
        }
        let before = inner.watches[self.index].replace(cx.waker().clone());
        drop(inner);
        drop(before);
        Poll::Pending
    }

    /// Returns the current state.
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
            connectivity.set(poller, state, None);
            assert_eq!(connectivity.state(), overall, "{poller} {state}");
        }
    }

    #[test]
    fn a_watch_is_told_of_changes_and_of_nothing_else() {
        let connectivity = Arc::new(Connectivity::new(1, Connecting));
        let mut cx = Context::from_waker(Waker::noop());
        let mut watch = Watch::new(&connectivity);
        assert!(watch.poll_changed(&mut cx).is_pending());
        connectivity.set(0, Connecting, None);
        assert!(watch.poll_changed(&mut cx).is_pending());
        connectivity.set(0, Ready, None);
        connectivity.set(0, TransientFailure, None);
        let polled = watch.poll_changed(&mut cx);
        assert_eq!(polled, Poll::Ready(TransientFailure));
        assert!(watch.poll_changed(&mut cx).is_pending());
        drop(watch);
        assert!(connectivity.lock().watches.is_empty());
    }
}
