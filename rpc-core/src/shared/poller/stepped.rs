//! [`SteppedPoller`]: a poller of shared channels whose turns a test takes.

use std::io;
use std::rc::Rc;

use crossbeam_channel::{Sender, unbounded};

use super::SharedPoller;
use crate::clock::Clock;
use crate::driver::Driver;
use crate::service::dispatch::Methods;
use crate::shared::backoff::Backoff;
use crate::shared::channel::Channel;
use crate::shared::dial_threads::{DialJob, Spawner};
use crate::shared::open::{self, ChannelSettings};
use crate::shared::polled_channel::NewChannel;
use crate::shared::poller_state::PollerRef;
use crate::transport::Transport;

/// Channels that a stepped poller has room for.
const CHANNELS: u32 = 256;

/// Runs a handshake with a function of the test.
struct RunWith<F>(F);

impl<F: Fn(Box<dyn FnOnce()>)> Spawner for RunWith<F> {
    fn spawn(&self, job: DialJob) -> io::Result<()> {
        (self.0)(Box::new(|| job.run()));
        Ok(())
    }
}

/// A poller of shared channels whose turns the caller takes.
pub struct SteppedPoller<T: Transport> {
    poller: SharedPoller<T>,
    handle: PollerRef,
    new_channels: Sender<NewChannel>,
    clock: Clock,
    permits: u32,
    latency_sampling: u32,
}

impl<T: Transport> SteppedPoller<T> {
    /// Creates a poller over `transport` that uses `clock`. `handshake` gets each handshake when it
    /// begins, and runs it, at once or later.
    pub fn new(
        transport: T,
        clock: &Clock,
        handshake: impl Fn(Box<dyn FnOnce()>) + 'static,
    ) -> Self {
        let handle = PollerRef::new(CHANNELS);
        handle.set_limits(transport.limits(), &None);
        let permits = transport.limits().max_in_flight;
        let latency_sampling = transport.limits().latency_sampling;
        let driver = Driver::new(transport, Methods::new(), clock.clone());
        driver.connections.share_receives();
        let (new_channels, receiver) = unbounded();
        Self {
            poller: SharedPoller::new(
                driver,
                handle.state(),
                receiver,
                Rc::new(RunWith(handshake)),
            ),
            handle,
            new_channels,
            clock: clock.clone(),
            permits,
            latency_sampling,
        }
    }

    /// Creates a channel, whose first call connects. The reconnect delays are generated from `seed`.
    ///
    /// # Panics
    ///
    /// Panics if the poller has no room for another channel.
    #[must_use]
    pub fn channel(&self, address: &str, seed: u64) -> Channel {
        let mut settings = ChannelSettings::new(address);
        settings.latency_sampling = self.latency_sampling;
        let (first, longest) = settings.backoff;
        let reserved = self.handle.reserve().expect("the poller has room");
        let (permits, clock) = (self.permits, self.clock.clone());
        let opened = open::channel(
            settings,
            vec![reserved],
            permits,
            clock,
            || false,
            |_, poller, mut new| {
                new.target.backoff = Backoff::seeded(first, longest, seed);
                new.hand_over(&self.new_channels, poller);
                Ok(())
            },
        );
        opened.expect("it is handed over").0
    }

    /// Returns the number of channels that the poller has not removed.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.handle.numbered()
    }

    /// Takes one turn. Returns true if it found anything to do.
    pub fn turn(&mut self) -> bool {
        self.poller.turn()
    }

    /// Expires deadlines, as a poller does at the end of a sleep. The next turn settles their calls.
    pub fn expire_deadlines(&mut self) {
        let driver = &self.poller.driver;
        driver.run_in_turn(|| driver.expire_deadlines());
        driver.connections.wake_collected();
    }

    /// Expires deadlines, as a poller does periodically, and settles their calls.
    pub fn check_timers(&mut self) {
        let now = self.clock.now();
        self.expire_deadlines();
        let poller = &mut self.poller;
        poller.driver.connections.state.borrow_mut().on_idle(now);
        poller.settle();
        poller.visit_due();
        for channel in poller.channels.iter_mut() {
            channel.calls.inbox.permits.maintain_queue(now);
        }
        poller.wakers.wake();
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        let poller = &self.poller;
        let mut left = poller.driver.leftovers();
        for channel in poller.channels.iter() {
            for (count, what) in channel.leftovers() {
                if count > 0 {
                    left.push(format!("{count} {what}"));
                }
            }
        }
        let channels = poller.channels.iter();
        let timers = channels.filter(|channel| channel.timer.is_some());
        if poller.times.len() != timers.count() {
            left.push("timers of channels that are gone".to_owned());
        }
        left
    }

    /// Accesses the transport, between two turns.
    pub fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self
            .poller
            .driver
            .connections
            .state
            .borrow_mut()
            .links
            .transport)
    }
}
