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
        intents: Intents,
        settings: ChannelSettings,
    ) -> Result<(Channel, Connecting), ChannelError> {
        settings.check(|address| self.check_address(address))?;
        // Before any lock, which another thread may have held when this process was forked.
        if F::is_forked() {
            return Err(ChannelError::Forked);
        }
        idle::count_cores(self);
        intents.warn_of_little_memory();
        let intents = Intents {
            connections: CONNECTIONS,
            ..intents
        };
        let pollers = (0..settings.pollers).map(|_| PollerRef::new(1));
        let reserved = pollers.filter_map(|poller| poller.reserve()).collect();
        let permits = intents.max_in_flight;
        let settings = ChannelSettings {
            latency_sampling: intents.latency_sampling,
            ..settings
        };
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
        settings: ChannelSettings,
    ) -> Result<(Channel, Connecting), ChannelError> {
        settings.check(|address| self.check_address(address))?;
        let is_forked = self.is_forked();
        // Before any lock, as above.
        if is_forked() {
            return Err(ChannelError::Forked);
        }
        let (reserved, new_channels): (Vec<_>, Vec<_>) =
            self.reserve(settings.pollers)?.into_iter().unzip();
        let most = self.limits().max_in_flight;
        let permits = settings.max_in_flight.unwrap_or(most).min(most);
        let settings = ChannelSettings {
            latency_sampling: self.limits().latency_sampling,
            ..settings
        };
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
