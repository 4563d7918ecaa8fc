//! The clients that wait for a connection of their server, and the questions that are asked for them.

use std::time::Instant;

use rpc_core::transport::Host;

use super::Token;

/// A client that waits for a connection.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) listener: Token,
    pub(super) client: Token,
    pub(super) host: Host,
    /// True if all pollers asked in this round were asked for it, too.
    pub(super) is_asked_for: bool,
}

/// The questions to the pollers of a listener: one at a time, in rounds.
#[derive(Debug, Default)]
pub(super) struct AskedForRoom {
    /// The poller that is asked next, or was asked and has not answered.
    pub(super) port: usize,
    pub(super) awaits_answer: bool,
    pub(super) again_at: Option<Instant>,
    /// Pollers that have answered in this round, and whether one has a connection, or may soon.
    pub(super) answers: usize,
    pub(super) has_any: bool,
    /// Rounds without a break in which nobody waited or all were refused.
    pub(super) rounds: u32,
}
