//! How often each byte of a long message is copied on its way, by the counters of both sides.

use crate::Outcome;
use crate::rpc::Rpc;

/// Bytes of long messages from this process to the server, and their copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    received: u64,
    copied: u64,
}

impl Copies {
    /// Reads the counters of both sides. The server must not be paused.
    ///
    /// # Errors
    ///
    /// Returns the error of the call that asks the server.
    pub fn count(rpc: &Rpc) -> Outcome<Self> {
        let server = rpc.stats()?;
        let sent = rpc.poller().stats().total().transfers;
        Ok(Self {
            received: server.long_bytes_received,
            copied: sent.bytes_copied + server.long_bytes_copied,
        })
    }

    /// Returns what was counted after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            received: self.received - earlier.received,
            copied: self.copied - earlier.copied,
        }
    }

    /// Adds what was counted in another turn.
    pub fn add(&mut self, other: Self) {
        self.received += other.received;
        self.copied += other.copied;
    }

    /// Returns the copies of each byte, or `None` if no long message has arrived.
    #[must_use]
    pub fn per_byte(self) -> Option<f64> {
        (self.received > 0).then(|| self.copied as f64 / self.received as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_those_of_the_bytes_that_arrived() {
        let of = |received, copied| Copies { received, copied };
        let mut sum = of(300, 700).since(of(100, 300));
        sum.add(of(200, 400));
        assert_eq!(sum, of(400, 800));
        assert_eq!(sum.per_byte(), Some(2.0));
        assert_eq!(of(0, 0).per_byte(), None);
    }
}
