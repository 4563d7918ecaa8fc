//! [`Head`]: a request without its message.

use std::time::{Duration, Instant};

use super::Extensions;
use crate::deadline;
use crate::metadata::Metadata;
use crate::peer::{LentPeer, Peer};

/// A request without its message, whose type interceptors do not know.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) metadata: Metadata,
    pub(crate) extensions: Extensions,
    pub(super) peer: LentPeer,
    pub(super) time: TimeAllowed,
    pub(super) origin: Origin,
}

/// What only one side knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// An application has made it. `None`: the call waits for ready as its channel says.
    Made { waits_for_ready: Option<bool> },
    /// A server has received it, with a message of this length. One that opens a stream of requests has
    /// none.
    Received { message_len: u32 },
}

/// The time limit of a call. Before the call starts it is a duration; afterwards it is a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeAllowed {
    /// The request sets none: the call inherits the current deadline.
    Inherited,
    Unlimited,
    For(Duration),
    Until(Instant),
    /// Until this moment, whatever the current deadline is: it has been looked at.
    Exactly(Instant),
}

impl Head {
    pub(super) const NEW: Self = Self {
        metadata: Metadata::new(),
        extensions: Extensions::new(),
        peer: LentPeer::NONE,
        time: TimeAllowed::Inherited,
        origin: Origin::Made {
            waits_for_ready: None,
        },
    };

    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.peer.get()
    }

    /// Returns the moment at which the call ends.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.time.moment()
    }

    /// Ends the call at this moment, if it does not end earlier.
    pub(crate) fn limit_deadline(&mut self, moment: Instant) {
        let earlier = deadline::earlier(self.deadline(), Some(moment));
        self.time = earlier.map_or(TimeAllowed::Unlimited, TimeAllowed::Exactly);
    }

    /// Decides the deadline of a call that begins now: `after` converts a timeout.
    pub(crate) fn settle_deadline(&mut self, after: impl FnOnce(Duration) -> Option<Instant>) {
        let deadline = self.deadline_of_call(after);
        self.time = deadline.map_or(TimeAllowed::Unlimited, TimeAllowed::Exactly);
    }

    /// Returns the deadline of a call that starts now. `after` converts a timeout.
    #[inline]
    pub(crate) fn deadline_of_call(
        &self,
        after: impl FnOnce(Duration) -> Option<Instant>,
    ) -> Option<Instant> {
        match self.time {
            TimeAllowed::Inherited => deadline::current(),
            time => time.deadline(after),
        }
    }
}

impl TimeAllowed {
    /// Returns the moment until which the call may last, if it is one.
    #[inline]
    pub(super) fn moment(self) -> Option<Instant> {
        match self {
            Self::Until(moment) | Self::Exactly(moment) => Some(moment),
            Self::Inherited | Self::Unlimited | Self::For(_) => None,
        }
    }

    // Out of line, so that a request that sets no time only pays for the comparison.
    #[inline(never)]
    fn deadline(self, after: impl FnOnce(Duration) -> Option<Instant>) -> Option<Instant> {
        let own = match self {
            Self::Inherited => None,
            Self::Unlimited => return None,
            Self::For(timeout) => after(timeout),
            Self::Until(moment) => Some(moment),
            Self::Exactly(moment) => return Some(moment),
        };
        deadline::earlier(own, deadline::current())
    }
}
