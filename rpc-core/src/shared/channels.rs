//! [`Channels`]: the channels of a poller, by number.

use super::polled_channel::PolledChannel;
use crate::transport::Transport;

/// The channels of a poller.
pub(super) struct Channels<T: Transport>(Vec<Option<PolledChannel<T>>>);

impl<T: Transport> Default for Channels<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Transport> Channels<T> {
    /// Returns the number that follows the highest one so far.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.0.len() as u32
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&PolledChannel<T>> {
        self.0.get(number as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut PolledChannel<T>> {
        self.0.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn insert(&mut self, number: u32, channel: PolledChannel<T>) {
        let index = number as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        debug_assert!(self.0[index].is_none(), "two channels with one number");
        self.0[index] = Some(channel);
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<PolledChannel<T>> {
        self.0.get_mut(number as usize)?.take()
    }

    #[cfg(feature = "test-util")]
    pub(super) fn iter(&self) -> impl Iterator<Item = &PolledChannel<T>> {
        self.0.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut PolledChannel<T>> {
        self.0.iter_mut().flatten()
    }
}
