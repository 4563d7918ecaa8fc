//! [`Shares`]: how the receives of a poller are divided among its connections.

use super::credit::UNCREDITED_RECEIVES;
use crate::limits::Limits;

/// Initial window of a new connection: enough for a client with a few calls at a time. The window
/// doubles as it is used up.
const INITIAL_WINDOW: u32 = 8;

/// The distribution of a poller's receives among the clients that it accepts.
pub(crate) struct Shares {
    /// Number of clients accepted.
    pub(crate) connections: u32,
    /// Initial window of each client, in addition to the receives for its frames without a
    /// credit.
    pub(crate) initial_window: u32,
}

impl Shares {
    pub(crate) fn from_limits(limits: &Limits) -> Self {
        let receives = limits.promisable_receives();
        // Each connection needs one receive for a call, and those for frames without a credit.
        let least = 1 + UNCREDITED_RECEIVES;
        let connections = limits.max_connections.min(receives / least).max(1);
        // Half of all receives are for initial windows; the other half is for the windows of busy
        // clients.
        let initial_window = (receives / 2 / connections)
            .saturating_sub(UNCREDITED_RECEIVES)
            .clamp(1, INITIAL_WINDOW);
        Self {
            connections,
            initial_window,
        }
    }
}
