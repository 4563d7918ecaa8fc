//! [`BearerSource`]: a client's bearer tokens, which are fetched again before they expire.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::intercept::{Begin, Call, Interceptor};
use rpc_core::{Executor, Spawned, Status, block_on};

use super::AUTHORIZATION;

/// A token that was fetched.
#[derive(Clone)]
pub struct Token {
    /// The token itself, without `Bearer`.
    pub value: String,
    /// How long it is valid from now on.
    pub valid_for: Duration,
}

/// Adds a bearer token to each call, on a client: metadata `authorization: Bearer <token>`. Clones
/// share the token, so that several channels fetch it once.
///
/// A token is fetched when the first call needs it, and again when a fifth of its time is left. Calls
/// use the old one meanwhile. While there is no valid token, calls wait for the fetch that is under way,
/// and fail with its status; the next fetch begins a second after one that failed.
///
/// A call waits for as long as the fetch takes, so give the fetch a time limit. The call's own deadline
/// counts, but does not end the wait. A fetch that calls through a channel with the same source would
/// wait for itself: fetch through another channel. A token that a server refuses stays in use until it
/// expires.
///
/// ```
/// use std::time::Duration;
/// use verbline::intercept::{BearerSource, Token};
///
/// let source = BearerSource::new(|| async {
///     // Ask the issuer.
///     Ok(Token { value: "secret".to_owned(), valid_for: Duration::from_secs(3600) })
/// });
/// # let _ = source;
/// ```
#[derive(Clone)]
pub struct BearerSource(Arc<Source>);

struct Source {
    fetch: Box<dyn Fn() -> Fetch + Send + Sync>,
    executor: Box<dyn Executor>,
    state: Mutex<State>,
}

type Fetch = Pin<Box<dyn Future<Output = Result<Token, Status>> + Send>>;

#[derive(Default)]
struct State {
    token: Option<Kept>,
    /// The status of the latest fetch, if it failed, and when.
    failed: Option<(Status, Instant)>,
    is_fetching: bool,
    /// Calls that wait for the fetch, by their numbers.
    waiting: HashMap<u64, Waker>,
    next_waiter: u64,
}

struct Kept {
    /// `Bearer <token>`.
    header: String,
    fetch_from: Instant,
    valid_until: Instant,
}

/// How long no fetch begins after one that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// A token is fetched again when this part of its time is left.
const LEFT: u32 = 5;

