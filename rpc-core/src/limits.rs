//! What a poller is asked to be good for ([`Intents`]), and what was made of it ([`Limits`]).

mod keepalive;

use std::fmt;

pub use keepalive::Keepalive;

/// What a server or a client says about its work. Everything else is derived from it, and can be
/// printed as [`Limits`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intents {
    /// The longest encoded message, in bytes, that is received or sent; a slot is this long plus
    /// the frame's header and a little metadata. Default: 4096.
    pub max_message_len: usize,
    /// Calls that one connection may have under way at a time. Default: 128.
    pub max_in_flight: u32,
    /// Connections that one poller should hold. Default: 64. The handshake refuses more.
    pub connections: u32,
    /// Bytes that one poller may register for its slots, on all of its devices together. It makes do with
    /// fewer receives and send slots if it must, and [`Limits::clamped`] says so; where even the fewest
    /// do not fit, opening it is refused with the number that would. The device's queues come on top.
    /// Default: `None`, no limit but that of the system.
    pub max_memory: Option<u64>,
    /// What a poller does while there is nothing to do. Default: [`Waiting::Adaptive`].
    pub waiting: Waiting,
    /// Whether peers are asked, when they are silent, if their processes still run. Default: `None`,
    /// they are not: see [`Keepalive`] for what is noticed without.
    pub keepalive: Option<Keepalive>,
}

/// What a poller does while there is nothing to do: what to spend for an answer that comes sooner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// It looks again and again. The quickest, and it keeps a core busy for as long as it waits.
    Busy,
    /// It looks again and again for longer than most answers take, and sleeps when nothing has come
    /// by then. The first message after a rest pays for the waking up, some tens of microseconds.
    #[default]
    Adaptive,
    /// It sleeps at once. Every message pays for the waking up, and no core is kept busy.
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
            max_message_len: 4096,
            max_in_flight: 128,
            connections: 64,
            max_memory: None,
            waiting: Waiting::default(),
            keepalive: None,
        }
    }
}

/// How many bytes of a slot are set aside for the frame's header and the call's metadata.
///
/// 16 bytes of header; the rest holds a few short metadata entries or a status with its message
/// beside a message of full length. A multiple of 64, so that slots stay aligned to cache lines.
pub const FRAME_OVERHEAD: usize = 256;

/// What one poller was sized to, each number with its place. Printed line by line.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// The device's name; of several, the first one's.
    pub device: String,
    /// Where the device is reached, for people: "port 1, GID 1 ::ffff:192.0.2.1, MTU 4096".
    pub address: String,
    /// Bytes of a slot, and so of the longest frame.
    pub slot_len: usize,
    /// Bytes up to which a frame travels inside its work request.
    pub max_inline_len: usize,
    /// Receives kept posted in the shared receive queue.
    pub receives_posted: u32,
    /// Receives in the hands of the async-event thread, posted when the poller lags.
    pub receives_reserved: u32,
    /// Receive slots that frames may occupy between their arrival and their release.
    pub receives_held: u32,
    /// Send slots: written, queued or in flight.
    pub send_slots: u32,
    /// Work requests that one connection may have in its send queue.
    pub send_queue_depth: u32,
    /// One send in this many asks for a completion.
    pub signal_interval: u32,
    /// Completions that the completion queue holds.
    pub completion_queue_depth: u32,
    /// Connections that fit.
    pub max_connections: u32,
    /// Calls under way at a time on one connection.
    pub max_in_flight: u32,
    /// Whether silent peers are asked if they still run.
    pub keepalive: Option<Keepalive>,
    /// What the device or [`Intents::max_memory`] made smaller than it was wanted: a sentence for each.
    pub clamped: Vec<String>,
    /// The devices that a poller has beside this one, in their order. All the numbers here hold for
    /// each of them too, and its slots and queues come on top.
    pub others: Vec<OtherDevice>,
}

/// Another device of the same poller: what differs from the first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct OtherDevice {
    /// Its name.
    pub device: String,
    /// Where it is reached, for people.
    pub address: String,
    /// Bytes up to which a frame travels inside its work request.
    pub max_inline_len: usize,
}

impl Limits {
    /// Slots in a poller's one registration on a device: the sum of the places where a slot can be.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.receives_posted + self.receives_reserved + self.receives_held + self.send_slots
    }

    /// Bytes registered for the poller on a device.
    #[must_use]
    pub fn registered_len(&self) -> usize {
        self.slots() as usize * self.slot_len
    }

    /// Receives that may be promised to peers, whatever devices they come over: what is posted on
    /// each device plus what is in reserve there.
    #[must_use]
    pub fn promisable_receives(&self) -> u32 {
        self.receives_posted + self.receives_reserved
    }

    /// The longest encoded message that fits a slot.
    #[must_use]
    pub fn max_message_len(&self) -> usize {
        self.slot_len.saturating_sub(FRAME_OVERHEAD)
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "device {}, each poller: messages up to {} bytes, {} connections, {} calls in flight on each",
            self.device,
            self.max_message_len(),
            self.max_connections,
            self.max_in_flight
        )?;
        if !self.address.is_empty() {
            writeln!(f, "  address    {}", self.address)?;
        }
        writeln!(
            f,
            "  slots      {:>6} = {} receives posted + {} in reserve + {} held + {} for sending, of {} bytes each: {} KiB registered",
            self.slots(),
            self.receives_posted,
            self.receives_reserved,
            self.receives_held,
            self.send_slots,
            self.slot_len,
            self.registered_len() / 1024
        )?;
        write!(
            f,
            "  queues     {:>6} sends deep, one in {} signaled, inline up to {} bytes; {} completions",
            self.send_queue_depth,
            self.signal_interval,
            self.max_inline_len,
            self.completion_queue_depth
        )?;
        if let Some(keepalive) = &self.keepalive {
            write!(f, "\n  keepalive  {keepalive}")?;
        }
        for sentence in &self.clamped {
            write!(f, "\n  clamped    {sentence}")?;
        }
        for other in &self.others {
            write!(
                f,
                "\n  then       device {}, with as many slots and queues again: {}, inline up to {} bytes",
                other.device, other.address, other.max_inline_len
            )?;
        }
        Ok(())
    }
}
