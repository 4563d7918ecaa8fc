//! [`GatewayLimits`]: what bounds the clients of a gateway, and the memory that they can take.

use std::fmt;
use std::time::Duration;

use verbline::message::LONGEST_MESSAGE;

use crate::unread::{FRAME_MEMORY, MAX_UNREAD_FRAMES};

/// Bytes of a request that its client may send before the gateway reads them. With half of it, requests
/// of 1 MiB took a quarter more time over the loopback interface; with four times as much, no less.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;

/// Bytes of all requests of a connection that have not been read: so many that fifteen requests that
/// nobody reads leave room for other calls.
pub(crate) const CONNECTION_WINDOW: u32 = 16 * STREAM_WINDOW;

/// Bytes that one connection can take besides what has not been read: buffers, and what h2 takes for the
/// frames in which requests came.
const CONNECTION_MEMORY: u64 = MAX_UNREAD_FRAMES * FRAME_MEMORY + (128 << 10);

/// Bytes that TLS can take for one connection besides: records to send, 64 KiB; what has arrived of a
/// message of a handshake, as much; and a record that has been opened, 16 KiB.
const TLS_MEMORY: u64 = 160 << 10;

/// Bytes of responses that HTTP/2's implementation keeps for one call before it asks for no more.
pub(crate) const SEND_BUFFER_LEN: usize = 64 << 10;

/// Bytes that one call can take besides long messages: its headers, a frame of HTTP/2, a short
/// message, and responses that wait for the client.
const CALL_MEMORY: u64 = (96 << 10) + SEND_BUFFER_LEN as u64;

/// Longer times are cut to this one.
const LONGEST_TIME: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// The limits of a gateway. [`Display`](fmt::Display) prints them with the memory that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatewayLimits {
    /// Connections that are open at a time. Further ones are closed at once.
    pub max_connections: usize,
    /// Calls that are open at a time, on all connections. Further ones fail with
    /// `RESOURCE_EXHAUSTED` and were never sent.
    pub max_calls: usize,
    /// Calls that one connection may have open at a time. Further ones wait at the client.
    pub max_streams: u32,
    /// Length in bytes of the longest message of a request. The limits of the server, and of the
    /// channel, apply too.
    pub max_message_len: usize,
    /// Bytes that requests with long messages may take, from their first byte here until they have
    /// been sent to the server. One connection may use a quarter of it, or one message. Further ones
    /// wait.
    pub message_memory: u64,
    /// Bytes that the headers of a request may have.
    pub max_header_len: u32,
    /// How often a connection is probed with a ping.
    pub keepalive_interval: Duration,
    /// How long the answer to a ping may take before the connection is closed.
    pub keepalive_timeout: Duration,
    /// Whether connections are of TLS, which takes memory for each of them.
    pub has_tls: bool,
    /// How long a connection may take for the handshake of TLS, if there is one, and for the preface of
    /// HTTP/2, 24 bytes.
    pub preface_time: Duration,
    /// How long a message of a request may take from its first byte to its last, apart from waits
    /// for memory.
    pub message_time: Duration,
    /// How long a client may read nothing of a long message of a response before its call ends.
    pub stall_time: Duration,
    /// The age at which a connection is told to end, ± 10 %. Its client connects again, perhaps to
    /// another gateway.
    pub max_connection_age: Option<Duration>,
    /// How long the calls of such a connection may go on.
    pub connection_grace: Duration,
    /// How long calls in flight may go on after the shutdown has begun.
    pub drain_time: Duration,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            max_connections: 1024,
            max_calls: 8192,
            max_streams: 256,
            // As in gRPC.
            max_message_len: 4 << 20,
            message_memory: 256 << 20,
            // As in hyper.
            max_header_len: 16 << 10,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(20),
            has_tls: false,
            preface_time: Duration::from_secs(5),
            message_time: Duration::from_secs(60),
            stall_time: Duration::from_secs(60),
            max_connection_age: None,
            connection_grace: Duration::from_secs(30),
            drain_time: Duration::from_secs(30),
        }
    }
}

