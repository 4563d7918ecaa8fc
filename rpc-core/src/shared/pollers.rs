//! [`Pollers`]: pollers that channels share.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::dial_threads::DialThreads;
use super::error::ChannelError;
use super::open::CONNECTIONS;
use super::polled_channel::NewChannel;
use super::poller::SharedPoller;
use super::poller_state::{PollerRef, PollerState, Reserved};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::limits::{Intents, Limits, intent_setters};
use crate::poller::cores::{self, PollerCore};
use crate::poller::idle;
use crate::service::dispatch::Methods;
use crate::stats::Stats;
use crate::transport::{Fabric, FabricError, Transport};

/// Pollers that any number of [`Channel`](super::Channel)s share: for a process that calls many
/// servers. Cheap to clone.
///
/// A channel over a device has threads, memory and files of its own. A channel over `Pollers` only has
/// its connection:
///
/// ```
/// use rpc_core::{Channel, ChannelError, Pollers, transport::Fabric};
///
/// async fn connect(device: &impl Fabric) -> Result<(Channel, Channel), ChannelError> {
///     let pollers = Pollers::builder(device).pollers(2).connections(200).start()?;
///     let orders = Channel::connect(&pollers, "10.0.0.1:50051").await?;
///     let stock = Channel::builder(&pollers, "10.0.0.2:50051").max_in_flight(16);
///     Ok((orders, stock.connect().await?))
/// }
/// ```
///
/// The threads end when the last clone, and the last channel over them, are dropped. A set of pollers
/// performs up to 16 handshakes at a time, on threads that end when there are none. Up to 8 of them
/// are for channels whose previous attempt has failed, and up to 4 are with one address, so that
/// servers that stay silent do not hold up the others. An attempt fails if it gets no thread within
/// its [`connect_timeout`](super::ChannelBuilder::connect_timeout).
#[derive(Clone)]
pub struct Pollers(Arc<Set>);

/// Maximum number of connections of a poller: more than devices have, and no more than there may be
/// memory for.
const MOST_CONNECTIONS: u32 = 1 << 20;

/// Room for a channel, and how it is handed over.
type Place = (Reserved, Sender<NewChannel>);

type AddressCheck = dyn Fn(&str) -> io::Result<()> + Send + Sync;

struct Set {
    pollers: Vec<Member>,
    /// Channels that each poller has room for.
    connections: u32,
    limits: Limits,
    /// [`Fabric::check_address`] of the device.
    check_address: Box<AddressCheck>,
    /// [`Fabric::is_forked`] of the device.
    is_forked: fn() -> bool,
}

/// A poller, and how channels are handed over to it.
struct Member {
    poller: PollerRef,
    new_channels: Sender<NewChannel>,
}

impl Pollers {
    /// Starts one poller on a device, with the default [`Intents`].
    ///
    /// # Errors
    ///
    /// Returns [`ChannelError`] if its thread or its device cannot be started.
    pub fn new<F: Fabric>(device: &F) -> Result<Self, ChannelError> {
        Self::builder(device).start()
    }

    /// Creates a builder for pollers on a device.
    pub fn builder<F: Fabric>(device: &F) -> PollersBuilder<F> {
        PollersBuilder {
            fabric: device.clone(),
            pollers: 1,
            intents: Intents::default(),
        }
    }

    /// Returns the sizes of each poller.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Returns a snapshot of the pollers' statistics, with all that they do for their channels.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            pollers: self
                .0
                .pollers
                .iter()
                .map(|member| member.poller.stats())
                .collect(),
            server: None,
        }
    }

    /// Returns the number of connections that the channels have at all pollers together: one for each
    /// channel and each of its pollers. Those that are not connected at the moment count too.
    #[must_use]
    pub fn connections_in_use(&self) -> usize {
        self.0
            .pollers
            .iter()
            .map(|member| member.poller.channels())
            .sum()
    }

    pub(super) fn check_address(&self, address: &str) -> io::Result<()> {
        (self.0.check_address)(address)
    }

    pub(super) fn is_forked(&self) -> fn() -> bool {
        self.0.is_forked
    }

    /// Reserves a channel number at the `count` least loaded pollers, or at every poller if there are
    /// fewer.
    pub(super) fn reserve(&self, count: usize) -> Result<Vec<Place>, ChannelError> {
        let pollers = self.0.pollers.iter();
        let mut pollers: Vec<_> = pollers
            .filter(|member| !member.poller.is_stopped())
            .collect();
        if pollers.is_empty() {
            // `self` keeps them running.
            return Err(ChannelError::PollerPanicked);
        }
        pollers.sort_by_cached_key(|member| member.poller.channels());
        let count = count.min(pollers.len());
        let reserved: Vec<_> = pollers
            .into_iter()
            .filter_map(|member| Some((member.poller.reserve()?, member.new_channels.clone())))
            .take(count)
            .collect();
        if reserved.len() < count {
            return Err(ChannelError::NoConnection {
                connections: self.0.connections,
            });
        }
        Ok(reserved)
    }
}

