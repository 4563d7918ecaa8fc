//! [`SteppedPoller`]: a poller of shared channels whose turns a test takes.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crossbeam_channel::{Sender, unbounded};

use super::backoff::Backoff;
use super::builder::{FIRST_BACKOFF, LONGEST_BACKOFF};
use super::channel::Channel;
use super::connectivity::{Connectivity, ConnectivityState};
use super::dial_job::Spawner;
use super::open::{ChannelSettings, Ends};
use super::polled_channel::NewChannel;
use super::poller::SharedPoller;
use super::poller_state::PollerRef;
use super::submissions::Shared;
use crate::clock::Clock;
use crate::driver::Driver;
use crate::poller::CONNECT_TIMEOUT;
use crate::service::dispatch::Methods;
use crate::transport::Transport;

/// Channels that a stepped poller has room for.
const CHANNELS: u32 = 256;

/// A poller of shared channels whose turns the caller takes.
pub(crate) struct SteppedPoller<T: Transport> {
    pub(crate) poller: SharedPoller<T>,
    handle: PollerRef,
    new_channels: Sender<NewChannel>,
    clock: Clock,
    permits: u32,
}

impl<T: Transport> SteppedPoller<T> {
    pub(crate) fn new(transport: T, clock: &Clock, spawner: impl Spawner + 'static) -> Self {
        let handle = PollerRef::new(CHANNELS);
        handle.set_limits(transport.limits());
        let permits = transport.limits().max_in_flight;
        let driver = Driver::new(transport, Methods::new(), clock.clone());
        driver.share_receives();
        let (new_channels, receiver) = unbounded();
        Self {
            poller: SharedPoller::new(driver, handle.state(), receiver, Rc::new(spawner)),
            handle,
            new_channels,
            clock: clock.clone(),
            permits,
        }
    }

    /// Creates a channel, whose first call connects. The reconnect delays are generated from `seed`.
    ///
    /// # Panics
    ///
    /// Panics if the poller has no room for another channel.
    pub(crate) fn channel(&self, address: &str, seed: u64) -> Channel {
        let settings = ChannelSettings {
            address: address.to_owned(),
            pollers: 1,
            max_in_flight: None,
            connect_timeout: CONNECT_TIMEOUT,
            waits_for_ready: false,
            backoff: (FIRST_BACKOFF, LONGEST_BACKOFF),
        };
        let reserved = self.handle.reserve().expect("the poller has room");
        let connectivity = Arc::new(Connectivity::new(1, ConnectivityState::Idle));
        let mut ends = Ends::new(&settings, reserved, self.permits, &connectivity, 0);
        ends.new.target.backoff = Backoff::seeded(FIRST_BACKOFF, LONGEST_BACKOFF, seed);
        ends.new.hand_over(&self.new_channels, &self.handle);
        Channel(Arc::new(Shared {
            address: settings.address,
            pollers: [ends.handle].into(),
            next: AtomicUsize::new(0),
            connectivity,
            waits_for_ready: false,
            clock: self.clock.clone(),
        }))
    }

    /// Returns the number of channels that the poller has not removed.
    pub(crate) fn channels(&self) -> usize {
        self.handle.numbered()
    }
}
