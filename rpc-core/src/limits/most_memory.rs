//! [`Limits::most_memory`]: what connections, streams, and what peers send use at most.

use super::Limits;

/// Bytes that what waits on behalf of peers may use in the process, beyond what each stream and each
/// connection has in any case.
pub(crate) const STREAM_MEMORY: u64 = 64 << 20;

/// Bytes of unread messages for which a stream always has memory.
pub(crate) const LEAST_UNREAD: usize = 8 << 10;

/// Bytes of messages on the heap for which a connection always has memory.
pub(crate) const LEAST_ON_HEAP: u64 = 256 << 10;

/// Bytes of the state of a stream and its handler, at most.
const STATE_OF_STREAM: u64 = 3 << 10;

impl Limits {
    /// Returns the most bytes of memory that this many pollers of a process use for connections, streams and
    /// what peers send: slots, long messages, what streams have in any case, and what they share beyond
    /// that. Decoded messages, and long messages that wait to be sent, are not in it.
    #[must_use]
    pub fn most_memory(&self, pollers: u32) -> u64 {
        let frames = 2 * self.slot_len as u64;
        let of_stream = LEAST_UNREAD as u64 + frames + STATE_OF_STREAM;
        let of_connection = LEAST_ON_HEAP + u64::from(self.max_streams) * of_stream;
        let of_poller =
            self.registered_len() as u64 + u64::from(self.max_connections) * of_connection;
        self.message_memory + STREAM_MEMORY + u64::from(pollers) * of_poller
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_memory_is_a_sum_that_is_printed() {
        let limits = Limits {
            message_memory: 256 << 20,
            max_connections: 64,
            max_streams: 100,
            slot_len: 4352,
            receives_posted: 2560,
            ..Limits::default()
        };
        let one = limits.most_memory(1);
        assert!((450 << 20..512 << 20).contains(&one), "{one}");
        let of_poller = 2560 * 4352 + 64 * ((256 << 10) + 100 * (8192 + 2 * 4352 + 3072));
        assert_eq!(limits.most_memory(3) - one, 2 * of_poller);
        let printed = limits.to_string();
        assert!(printed.contains("with one poller"), "{printed}");
    }
}
