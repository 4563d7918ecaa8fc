//! [`ChannelBuilder`]: the settings of a channel.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use super::channel::Channel;
use super::error::ChannelError;
use super::open::ChannelSettings;
use super::source::PollerSource;
use crate::intercept::Interceptor;
use crate::limits::{Intents, intent_setters};
use crate::transport::Fabric;

impl Channel {
    /// Connects to a server at `host:port` with the default settings. `source` is a device, for a
    /// poller of the channel's own, or [`Pollers`](super::Pollers) that it shares with other channels.
    ///
    /// # Errors
    ///
    /// Returns [`ChannelError`] if the device cannot be used, the pollers have no connection left, or
    /// the first attempt to connect fails. Nothing of the channel is left running.
    pub async fn connect<S: PollerSource>(source: &S, address: &str) -> Result<Self, ChannelError> {
        let builder = Self::builder(source, address);
        builder.connect().await
    }

    /// Creates a builder for a channel to a server at `host:port`. `source` is a device, for pollers of
    /// the channel's own, or [`Pollers`](super::Pollers) that it shares with other channels.
    pub fn builder<S: PollerSource>(source: &S, address: &str) -> ChannelBuilder<S> {
        ChannelBuilder {
            source: source.clone(),
            intents: Intents::default(),
            settings: ChannelSettings::new(address),
        }
    }
}

/// The configuration of a channel.
///
/// A channel over a device starts pollers of its own, and has all settings. A channel over
/// [`Pollers`](super::Pollers) has those that concern it alone. The others are the pollers', and are
/// set with [`Pollers::builder`](super::Pollers::builder):
///
/// ```compile_fail
/// # fn raise(pollers: &rpc_core::Pollers) {
/// rpc_core::Channel::builder(pollers, "10.0.0.1:50051").max_message_len(1 << 20);
/// # }
/// ```
#[must_use = "a builder does nothing until it connects"]
pub struct ChannelBuilder<S> {
    source: S,
    /// What the pollers of a channel over a device are sized for.
    intents: Intents,
    settings: ChannelSettings,
}

impl<S> fmt::Debug for ChannelBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelBuilder")
            .field("intents", &self.intents)
            .field("address", &self.settings.address)
            .finish_non_exhaustive()
    }
}

/// The settings of pollers, for a channel that starts its own.
impl<F: Fabric> ChannelBuilder<F> {
    intent_setters!();
}

impl<S: PollerSource> ChannelBuilder<S> {
    /// Sets the number of calls that each poller may have in flight at a time: see
    /// [`Intents::max_in_flight`]. Further calls wait. Over [`Pollers`](super::Pollers), the default is
    /// the pollers' own number, which is also the most.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.intents.max_in_flight = calls;
        self.settings.max_in_flight = Some(calls);
        self
    }

    /// Sets the number of pollers over which calls are spread, each with its own connection.
    /// Default and minimum: 1. Over [`Pollers`](super::Pollers), these are the pollers that have the
    /// fewest channels at the moment, and at most as many as there are: a hundred channels share the
    /// pollers evenly, and have one connection each.
    pub fn pollers(mut self, pollers: usize) -> Self {
        self.settings.pollers = pollers.max(1);
        self
    }

    /// Limits the time of an attempt to connect: the resolution of the host name, the connections to
    /// its addresses, and the handshake together. Default: 5 seconds. `Duration::MAX` means no limit,
    /// and no time is an error. Over [`Pollers`](super::Pollers), it also limits the time for which
    /// an attempt waits for a thread before.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// Sets whether requests [wait for ready](crate::Request::wait_for_ready) if they do not
    /// specify it themselves. Default: `false`.
    pub fn wait_for_ready(mut self, waits: bool) -> Self {
        self.settings.waits_for_ready = waits;
        self
    }

    /// Adds an interceptor of the calls of this channel. It begins after those added before. See
    /// [`intercept`](crate::intercept).
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.settings.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Sets the upper limits of the delays between attempts to connect: `first` limits the first
    /// delay, and `longest` limits every delay. Default: 50 ms and 5 s. Less than a millisecond counts
    /// as one, and more than a day as a day.
    pub fn reconnect_backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.settings.backoff = (first, longest.max(first));
        self
    }

    /// Connects the channel at each of its pollers, which are started if they are its own.
    ///
    /// # Errors
    ///
    /// Returns the [`ChannelError`] of the first attempt that fails. Nothing of the channel is left
    /// running.
    pub async fn connect(self) -> Result<Channel, ChannelError> {
        let settings = ChannelSettings {
            is_lazy: false,
            ..self.settings
        };
        let (channel, mut connecting) = self.source.open(self.intents, settings)?;
        poll_fn(|cx| connecting.poll(cx)).await?;
        Ok(channel)
    }

    /// Starts the pollers if they are the channel's own, and lets the first call connect. If the server
    /// cannot be reached, calls fail with [`CallError`](crate::CallError) or wait, as
    /// [`wait_for_ready`](Self::wait_for_ready) says.
    ///
    /// If a poller of the channel cannot open the device, all its calls fail with the reason, and it
    /// opens the device again after the delays of
    /// [`reconnect_backoff`](Self::reconnect_backoff): the port may be down, or the machine may be short
    /// of memory, for a while. This includes calls that wait for ready. A call may last as long as an
    /// attempt to open the device, whatever its timeout.
    ///
    /// # Errors
    ///
    /// Returns [`ChannelError::Connect`] if no server can have the address, as with `http://` before it;
    /// [`ChannelError::Fabric`] if the [`connect_timeout`](Self::connect_timeout) is zero;
    /// [`ChannelError::Thread`] if a poller's thread cannot be started; and
    /// [`ChannelError::NoConnection`] if [`Pollers`](super::Pollers) have no connection left.
    pub fn connect_lazy(self) -> Result<Channel, ChannelError> {
        let (channel, _) = self.source.open(self.intents, self.settings)?;
        Ok(channel)
    }
}
