//! [`Keepalive`]: how long a peer may stand still.

use std::fmt;
use std::time::Duration;

/// Finds peers that are there and do nothing.
///
/// Without it, two ends of a peer are noticed. That of its process, killed or not, shows at once, as the
/// kernel closes its sockets. That of its host shows after about four seconds, as the kernel asks
/// across the network. What does not show is a process that stands still on a host that lives: stopped
/// by a debugger or by `SIGSTOP`, frozen by a container's runtime, hung in the kernel.
///
/// By default that is how it is to be: such a process loses nothing, and when it goes on, so do its
/// calls; meanwhile their deadlines bound them. Who would rather know sets this, and takes into the
/// bargain that a connection ends when its peer stood still for too long, at a breakpoint for
/// instance. (A virtual machine that is paused is a host that is gone to those outside of it, with and
/// without this; peers that are paused together lose nothing.)
///
/// The question goes to a thread of the peer that does nothing else, so that a poller which is busy
/// in a handler counts as alive, for as long as it may take. A peer of a version without
/// keepalive is not asked. Each side asks for itself, as its own intents say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How long a peer may be silent until it is asked; less than 10 ms counts as 10 ms. Question and answer
    /// are a byte each, and cost the pollers nothing.
    pub every: Duration,
    /// How long after a question that is not answered the peer counts as gone: rounded up to a
    /// multiple of `every`, at least two. Time for which this process stood still itself counts as
    /// one `every`, so that it does not give its peers up for its own fault.
    pub gone_after: Duration,
}

impl Keepalive {
    /// The least that [`every`](Self::every) may be: a hundred questions per second and connection.
    const MIN_EVERY: Duration = Duration::from_millis(10);

    /// As it is carried out, where that is not what was said.
    #[must_use]
    pub fn effective(self) -> Self {
        let every = self.every.max(Self::MIN_EVERY);
        let intervals = self.gone_after.as_nanos().div_ceil(every.as_nanos());
        let intervals = u32::try_from(intervals).unwrap_or(u32::MAX).max(2);
        Self {
            every,
            gone_after: every.saturating_mul(intervals),
        }
    }

    /// Intervals in [`gone_after`](Self::gone_after).
    #[must_use]
    pub fn intervals(self) -> u32 {
        let Self { every, gone_after } = self.effective();
        u32::try_from(gone_after.as_nanos() / every.as_nanos()).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Keepalive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "silent peers are asked every {:?}, and gone when they have not answered for {:?}",
            self.every, self.gone_after
        )
    }
}