impl fmt::Debug for Pollers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pollers")
            .field("pollers", &self.0.pollers.len())
            .field("connections", &self.0.connections)
            .field("connections_in_use", &self.connections_in_use())
            .finish_non_exhaustive()
    }
}

/// The configuration of [`Pollers`].
#[must_use = "a builder does nothing until it starts the pollers"]
pub struct PollersBuilder<F> {
    fabric: F,
    pollers: usize,
    intents: Intents,
}

impl<F> fmt::Debug for PollersBuilder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollersBuilder")
            .field("pollers", &self.pollers)
            .field("intents", &self.intents)
            .finish_non_exhaustive()
    }
}

impl<F: Fabric> PollersBuilder<F> {
    intent_setters!();

    /// Sets the number of pollers, each on a thread of its own. Default and minimum: 1.
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.pollers = pollers.max(1);
        self
    }

    /// Sets the number of connections that each poller supports: one for each channel over it. Default:
    /// 64. The most is 2²⁰. A channel beyond them is refused ([`ChannelError::NoConnection`]).
    ///
    /// [`Pollers::limits`] show twice as many: a channel whose server shuts down connects again while
    /// the calls of its previous connection finish.
    pub fn connections(mut self, connections: u32) -> Self {
        self.intents.connections = connections.clamp(1, MOST_CONNECTIONS);
        self
    }

    /// Sets the number of calls that one connection may have in flight: see
    /// [`Intents::max_in_flight`]. A channel may have a lower number
    /// ([`ChannelBuilder::max_in_flight`](super::ChannelBuilder::max_in_flight)).
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self
    }

    /// Starts the pollers. Waits until all of them have opened the device.
    ///
    /// # Errors
    ///
    /// Returns [`ChannelError`] if the device cannot be used or a thread cannot be started. Nothing is
    /// left running.
    pub fn start(self) -> Result<Pollers, ChannelError> {
        if F::is_forked() {
            return Err(ChannelError::Forked);
        }
        idle::count_cores(&self.fabric);
        self.intents.warn_of_little_memory();
        let connections = self.intents.connections;
        let intents = Intents {
            connections: connections.saturating_mul(CONNECTIONS),
            ..self.intents.clone()
        };
        let dial_threads = Arc::new(DialThreads::new(&self.fabric));
        let mut cores = cores::choose(&self.fabric, &intents, self.pollers).into_iter();
        let (opened, outcomes) = mpsc::channel();
        let mut pollers = Vec::new();
        for index in 0..self.pollers {
            let poller = PollerRef::new(connections);
            let (fabric, intents, state) = (self.fabric.clone(), intents.clone(), poller.state());
            let (dial_threads, opened) = (Arc::clone(&dial_threads), opened.clone());
            let (new_channels, receiver) = unbounded();
            pollers.push(Member {
                poller,
                new_channels,
            });
            let core = cores.next().flatten();
            let name = format!("verbline-client-{index}");
            self.fabric.start_thread(&name, move || {
                run(
                    &fabric,
                    &intents,
                    core,
                    (state, receiver),
                    dial_threads,
                    opened,
                );
            })?;
        }
        drop(opened);
        for _ in &pollers {
            // Without an outcome, a poller's thread has panicked.
            let outcome = outcomes.recv().map_err(|_| ChannelError::PollerPanicked)?;
            outcome?;
        }
        let opened = pollers.iter().filter_map(|member| member.poller.limits());
        let limits = opened.cloned().reduce(|mut limits, next| {
            limits.cores.extend(next.cores);
            limits
        });
        Ok(Pollers(Arc::new(Set {
            pollers,
            connections,
            limits: limits.ok_or(ChannelError::PollerPanicked)?,
            check_address: Box::new(move |address| self.fabric.check_address(address)),
            is_forked: F::is_forked,
        })))
    }
}

/// Runs a poller, on its thread.
fn run<F: Fabric>(
    fabric: &F,
    intents: &Intents,
    core: Option<PollerCore>,
    (state, new_channels): (Arc<PollerState>, Receiver<NewChannel>),
    dial_threads: Arc<DialThreads>,
    opened: mpsc::Sender<Result<(), FabricError>>,
) {
    let (transport, pinned) = match cores::open_on(fabric, core, intents) {
        Ok(opening) => opening,
        Err(error) => {
            // If nobody listens, another poller has failed before.
            let _ = opened.send(Err(error));
            return;
        }
    };
    state.set_limits(transport.limits(), &pinned);
    let driver = Driver::new(transport, Methods::new(), Clock::system());
    driver.connections.share_receives();
    let poller = SharedPoller::new(driver, state, new_channels, Rc::new(dial_threads));
    let _ = opened.send(Ok(()));
    // If another poller's thread has panicked, nothing but the end of all senders tells.
    drop(opened);
    poller.run(intents.waiting);
}
