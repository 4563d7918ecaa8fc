//! [`Intents`]: the workload that a poller is sized for. [`Limits`]: the resulting sizes.

mod amount;
mod keepalive;
mod length;
mod most_memory;
mod setters;

use std::fmt;

pub(crate) use amount::{Bytes, Count};
pub use keepalive::Keepalive;
pub use length::LengthLimit;
pub(crate) use length::{Direction, MessageLimit};
pub(crate) use most_memory::{LEAST_ON_HEAP, LEAST_UNREAD};
pub(crate) use setters::intent_setters;

/// The expected workload of a server or a client. All sizes are derived from it; they can be
/// printed as [`Limits`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intents {
    /// Length in bytes of the longest encoded message to receive, at most 2 GiB. A longer one fails
    /// its call with `RESOURCE_EXHAUSTED`, on the side of the sender if it knows this limit. Default:
    /// 4 MiB, as in gRPC.
    pub max_message_len: usize,
    /// Length in bytes of the longest encoded message to send. Default: 2 GiB, the longest there is.
    pub max_send_message_len: usize,
    /// Bytes that this process may register for messages that are longer than a slot: for those that
    /// it receives, until their fields are dropped, and for those that it sends, at most half of it.
    /// One connection may use a quarter of it, or one message. Beyond it, a poller without memory gets
    /// some for one message, and for one piece of a message, on each device, so that two sides never
    /// wait for each other's, unless their applications keep messages while they wait. Default:
    /// 256 MiB.
    pub message_memory: u64,
    /// Whether a long message waits while [`message_memory`](Self::message_memory) is in use: a request
    /// up to the deadline of its call, a response (also one that ends a stream) for 15 seconds at most.
    /// If false, its call fails with `RESOURCE_EXHAUSTED`. A message always waits for memory that is
    /// being registered. Default: true.
    pub waits_for_memory: bool,
    /// Calls that one connection may have in flight at a time. Default: 128.
    pub max_in_flight: u32,
    /// Streams that one connection may have open at a time, apart from `max_in_flight`. The
    /// server's value counts, as in HTTP/2, and that of a client does nothing. Default: 100, the least that
    /// RFC 9113 (section 5.1.2) recommends. Further ones wait at the client. An idle stream
    /// needs no receive; each may hold as many bytes of unread messages as its window has
    /// ([`Limits::stream_window`]), as far as there is memory ([`Limits::most_memory`]).
    pub max_streams: u32,
    /// Connections that one poller supports. Default: 64. The handshake rejects further ones.
    pub connections: u32,
    /// Bytes that one poller may register for its slots, on all of its devices together. If they
    /// don't suffice, the poller uses fewer receives and send slots, and [`Limits::clamped`]
    /// reports it. If even the minimum does not fit, opening the poller fails with an error that
    /// states the required number. The device's queues are not included. Default: `None`, no limit
    /// other than the system's.
    pub max_memory: Option<u64>,
    /// How an idle poller waits. Default: [`Waiting::Adaptive`].
    pub waiting: Waiting,
    /// The cores to which the pollers' threads are pinned, one each, cyclically. A core that cannot be
    /// had is an error. An empty list disables pinning. Default: `None`. A poller that never sleeps
    /// ([`Waiting::Busy`]) is then pinned to a core that no other process of this network namespace
    /// has claimed for a poller of its own, the highest that is free, if the process may use more
    /// cores than it has such pollers. Other pollers are not pinned, and the thread of a
    /// [`LocalPoller`](crate::LocalPoller), which is the application's, is pinned only to a core that
    /// is named here, until the poller is dropped. [`Limits::cores`] has the outcome.
    ///
    /// Threads that a handler starts inherit the core of its poller: see `docs/threads.md`.
    pub cores: Option<Vec<usize>>,
    /// Whether to probe silent peers to check that their processes still run. Default: `None`, no
    /// probes. [`Keepalive`] describes the failures that are detected without them.
    pub keepalive: Option<Keepalive>,
    /// One call in this many is timed for the latencies of [`stats`](crate::stats): each with the same
    /// chance, whatever the order of the calls. With 1, every call is timed, so that the longest time
    /// is exact; this costs each call two reads of the clock. With 0, no call is timed. Default: 32.
    pub latency_sampling: u32,
}

