//! Opens a channel: makes its ends at the callers and at its pollers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crossbeam_channel::{bounded, never};

use super::backoff::Backoff;
use super::channel::Channel;
use super::connectivity::{Connectivity, ConnectivityState};
use super::dial_threads::DialThreads;
use super::error::ChannelError;
use super::notices::{Inbox, Notices};
use super::permits::CallPermits;
use super::polled_channel::NewChannel;
use super::poller::SharedPoller;
use super::poller_state::{PollerRef, PollerState, Reserved};
use super::reconnect::Target;
use super::start::{Report, Start};
use super::submissions::{PollerHandle, Shared};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::limits::Intents;
use crate::poller::cores::{self, PinnedThread, PollerCore};
use crate::poller::{CONNECT_TIMEOUT, check_connect_timeout};
use crate::protocol::session::clamp_in_flight;
use crate::service::dispatch::Methods;
use crate::transport::{ConnectError, Fabric, FabricError, Transport};

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
#[derive(Clone, Debug)]
pub struct ChannelSettings {
    pub(super) address: String,
    pub(super) pollers: usize,
    pub(super) max_in_flight: Option<u32>,
    pub(super) connect_timeout: Duration,
    pub(super) waits_for_ready: bool,
    pub(super) backoff: (Duration, Duration),
    /// That of its pollers.
    pub(super) latency_sampling: u32,
}

impl ChannelSettings {
    /// The defaults, for a server at `address`.
    pub(super) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            pollers: 1,
            max_in_flight: None,
            connect_timeout: CONNECT_TIMEOUT,
            waits_for_ready: false,
            backoff: (FIRST_BACKOFF, LONGEST_BACKOFF),
            latency_sampling: Intents::default().latency_sampling,
        }
    }

    /// Checks the time limit, and the form of the address, as its device does.
    pub(super) fn check(
        &self,
        check: impl FnOnce(&str) -> io::Result<()>,
    ) -> Result<(), ChannelError> {
        check_connect_timeout(self.connect_timeout)?;
        check(&self.address).map_err(|source| {
            let address = self.address.clone();
            ChannelError::Connect(Arc::new(ConnectError::Address { address, source }))
        })
    }
}

/// Opens a channel with up to `permits` calls in flight at each of the reserved pollers. `hand_over`
/// passes it to the poller with this index. `is_forked` is that of the pollers' device.
pub(super) fn channel(
    settings: ChannelSettings,
    reserved: Vec<Reserved>,
    permits: u32,
    start: Option<&Arc<Start>>,
    is_forked: fn() -> bool,
    mut hand_over: impl FnMut(usize, &PollerRef, NewChannel) -> Result<(), ChannelError>,
) -> Result<Channel, ChannelError> {
    let state = match start {
        Some(_) => ConnectivityState::Connecting,
        None => ConnectivityState::Idle,
    };
    let connectivity = Arc::new(Connectivity::new(reserved.len(), state));
    if let Some(start) = start {
        start.expect(reserved.len());
    }
    let mut pollers = Vec::new();
    for (index, reserved) in reserved.into_iter().enumerate() {
        let mut ends = Ends::new(&settings, reserved, permits, &connectivity, index);
        ends.new.report = Report(start.cloned());
        hand_over(index, &ends.handle.poller, ends.new)?;
        pollers.push(ends.handle);
    }
    Ok(Channel(Arc::new(Shared {
        address: settings.address,
        pollers: pollers.into(),
        next: AtomicUsize::new(0),
        connectivity,
        waits_for_ready: settings.waits_for_ready,
        latency_sampling: settings.latency_sampling,
        clock: Clock::system(),
        is_forked,
    })))
}

/// The two ends of a channel and one of its pollers.
pub(super) struct Ends {
    pub(super) handle: PollerHandle,
    pub(super) new: NewChannel,
}

impl Ends {
    /// Makes the ends of a lazy channel.
    pub(super) fn new(
        settings: &ChannelSettings,
        reserved: Reserved,
        permits: u32,
        connectivity: &Arc<Connectivity>,
        index: usize,
    ) -> Self {
        let count = clamp_in_flight(permits);
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
        let new = NewChannel {
            number,
            target: Target {
                index,
                address: settings.address.clone(),
                connect_timeout: settings.connect_timeout,
                backoff: Backoff::new(settings.backoff.0, settings.backoff.1),
                connectivity: Arc::clone(connectivity),
                health: Arc::clone(&handle.health),
            },
            inbox: Inbox::new(&handle.permits, receiver, &handle.notices),
            report: Report(None),
        };
        Self { handle, new }
    }
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
        Ok(Ok(Some(opened))) => opened,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => return new.report.send(Err(error.into())),
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
/// machine may be short of memory, for a while. Returns `None` once the channel has been dropped.
///
/// # Errors
///
/// Returns the error of a channel that is not lazy, because somebody waits for its first connection.
#[allow(clippy::type_complexity)]
fn open_device<F: Fabric>(
    fabric: &F,
    intents: &Intents,
    core: &Option<PollerCore>,
    new: &mut NewChannel,
) -> Result<Option<(F::Transport, Option<PinnedThread>)>, FabricError> {
    let mut failures = 0_u64;
    loop {
        let error = match cores::open_on(fabric, core.clone(), intents) {
            Ok(opened) => {
                if failures > 0 {
                    new.target.backoff.succeed();
                    new.target.report(ConnectivityState::Idle);
                }
                break Ok(Some(opened));
            }
            Err(error) if !new.report.is_awaited() => error,
            Err(error) => {
                tracing::error!(%error, "cannot open the device of a channel's poller");
                break Err(error);
            }
        };
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
            break Ok(None);
        }
    }
}
