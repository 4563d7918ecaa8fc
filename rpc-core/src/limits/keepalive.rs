//! [`Keepalive`]: detection of peers whose process has stopped making progress.

use std::fmt;
use std::time::Duration;

/// Detects peers whose host is alive but whose process does not run.
///
/// Two failures are detected without keepalive. The end of the peer's process, killed or not, shows
/// at once, because the kernel closes its sockets. The failure of the peer's host shows after about
/// four seconds, because the kernel probes the host over the network. What remains undetected is a
/// process that has stopped on a live host: stopped by a debugger or by `SIGSTOP`, frozen by a
/// container runtime, or hung in the kernel.
///
/// By default such a process is tolerated: it loses nothing, and when it continues, its calls
/// continue. Until then, deadlines bound the calls. With keepalive, a connection closes when its
/// peer has been stopped for too long, for instance at a breakpoint. (With and without keepalive,
/// peers outside a paused virtual machine see it as a failed host; peers that are paused together
/// lose nothing.)
///
/// A dedicated thread of the peer answers the probes, so a poller that is busy in a handler counts
/// as alive, however long the handler takes.
/// Each side probes according to its own intents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Interval at which a silent peer is probed; less than 10 ms counts as 10 ms. Probe and reply
    /// are one byte each and take no poller time.
    pub every: Duration,
    /// How long after an unanswered probe the peer counts as failed: rounded up to a multiple of
    /// `every`, at least two. Time during which this process itself was stopped counts as one
    /// `every`, so that it does not blame its peers for its own pause.
    pub gone_after: Duration,
}

impl Keepalive {
    /// The minimum of [`every`](Self::every), which limits probes to a hundred per second and
    /// connection.
    const MIN_EVERY: Duration = Duration::from_millis(10);

    /// Returns the values that take effect, after the minimum and the rounding.
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

    /// Returns the number of probe intervals in [`gone_after`](Self::gone_after).
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
            "silent peers are probed every {:?} and closed after {:?} without a reply",
            self.every, self.gone_after
        )
    }
}