/// How an idle poller waits. The modes trade CPU time for latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// Polls without pause. The lowest latency, at the cost of a core that is busy while it waits.
    Busy,
    /// Polls for longer than most responses take, then sleeps if nothing has arrived. The first
    /// message after a sleep pays for the wakeup, some tens of microseconds.
    #[default]
    Adaptive,
    /// Sleeps at once. Every message pays for the wakeup, and no core is kept busy.
    Event,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "busy",
            Self::Adaptive => "adaptive",
            Self::Event => "event",
        })
    }
}

impl Default for Intents {
    fn default() -> Self {
        Self {
            max_message_len: 4 << 20,
            max_send_message_len: LONGEST_MESSAGE,
            message_memory: 256 << 20,
            waits_for_memory: true,
            max_in_flight: 128,
            max_streams: 100,
            connections: 64,
            max_memory: None,
            waiting: Waiting::default(),
            cores: None,
            keepalive: None,
            // Two reads of the clock take some 50 ns: less than 2 ns per call.
            latency_sampling: 32,
        }
    }
}

impl Intents {
    /// Warns if the memory for messages that arrive does not suffice for two of the longest.
    pub(crate) fn warn_of_little_memory(&self) {
        // A message may use all of the memory while there is no other.
        let longest = self.message_memory;
        if self.max_message_len as u64 > longest {
            tracing::warn!(
                max_message_len = self.max_message_len,
                message_memory = self.message_memory,
                "messages of more than {longest} bytes will be refused, because the memory for long messages \
                 has no room for them. Raise `message_memory` to several times `max_message_len`"
            );
        } else if self.leaves_room_for_one() {
            tracing::warn!(
                max_message_len = self.max_message_len,
                message_memory = self.message_memory,
                "the memory for long messages has room for one of the longest: the next one waits until \
                 the fields of the first are dropped. Raise `message_memory` to several times \
                 `max_message_len`"
            );
        }
    }

    fn leaves_room_for_one(&self) -> bool {
        self.max_message_len as u64 > receive_memory(self.message_memory) / 2
    }
}

fn receive_memory(message_memory: u64) -> u64 {
    message_memory - message_memory / 8
}

/// Length in bytes of the longest message that can be sent at all, whatever the limits: 2 GiB.
pub const LONGEST_MESSAGE: usize = 1 << 31;

/// Bytes of a message that fit a slot, unless [`Intents::max_message_len`] is smaller. Most calls of
/// most services are shorter, and a poller registers hundreds of slots.
pub const SLOT_MESSAGE_LEN: usize = 4096;

/// The initial window of a stream, unless two frames are longer.
const STREAM_WINDOW: u32 = 32 * 1024;

/// Bytes of a slot that are set aside for the frame's header and the call's metadata.
///
/// The header takes 16 bytes. The rest holds a few short metadata entries, or a status with its
/// message, beside a message of full length. A multiple of 64, so that slots stay aligned to cache
/// lines.
pub const FRAME_OVERHEAD: usize = 256;

/// The sizes of one poller, by where each number applies. `Display` prints them line by line.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// The device's name. A poller with several devices reports the first one here.
    pub device: String,
    /// The device's address, for display: "port 1, GID 1 ::ffff:192.0.2.1, MTU 4096".
    pub address: String,
    /// What is in force of the settings for the device's fabric, for display: "traffic class 104 (DSCP
    /// 26), MTU up to 1024". Empty if there are none.
    pub fabric: String,
    /// Length in bytes of the longest encoded message that is received.
    pub max_message_len: usize,
    /// Length in bytes of the longest encoded message that is sent.
    pub max_send_message_len: usize,
    /// Bytes that the process may register for messages that are longer than a slot.
    pub message_memory: u64,
    /// Bytes that one connection may use for received messages that are longer than a slot: those
    /// that arrive, and those whose fields the application keeps. A message that is alone may
    /// exceed it.
    pub connection_memory: u64,
    /// Whether messages wait for that memory.
    pub waits_for_memory: bool,
    /// Bytes of a long message that are copied or read at a time.
    pub piece_len: usize,
    /// RDMA READs that may be outstanding on a connection. 0: long messages travel in fragments.
    pub read_depth: u8,
    /// How long messages travel over the device, and why.
    pub long_messages: String,
    /// Bytes of a slot, which bound the length of a frame.
    pub slot_len: usize,
    /// Longest frame, in bytes, that is sent inline, inside its work request.
    pub max_inline_len: usize,
    /// Receives kept posted in the shared receive queue.
    pub receives_posted: u32,
    /// Receives held by the async-event thread, which posts them when the poller falls behind.
    pub receives_reserved: u32,
    /// Receive slots that frames may occupy between their arrival and their release.
    pub receives_held: u32,
    /// Send slots: being written, queued or in flight.
    pub send_slots: u32,
    /// Work requests that one connection may have in its send queue.
    pub send_queue_depth: u32,
    /// One in this many sends requests a completion.
    pub signal_interval: u32,
    /// Capacity of the completion queue.
    pub completion_queue_depth: u32,
    /// Connections that fit.
    pub max_connections: u32,
    /// Calls in flight at a time on one connection.
    pub max_in_flight: u32,
    /// Streams open at a time on one connection.
    pub max_streams: u32,
    /// Bytes that the device locks for the queues of one connection, beside the slots: measured when
    /// the device was opened. 0: it locks none.
    pub locked_per_connection: u64,
    /// Whether silent peers are probed.
    pub keepalive: Option<Keepalive>,
    /// The core that each poller's thread is pinned to, in the order of the pollers. `None`: not pinned.
    /// A [`Channel`](crate::Channel) reports the first of its pollers that has opened its device.
    pub cores: Vec<Option<usize>>,
    /// One call in this many is timed.
    pub latency_sampling: u32,
    /// The sizes that the device or [`Intents::max_memory`] reduced below the wanted value: one
    /// sentence each.
    pub clamped: Vec<String>,
    /// The poller's other devices, in their order. All numbers here apply to each of them as well;
    /// their slots and queues come in addition.
    pub others: Vec<OtherDevice>,
}

