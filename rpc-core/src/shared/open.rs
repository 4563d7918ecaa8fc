//! Opens a channel: makes its ends at the callers and at its pollers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use crossbeam_channel::{bounded, never};

use super::backoff::Backoff;
use super::channel::Channel;
use super::connectivity::{Connectivity, ConnectivityState};
use super::dial_threads::DialThreads;
use super::error::ChannelError;
use super::notices::{Inbox, Notices};
use super::oneshot;
use super::permits::CallPermits;
use super::polled_channel::NewChannel;
use super::poller::SharedPoller;
use super::poller_state::{PollerRef, PollerState, Reserved};
use super::reconnect::Target;
use super::submissions::{PollerHandle, Shared};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::intercept::Interceptor;
use crate::limits::Intents;
use crate::poller::cores::{self, PinnedThread, PollerCore};
use crate::poller::{CONNECT_TIMEOUT, check_connect_timeout};
use crate::protocol::session::clamp_in_flight;
use crate::service::dispatch::Methods;
use crate::transport::{ConnectError, Fabric, Transport};

/// Connections of a channel at a poller: one that accepts calls, and one that its server is ending,
/// while the last calls of that one finish.
pub(super) const CONNECTIONS: u32 = 2;

/// Upper limit of the delay before the first reconnect attempt: short enough to find a restarted
/// server soon, long enough to spread a thousand clients over time.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// Upper limit of every delay: a person who has repaired the server should not wait longer for
/// clients to reconnect.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// The settings that concern one channel alone.
#[derive(Clone)]
pub struct ChannelSettings {
    pub(super) address: String,
    pub(super) pollers: usize,
    /// Whether to connect only for the first call.
    pub(super) is_lazy: bool,
    pub(super) max_in_flight: Option<u32>,
    pub(super) connect_timeout: Duration,
    pub(super) waits_for_ready: bool,
    pub(super) backoff: (Duration, Duration),
    /// That of its pollers.
    pub(super) latency_sampling: u32,
    pub(super) interceptors: Vec<Arc<dyn Interceptor>>,
}

impl ChannelSettings {
    /// The defaults, for a server at `address`.
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            pollers: 1,
            is_lazy: true,
            max_in_flight: None,
            connect_timeout: CONNECT_TIMEOUT,
            waits_for_ready: false,
            backoff: (FIRST_BACKOFF, LONGEST_BACKOFF),
            latency_sampling: Intents::default().latency_sampling,
            interceptors: Vec::new(),
        }
    }

    /// Checks the time limit, the form of the address, as its device does, and that the process was not
    /// forked after the device was opened: before any lock, which another thread may have held then.
    pub(super) fn check(
        &self,
        check_address: impl FnOnce(&str) -> io::Result<()>,
        is_forked: fn() -> bool,
    ) -> Result<(), ChannelError> {
        check_connect_timeout(self.connect_timeout)?;
        check_address(&self.address).map_err(|source| {
            let address = self.address.clone();
            ChannelError::Connect(Arc::new(ConnectError::Address { address, source }))
        })?;
        match is_forked() {
            true => Err(ChannelError::Forked),
            false => Ok(()),
        }
    }
}

/// The outcomes of a channel's first attempts to connect, one at each of its pollers.
pub struct Connecting(Vec<oneshot::Receiver<Result<(), ChannelError>>>);

impl Connecting {
    /// Waits until all attempts have succeeded, or for the first error.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        let mut first_error = None;
        self.0.retain(|outcome| match outcome.poll_take(cx) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                let outcome = outcome.unwrap_or(Err(ChannelError::PollerPanicked));
                first_error = first_error.take().or(outcome.err());
                false
            }
        });
        match first_error {
            Some(error) => Poll::Ready(Err(error)),
            None if self.0.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }
}

