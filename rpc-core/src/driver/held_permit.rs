//! [`HeldPermit`]: names a call of a shared channel to the driver.

/// The permit of a call through a shared channel. The channel keeps the calls that have to wait, and
/// their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldPermit {
    /// The number of the channel at the poller.
    pub(crate) channel: u32,
    /// The number of the permit in the channel.
    pub(crate) number: u32,
}
