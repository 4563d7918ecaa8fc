//! The threads that make the handshakes which secure the connections of clients.
//!
//! A step of one takes the time of a signature and of some checks: tens of microseconds, or milliseconds,
//! as the keys are. A flood of strangers that begin such handshakes costs the time of these threads, and
//! not that of the control thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::workers::Job;
use super::{Command, Token};
use crate::transport::security::{SecurityError, SecurityHandshake, SecurityProgress};

/// Number of threads. Each stranger may cause a signature, so strangers can keep this many cores busy.
pub(super) const SECURERS: usize = 2;

/// A step of a handshake: what has arrived for it.
pub(super) struct Securing {
    pub(super) token: Token,
    pub(super) handshake: Box<dyn SecurityHandshake>,
    pub(super) arrived: Vec<u8>,
    /// The client has had an answer.
    pub(super) has_begun: bool,
}

/// What has become of it.
pub(super) struct SecuringStep {
    pub(super) progress: Result<SecurityProgress, SecurityError>,
    /// What was not used of what has arrived.
    pub(super) arrived: Vec<u8>,
    pub(super) to_send: Vec<u8>,
}

impl Job for Securing {
    fn token(&self) -> Token {
        self.token
    }

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn run(self) -> Command {
        let Self {
            token,
            handshake,
            mut arrived,
            ..
        } = self;
        let mut to_send = Vec::new();
        // Strangers' bytes reach a library here. A panic of it is a fault, and would end this thread,
        // which all clients need. What the closure has changed is not used after one.
        let advance = || handshake.advance(&mut arrived, &mut to_send);
        let progress = catch_unwind(AssertUnwindSafe(advance)).unwrap_or_else(|_| {
            to_send.clear();
            Err("the library for TLS has panicked: please report what the server printed".into())
        });
        let step = SecuringStep {
            progress,
            arrived,
            to_send,
        };
        Command::Secured(token, Box::new(step))
    }
}