/// Opens a channel with up to `permits` calls in flight at each of the reserved pollers. `hand_over`
/// passes it to the poller with this index. `is_forked` is that of the pollers' device.
pub(super) fn channel(
    settings: ChannelSettings,
    reserved: Vec<Reserved>,
    permits: u32,
    clock: Clock,
    is_forked: fn() -> bool,
    mut hand_over: impl FnMut(usize, &PollerRef, NewChannel) -> Result<(), ChannelError>,
) -> Result<(Channel, Connecting), ChannelError> {
    let state = match settings.is_lazy {
        true => ConnectivityState::Idle,
        false => ConnectivityState::Connecting,
    };
    let connectivity = Arc::new(Connectivity::new(reserved.len(), state));
    let count = clamp_in_flight(permits);
    let (mut pollers, mut connecting) = (Vec::new(), Vec::new());
    for (index, reserved) in reserved.into_iter().enumerate() {
        let (submissions, receiver) = bounded(count as usize);
        let (poller, number) = reserved.into_parts();
        let handle = PollerHandle {
            address: settings.address.clone(),
            permits: Arc::new(CallPermits::new(count, &poller.waits)),
            submissions,
            notices: Arc::new(Notices::default()),
            health: Arc::default(),
            number,
            poller,
        };
        let report = (!settings.is_lazy).then(|| {
            let (report, outcome) = oneshot::oneshot();
            connecting.push(outcome);
            report
        });
        let new = NewChannel {
            number,
            target: Target {
                index,
                address: settings.address.clone(),
                connect_timeout: settings.connect_timeout,
                backoff: Backoff::new(settings.backoff.0, settings.backoff.1),
                connectivity: Arc::clone(&connectivity),
                health: Arc::clone(&handle.health),
            },
            inbox: Inbox::new(&handle.address, &handle.permits, receiver, &handle.notices),
            report,
        };
        hand_over(index, &handle.poller, new)?;
        pollers.push(handle);
    }
    let shared = Shared {
        address: settings.address,
        pollers: pollers.into(),
        next: AtomicUsize::new(0),
        connectivity,
        waits_for_ready: settings.waits_for_ready,
        latency_sampling: settings.latency_sampling,
        clock,
        is_forked,
    };
    let channel = Channel::new(shared, &settings.interceptors);
    Ok((channel, Connecting(connecting)))
}

/// Runs a poller for one channel, on its thread.
pub(super) fn run_one<F: Fabric>(
    fabric: &F,
    intents: &Intents,
    core: Option<PollerCore>,
    state: Arc<PollerState>,
    mut new: NewChannel,
) {
    let open = AssertUnwindSafe(|| open_device(fabric, intents, &core, &mut new));
    let (transport, pinned) = match catch_unwind(open) {
        Ok(Some(opened)) => opened,
        Ok(None) => return,
        Err(panic) => {
            // In this order, so that no caller waits: see `PollerHandle::submit`.
            state.close();
            new.refuse();
            resume_unwind(panic);
        }
    };
    state.set_limits(transport.limits(), &pinned);
    let driver = Driver::new(transport, Methods::new(), Clock::system());
    let dial_threads = Arc::new(DialThreads::new(fabric));
    let mut poller = SharedPoller::new(driver, state, never(), Rc::new(dial_threads));
    poller.add(new);
    poller.run(intents.waiting);
}

/// Opens the device of a channel's poller. If it cannot be opened, the calls of a lazy channel get
/// the error, and the device is opened again after growing delays: its port may be down, or the
/// machine may be short of memory, for a while. Returns `None` once the channel has been dropped, or if
/// somebody waits for its first connection, who gets the error.
fn open_device<F: Fabric>(
    fabric: &F,
    intents: &Intents,
    core: &Option<PollerCore>,
    new: &mut NewChannel,
) -> Option<(F::Transport, Option<PinnedThread>)> {
    let mut failures = 0_u64;
    loop {
        let error = match cores::open_on(fabric, core.clone(), intents) {
            Ok(opened) => {
                if failures > 0 {
                    new.target.backoff.succeed();
                    new.target.report(ConnectivityState::Idle);
                }
                break Some(opened);
            }
            Err(error) => error,
        };
        if let Some(report) = new.report.take() {
            tracing::error!(%error, "cannot open the device of a channel's poller");
            report.send(Err(error.into()));
            break None;
        }
        failures += 1;
        if failures.is_power_of_two() {
            tracing::error!(
                failures,
                %error,
                "cannot open the device of a channel's poller; trying again after growing delays, and \
                 logging at powers of two of the failed attempts"
            );
        }
        let error = Arc::new(ConnectError::Device {
            address: new.target.address.clone(),
            source: error.into(),
        });
        new.target.report_failure(&error);
        let delay = new.target.backoff.next();
        if !new.fail_all(&error, delay) {
            break None;
        }
    }
}
