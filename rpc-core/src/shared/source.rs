//! [`PollerSource`]: where a channel gets its pollers from.

use super::channel::Channel;
use super::error::ChannelError;
use super::open::{self, CONNECTIONS, ChannelSettings, Connecting};
use super::poller_state::PollerRef;
use super::pollers::Pollers;
use crate::clock::Clock;
use crate::limits::Intents;
use crate::poller::{cores, idle};
use crate::transport::Fabric;

/// Where a channel gets its pollers from: a device (any [`Fabric`]), on which it starts pollers of its
/// own, or [`Pollers`], which it shares with other channels.
pub trait PollerSource: Source {}

impl<F: Fabric> PollerSource for F {}
impl PollerSource for Pollers {}

/// Opens channels. Nothing outside this crate implements it.
pub trait Source: Clone {
    /// Opens a channel, which connects at once unless it is lazy.
    fn open(
        &self,
        intents: Intents,
        settings: ChannelSettings,
    ) -> Result<(Channel, Connecting), ChannelError>;
}

impl<F: Fabric> Source for F {
    fn open(
        &self,
        mut intents: Intents,
        mut settings: ChannelSettings,
    ) -> Result<(Channel, Connecting), ChannelError> {
        settings.check(|address| self.check_address(address), F::is_forked)?;
        idle::count_cores(self);
        intents.warn_of_little_memory();
        intents.connections = CONNECTIONS;
        let pollers = (0..settings.pollers).map(|_| PollerRef::new(1));
        let reserved = pollers.filter_map(|poller| poller.reserve()).collect();
        let permits = intents.max_in_flight;
        settings.latency_sampling = intents.latency_sampling;
        let mut cores = cores::choose(self, &intents, settings.pollers).into_iter();
        open::channel(
            settings,
            reserved,
            permits,
            Clock::system(),
            F::is_forked,
            |index, poller, new| {
                let (fabric, intents, state) = (self.clone(), intents.clone(), poller.state());
                let core = cores.next().flatten();
                self.start_thread(&format!("verbline-client-{index}"), move || {
                    open::run_one(&fabric, &intents, core, state, new);
                })?;
                Ok(())
            },
        )
    }
}

impl Source for Pollers {
    fn open(
        &self,
        _: Intents,
        mut settings: ChannelSettings,
    ) -> Result<(Channel, Connecting), ChannelError> {
        let is_forked = self.is_forked();
        settings.check(|address| self.check_address(address), is_forked)?;
        let (reserved, new_channels): (Vec<_>, Vec<_>) =
            self.reserve(settings.pollers)?.into_iter().unzip();
        let most = self.limits().max_in_flight;
        let permits = settings.max_in_flight.unwrap_or(most).min(most);
        settings.latency_sampling = self.limits().latency_sampling;
        open::channel(
            settings,
            reserved,
            permits,
            Clock::system(),
            is_forked,
            |index, poller, new| {
                new.hand_over(&new_channels[index], poller);
                Ok(())
            },
        )
    }
}