/// Another device of the same poller: the values that differ from the first device's.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OtherDevice {
    /// The device's name.
    pub device: String,
    /// The device's address, for display.
    pub address: String,
    /// What is in force of the settings for its fabric, for display.
    pub fabric: String,
    /// Longest frame, in bytes, that is sent inline, inside its work request.
    pub max_inline_len: usize,
    /// Bytes that the device locks for the queues of one connection.
    pub locked_per_connection: u64,
}

impl Limits {
    /// Returns the number of slots in a poller's one registration on a device: the sum over all
    /// uses of a slot.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.receives_posted + self.receives_reserved + self.receives_held + self.send_slots
    }

    /// Returns the bytes of messages that a stream's peer may send before this side's reader has taken
    /// any: the initial window of the stream. It doubles while the peer uses all of it and the reader
    /// keeps up.
    #[must_use]
    pub fn stream_window(&self) -> u32 {
        // A sender that waits for the window may have one frame in hand, and a grant comes when half
        // of the window is owed.
        let two_frames = u32::try_from(self.slot_len.saturating_mul(2)).unwrap_or(u32::MAX);
        two_frames.clamp(STREAM_WINDOW, i32::MAX as u32)
    }

    /// Returns the bytes registered for the poller's slots on a device.
    #[must_use]
    pub fn registered_len(&self) -> usize {
        self.slots() as usize * self.slot_len
    }

    /// Returns the number of receives that may be promised to peers, whichever device they use: the
    /// receives posted on each device plus its reserve.
    #[must_use]
    pub fn promisable_receives(&self) -> u32 {
        self.receives_posted + self.receives_reserved
    }

    /// Returns the bytes of [`message_memory`](Self::message_memory) that messages which arrive, and
    /// their fields that the application keeps, may use in whole chunks: seven eighths of it. A message
    /// that is alone may exceed it.
    #[must_use]
    pub fn receive_memory(&self) -> u64 {
        receive_memory(self.message_memory)
    }

    /// Returns the length in bytes of the longest encoded message that fits a slot beside a little
    /// metadata.
    #[must_use]
    pub fn slot_message_len(&self) -> usize {
        self.slot_len.saturating_sub(FRAME_OVERHEAD)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |len: usize| Bytes(len as u64);
        writeln!(
            f,
            "device {}, each poller: messages up to {} received and {} sent, {}, {} in flight and {} on each",
            self.device,
            bytes(self.max_message_len),
            bytes(self.max_send_message_len),
            Count(self.max_connections, "connection"),
            Count(self.max_in_flight, "call"),
            Count(self.max_streams, "stream")
        )?;
        if !self.address.is_empty() {
            writeln!(f, "  address    {}", self.address)?;
        }
        if !self.fabric.is_empty() {
            writeln!(f, "  fabric     {}", self.fabric)?;
        }
        writeln!(
            f,
            "  slots      {:>6} = {} receives posted + {} in reserve + {} held + {} for sending, of {} bytes each: {} registered",
            self.slots(),
            self.receives_posted,
            self.receives_reserved,
            self.receives_held,
            self.send_slots,
            self.slot_len,
            bytes(self.registered_len())
        )?;
        write!(
            f,
            "  queues     {:>6} sends per connection, one in {} signaled, inline up to {} bytes; {} completions",
            self.send_queue_depth,
            self.signal_interval,
            self.max_inline_len,
            self.completion_queue_depth
        )?;
        let locked = |len: u64| {
            format!(
                "{} of locked memory for those of each connection",
                Bytes(len)
            )
        };
        if self.locked_per_connection > 0 {
            write!(f, "\n             {}", locked(self.locked_per_connection))?;
        }
        write!(f, "\n  long       messages that do not fit a slot")?;
        for sentence in self.long_messages.split("; ") {
            write!(f, "\n             {sentence}")?;
        }
        write!(
            f,
            "\n             pieces of {}, {} at a time on a connection\
             \n             {} of memory for the process, {} of it for those that arrive, and {} for a connection",
            bytes(self.piece_len),
            Count(self.read_depth.into(), "READ"),
            Bytes(self.message_memory),
            Bytes(self.receive_memory()),
            Bytes(self.connection_memory)
        )?;
        write!(
            f,
            "\n  waiting    {} of the heap for streams, messages and frames that wait on behalf of peers\
             \n  most       {} of memory that peers use, with one poller, and {} for each further one",
            Bytes(self.waiting_memory()),
            Bytes(self.most_memory(1)),
            Bytes(self.most_memory(2) - self.most_memory(1))
        )?;
        for (poller, core) in self.cores.iter().enumerate() {
            let start = if poller == 0 { "\n  cores      " } else { ", " };
            match core {
                Some(core) => write!(f, "{start}core {core}")?,
                None => write!(f, "{start}not pinned")?,
            }
        }
        if let Some(keepalive) = &self.keepalive {
            write!(f, "\n  keepalive  {keepalive}")?;
        }
        for sentence in &self.clamped {
            write!(f, "\n  clamped    {sentence}")?;
        }
        for other in &self.others {
            write!(
                f,
                "\n  also       device {}, with the same numbers of slots and queues: {}, inline up to {} bytes",
                other.device, other.address, other.max_inline_len
            )?;
            if other.locked_per_connection > 0 {
                write!(f, ", {}", locked(other.locked_per_connection))?;
            }
            if !other.fabric.is_empty() {
                write!(f, ", {}", other.fabric)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_two_of_the_longest_messages_is_enough() {
        let intents = |max_message_len| Intents {
            max_message_len,
            message_memory: 16 << 20,
            ..Intents::default()
        };
        assert!(!Intents::default().leaves_room_for_one());
        assert!(!intents(7 << 20).leaves_room_for_one());
        assert!(intents((7 << 20) + 1).leaves_room_for_one());
        assert!(intents(LONGEST_MESSAGE).leaves_room_for_one());
    }

    #[test]
    fn memory_that_a_device_locks_for_queues_is_printed_if_there_is_some() {
        let mut limits = Limits {
            others: vec![OtherDevice::default()],
            ..Limits::default()
        };
        assert!(!limits.to_string().contains("locked"), "{limits}");
        limits.locked_per_connection = 128 << 10;
        limits.others[0].locked_per_connection = 64 << 10;
        let printed = limits.to_string();
        for queues in ["128 KiB of locked memory", ", 64 KiB of locked memory"] {
            assert!(printed.contains(queues), "{printed}");
        }
    }

    #[test]
    fn settings_of_a_fabric_are_printed_if_there_are_some() {
        let mut limits = Limits {
            address: "port 1".to_owned(),
            others: vec![OtherDevice::default()],
            ..Limits::default()
        };
        assert!(!limits.to_string().contains("fabric"), "{limits}");
        limits.fabric = "traffic class 104".to_owned();
        limits.others[0].fabric = "traffic class 8".to_owned();
        let printed = limits.to_string();
        let expected = "  address    port 1\n  fabric     traffic class 104\n  slots";
        assert!(printed.contains(expected), "{printed}");
        assert!(printed.ends_with(", traffic class 8"), "{printed}");
    }

    #[test]
    fn the_memory_that_messages_have_is_printed() {
        let limits = Limits {
            message_memory: 64 << 20,
            connection_memory: 16 << 20,
            ..Limits::default()
        };
        assert_eq!(limits.receive_memory(), 56 << 20);
        let printed = limits.to_string();
        for number in [
            "64 MiB of memory",
            "56 MiB of it",
            "16 MiB for a connection",
        ] {
            assert!(printed.contains(number), "{printed}");
        }
    }
}