impl GatewayLimits {
    /// Returns the most bytes that clients can make the gateway take, apart from long messages of
    /// responses, which are in the channel's message memory.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let connections = self.max_connections as u64;
        let calls = self.max_calls as u64;
        let unread = u64::min(
            connections.saturating_mul(CONNECTION_WINDOW.into()),
            calls.saturating_mul(STREAM_WINDOW.into()),
        );
        let of_connection = match self.has_tls {
            true => CONNECTION_MEMORY + TLS_MEMORY,
            false => CONNECTION_MEMORY,
        };
        connections
            .saturating_mul(of_connection)
            .saturating_add(unread)
            .saturating_add(calls.saturating_mul(CALL_MEMORY))
            .saturating_add(self.message_memory)
    }

    /// Makes the limits fit each other.
    pub(crate) fn fitted(mut self) -> Self {
        self.max_message_len = self.max_message_len.min(LONGEST_MESSAGE);
        self.message_memory = self.message_memory.max(self.max_message_len as u64);
        // Clocks end before `Duration::MAX`, by which users say "never".
        self.keepalive_interval = self.keepalive_interval.min(LONGEST_TIME);
        self.keepalive_timeout = self.keepalive_timeout.min(LONGEST_TIME);
        self
    }

    /// How often each connection is looked at.
    pub(crate) fn look_interval(&self) -> Duration {
        let age = self.max_connection_age.unwrap_or(Duration::MAX);
        let shortest = self.stall_time.min(age).min(self.connection_grace);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
    }
}

impl fmt::Display for GatewayLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "connections        {} {}, {} calls each, {} calls in all",
            self.max_connections,
            if self.has_tls {
                "with TLS"
            } else {
                "in plain text"
            },
            self.max_streams,
            self.max_calls
        )?;
        writeln!(
            f,
            "requests           messages of {} bytes, headers of {} bytes",
            self.max_message_len, self.max_header_len
        )?;
        writeln!(
            f,
            "times              preface {:?}, message {:?}, stalled response {:?}, drain {:?}",
            self.preface_time, self.message_time, self.stall_time, self.drain_time
        )?;
        writeln!(
            f,
            "keepalive          every {:?}, answered within {:?}",
            self.keepalive_interval, self.keepalive_timeout
        )?;
        match self.max_connection_age {
            Some(age) => writeln!(
                f,
                "age of connections {age:?}, then {:?} for their calls",
                self.connection_grace
            )?,
            None => writeln!(f, "age of connections any")?,
        }
        write!(
            f,
            "memory             {} MiB at most, of which {} MiB for long messages of requests",
            self.memory() >> 20,
            self.message_memory >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of docs/gateway.md.
    #[test]
    fn the_memory_follows_from_connections_and_calls() {
        let limits = GatewayLimits::default();
        assert_eq!(limits.memory() >> 20, 7808);
        let few_connections = GatewayLimits {
            max_connections: 100,
            ..limits.clone()
        };
        assert_eq!(few_connections.memory() >> 20, 2348);
        let with_tls = GatewayLimits {
            has_tls: true,
            ..limits.clone()
        };
        assert_eq!(with_tls.memory() >> 20, 7968);
        let few_calls = GatewayLimits {
            max_calls: 0,
            message_memory: 0,
            ..limits
        };
        assert_eq!(few_calls.memory(), 1024 * CONNECTION_MEMORY);
    }

    #[test]
    fn times_that_never_end_can_be_added_to_a_moment() {
        let limits = GatewayLimits {
            keepalive_interval: Duration::MAX,
            keepalive_timeout: Duration::MAX,
            ..GatewayLimits::default()
        };
        let fitted = limits.fitted();
        let now = std::time::Instant::now();
        for time in [fitted.keepalive_interval, fitted.keepalive_timeout] {
            assert!(now.checked_add(time).is_some());
        }
    }
}
