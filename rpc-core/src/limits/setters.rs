//! [`intent_setters`]: the settings that every builder of pollers has.

/// Expands to one setter for each intent that servers, channels and pollers have in common. The builder
/// has a field `intents`.
macro_rules! intent_setters {
    () => {
        /// Sets all intents at once, for example those of a configuration file. Settings that follow
        /// change single ones.
        pub fn intents(mut self, intents: $crate::limits::Intents) -> Self {
            self.intents = intents;
            self
        }

        /// Sets the length in bytes of the longest encoded message to receive: see
        /// [`Intents::max_message_len`](crate::Intents::max_message_len).
        pub fn max_message_len(mut self, bytes: usize) -> Self {
            self.intents.max_message_len = bytes;
            self
        }

        /// Sets the length in bytes of the longest encoded message to send: see
        /// [`Intents::max_send_message_len`](crate::Intents::max_send_message_len).
        pub fn max_send_message_len(mut self, bytes: usize) -> Self {
            self.intents.max_send_message_len = bytes;
            self
        }

        /// Limits the bytes that the process registers for long messages: see
        /// [`Intents::message_memory`](crate::Intents::message_memory).
        pub fn message_memory(mut self, bytes: u64) -> Self {
            self.intents.message_memory = bytes;
            self
        }

        /// Sets whether long messages wait for memory, or are refused: see
        /// [`Intents::waits_for_memory`](crate::Intents::waits_for_memory).
        pub fn waits_for_memory(mut self, waits: bool) -> Self {
            self.intents.waits_for_memory = waits;
            self
        }

        /// Sets how many streams one connection may have open: see
        /// [`Intents::max_streams`](crate::Intents::max_streams).
        pub fn max_streams(mut self, streams: u32) -> Self {
            self.intents.max_streams = streams;
            self
        }

        /// Limits the bytes that each poller may register for its slots: see
        /// [`Intents::max_memory`](crate::Intents::max_memory).
        pub fn max_memory(mut self, bytes: u64) -> Self {
            self.intents.max_memory = Some(bytes);
            self
        }

        /// Sets how idle pollers wait: see [`Waiting`](crate::Waiting).
        pub fn waiting(mut self, waiting: $crate::limits::Waiting) -> Self {
            self.intents.waiting = waiting;
            self
        }

        /// Sets the cores to which the pollers are pinned, or disables pinning with an empty list: see
        /// [`Intents::cores`](crate::Intents::cores).
        pub fn cores(mut self, cores: impl IntoIterator<Item = usize>) -> Self {
            self.intents.cores = Some(cores.into_iter().collect());
            self
        }

        /// Probes silent peers to check that they still run, and closes the connections of those that do
        /// not answer: see [`Intents::keepalive`](crate::Intents::keepalive).
        pub fn keepalive(mut self, keepalive: $crate::limits::Keepalive) -> Self {
            self.intents.keepalive = Some(keepalive);
            self
        }

        /// Sets that one call in this many is timed, 1 for every call: see
        /// [`Intents::latency_sampling`](crate::Intents::latency_sampling).
        pub fn latency_sampling(mut self, one_in: u32) -> Self {
            self.intents.latency_sampling = one_in;
            self
        }
    };
}

pub(crate) use intent_setters;
