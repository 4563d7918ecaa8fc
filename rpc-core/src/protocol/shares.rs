//! [`Shares`] divides the receives of a poller among its connections.

use crate::limits::Limits;

/// Receives that a new connection is granted at first: enough for a client that makes a few calls
/// at a time; the window doubles as it is used.
const INITIAL_WINDOW: u32 = 8;

/// How a poller's receives are shared out between the clients that it lets in.
pub(crate) struct Shares {
    /// How many are let in.
    pub(crate) connections: u32,
    /// What each is granted when it comes, beside one receive for its credit frame.
    pub(crate) initial_window: u32,
}

impl Shares {
    pub(crate) fn of(limits: &Limits) -> Self {
        let receives = limits.promisable_receives();
        // Each needs one receive for a call and one for its credit frame.
        let connections = limits.max_connections.min(receives / 2).max(1);
        // Half of all to start with; the other half is for the windows of those that are busy.
        let initial_window = (receives / 2 / connections)
            .saturating_sub(1)
            .clamp(1, INITIAL_WINDOW);
        Self {
            connections,
            initial_window,
        }
    }
}