impl BearerSource {
    /// Fetches tokens with `fetch`, on a thread that is started for each fetch. A fetch that needs a
    /// runtime goes through [`on`](Self::on).
    pub fn new<Fut>(fetch: impl Fn() -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<Token, Status>> + Send + 'static,
    {
        Self::on(Threads, fetch)
    }

    /// Fetches tokens with `fetch` on `executor`, tokio's for example.
    pub fn on<Fut>(executor: impl Executor, fetch: impl Fn() -> Fut + Send + Sync + 'static) -> Self
    where
        Fut: Future<Output = Result<Token, Status>> + Send + 'static,
    {
        Self(Arc::new(Source {
            fetch: Box::new(move || Box::pin(fetch())),
            executor: Box::new(executor),
            state: Mutex::default(),
        }))
    }

    /// Uses this token, which does not expire.
    #[must_use]
    pub fn fixed(token: &str) -> Self {
        let source = Self::new(|| async { Err(Status::internal("a fixed token is not fetched")) });
        let far = Instant::now() + Duration::from_secs(u64::from(u32::MAX));
        source.0.lock().token = Some(Kept {
            header: format!("Bearer {token}"),
            fetch_from: far,
            valid_until: far,
        });
        source
    }
}

/// Starts a thread for each future.
struct Threads;

impl Executor for Threads {
    fn spawn(&self, future: Spawned) {
        let thread = thread::Builder::new().name("verbline-token".to_owned());
        // Without a thread, the future is dropped, which ends the fetch.
        let _ = thread.spawn(move || block_on(future));
    }
}

/// What a call finds.
enum Found {
    Header(String),
    Failed(Status),
    Wait,
}

impl State {
    /// Wakes a call when the fetch ends. Returns false if there is none.
    fn waits(&mut self, waiter: u64, waker: &Waker) -> bool {
        if self.is_fetching {
            self.waiting.insert(waiter, waker.clone());
        }
        self.is_fetching
    }
}

impl Source {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the token, and begins to fetch one if it is time to.
    fn look(self: &Arc<Self>) -> Found {
        let now = Instant::now();
        let mut state = self.lock();
        let may_fetch = match &state.failed {
            Some((_, at)) => now.saturating_duration_since(*at) >= PAUSE,
            None => true,
        };
        let valid = state.token.as_ref().filter(|token| now < token.valid_until);
        let found = match valid {
            Some(token) => Found::Header(token.header.clone()),
            None if state.is_fetching || may_fetch => Found::Wait,
            None => match &state.failed {
                Some((status, _)) => Found::Failed(status.clone()),
                None => Found::Wait,
            },
        };
        let is_due = valid.is_none_or(|token| now >= token.fetch_from);
        let begins = is_due && may_fetch && !state.is_fetching;
        state.is_fetching |= begins;
        drop(state);
        if begins {
            self.begin_to_fetch();
        }
        found
    }

    fn begin_to_fetch(self: &Arc<Self>) {
        // Ends the fetch if it is dropped or panics.
        let fetching = Fetching(Some(Arc::clone(self)));
        let spawned = catch_unwind(AssertUnwindSafe(|| {
            let fetch = (self.fetch)();
            self.executor.spawn(Box::pin(async move {
                let mut fetching = fetching;
                let fetched = fetch.await;
                if let Some(source) = fetching.0.take() {
                    source.end_fetch(fetched);
                }
            }));
        }));
        if spawned.is_err() {
            tracing::warn!("the function that fetches bearer tokens panicked");
        }
    }

    fn end_fetch(&self, fetched: Result<Token, Status>) {
        let now = Instant::now();
        let mut state = self.lock();
        state.is_fetching = false;
        match fetched {
            Ok(Token { valid_for, .. }) if valid_for.is_zero() => {
                let status = Status::unauthenticated("the token that was fetched is not valid");
                state.failed = Some((status, now));
            }
            Ok(Token { value, valid_for }) => {
                let far = Duration::from_secs(u64::from(u32::MAX));
                let valid_for = valid_for.min(far);
                state.failed = None;
                state.token = Some(Kept {
                    header: format!("Bearer {value}"),
                    fetch_from: now + (valid_for - valid_for / LEFT),
                    valid_until: now + valid_for,
                });
            }
            Err(status) => state.failed = Some((status, now)),
        }
        let waiting = mem::take(&mut state.waiting);
        drop(state);
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    /// Waits for the token.
    async fn wait(self: Arc<Self>) -> Result<String, Status> {
        let waiter = Waiter::new(&self);
        let mut has_waited = false;
        poll_fn(|cx| {
            if self.lock().waits(waiter.number, cx.waker()) {
                has_waited = true;
                return Poll::Pending;
            }
            match self.look() {
                Found::Header(header) => Poll::Ready(Ok(header)),
                Found::Failed(status) => Poll::Ready(Err(status)),
                // A token that is valid for no time would let the call wait for ever.
                Found::Wait if has_waited => Poll::Ready(Err(Status::unauthenticated(
                    "the token that was fetched is not valid any more",
                ))),
                // A fetch has begun, and may have ended.
                Found::Wait => {
                    has_waited = true;
                    if !self.lock().waits(waiter.number, cx.waker()) {
                        cx.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A call that waits. Dropped, it waits no more.
struct Waiter<'a> {
    source: &'a Source,
    number: u64,
}

impl<'a> Waiter<'a> {
    fn new(source: &'a Source) -> Self {
        let mut state = source.lock();
        let number = state.next_waiter;
        state.next_waiter += 1;
        Self { source, number }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let waker = self.source.lock().waiting.remove(&self.number);
        drop(waker);
    }
}

/// A fetch that has not ended.
struct Fetching(Option<Arc<Source>>);

impl Drop for Fetching {
    fn drop(&mut self) {
        if let Some(source) = self.0.take() {
            source.end_fetch(Err(Status::unavailable(
                "the fetch of a bearer token was dropped or panicked",
            )));
        }
    }
}

impl Interceptor for BearerSource {
    fn begin(&self, call: &mut Call<'_>) -> Begin {
        match self.0.look() {
            Found::Header(header) => insert(header, call).into(),
            Found::Failed(status) => Begin::refuse(status),
            Found::Wait => Begin::later_with(Arc::clone(&self.0).wait(), insert),
        }
    }
}

fn insert(header: String, call: &mut Call<'_>) -> Result<(), Status> {
    call.metadata_mut().insert(AUTHORIZATION, header)?;
    Ok(())
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token itself is a secret.
        f.debug_struct("Token")
            .field("valid_for", &self.valid_for)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for BearerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerSource")
    }
}
