//! How often each byte of a long message is copied on its way, by the counters of both sides.

use crate::Outcome;
use crate::rpc::{Client, Rpc};

/// Counts the bytes of long messages from this process to the server so far: those that have arrived,
/// and the copies of each side. Resumes the server for a call.
///
/// # Errors
///
/// Returns the error of the call that asks the server.
pub fn count(rpc: &Rpc) -> Outcome<[u64; 2]> {
    let server = rpc.server().in_turn(|| rpc.stats())?;
    let sent = rpc.poller().stats().total().transfers;
    Ok([
        server.long_bytes_received,
        sent.bytes_copied + server.long_bytes_copied,
    ])
}

/// Returns the copies of each byte that has arrived between two counts, or `None` if none has.
#[must_use]
pub fn per_byte(before: [u64; 2], after: [u64; 2]) -> Option<f64> {
    let [received, copied] = [0, 1].map(|count| after[count] - before[count]);
    (received > 0).then(|| copied as f64 / received as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_those_of_the_bytes_that_arrived() {
        assert_eq!(per_byte([100, 300], [300, 700]), Some(2.0));
        assert_eq!(per_byte([100, 300], [100, 300]), None);
    }
}
