//! [`Limits::most_memory`]: what connections, streams, and what peers send use at most.

use super::Limits;

/// Of the memory for long messages: as much of the heap, in quarters, is for what waits on behalf of peers.
const HEAP_QUARTERS: u64 = 3;

/// That is at least so many bytes.
const LEAST_HEAP: u64 = 16 << 20;

/// Bytes of unread messages for which a stream always has memory.
pub(crate) const LEAST_UNREAD: usize = 8 << 10;

/// Bytes of messages on the heap for which a connection always has memory.
pub(crate) const LEAST_ON_HEAP: u64 = 16 << 10;

/// Bytes of the state of a stream and its handler, at most.
const STATE_OF_STREAM: u64 = 3 << 10;

impl Limits {
    /// Returns the bytes of the heap that streams, messages and frames which wait on behalf of peers may use
    /// in the process. A host may use three times what it leaves to others.
    #[must_use]
    pub fn waiting_memory(&self) -> u64 {
        LEAST_HEAP.max(self.message_memory / 4 * HEAP_QUARTERS)
    }

    /// Returns the bytes of [`waiting_memory`](Self::waiting_memory) that each stream of a client uses on its
    /// server: its state, a frame that waits to be sent, the batch behind it, and a few unread messages.
    pub(crate) fn memory_of_stream(&self) -> u64 {
        STATE_OF_STREAM + 2 * self.slot_len as u64 + LEAST_UNREAD as u64
    }

    /// Returns the most bytes of memory that peers make this many pollers of a process use: slots, long
    /// messages that arrive, of which each poller may have one and a piece beyond its share, and what waits on
    /// the heap. A further device, free chunks that go back in some seconds, decoded messages, long messages that
    /// wait to be sent, and the streams of this process's own calls are not in it.
    #[must_use]
    pub fn most_memory(&self, pollers: u32) -> u64 {
        let of_connections = u64::from(self.max_connections) * LEAST_ON_HEAP;
        let beyond = self.max_message_len as u64 + self.piece_len as u64;
        let of_poller = self.registered_len() as u64 + beyond + of_connections;
        self.message_memory + self.waiting_memory() + u64::from(pollers) * of_poller
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
            max_message_len: 4 << 20,
            receives_posted: 2560,
            ..Limits::default()
        };
        let one = limits.most_memory(1);
        assert!((450 << 20..512 << 20).contains(&one), "{one}");
        let of_poller = 2560 * 4352 + (4 << 20) + (64 << 14);
        assert!(of_poller <= 16 << 20, "{of_poller}");
        assert_eq!(limits.most_memory(3) - one, 2 * of_poller);
        let printed = limits.to_string();
        assert!(printed.contains("with one poller"), "{printed}");
    }
}
