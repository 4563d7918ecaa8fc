//! The statistics of a poller's internals: each group both as a poller counts it and as a snapshot.

use super::counter::{Counter, Gauge};

/// Declares a group of counters and gauges in two forms: atomics that a poller writes, and a
/// snapshot of plain data that can be subtracted, added and listed.
macro_rules! group {
    (
        $(#[$about:meta])*
        $name:ident read from $counters:ident
        counters { $($(#[doc = $counter_about:literal])* $counter:ident,)* }
        gauges { $($(#[doc = $gauge_about:literal])* $gauge:ident,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[doc = $counter_about])* pub $counter: u64,)*
            $($(#[doc = $gauge_about])* pub $gauge: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct $counters {
            $(pub(crate) $counter: Counter,)*
            $(pub(crate) $gauge: Gauge,)*
        }

        impl $counters {
            pub(crate) fn read(&self) -> $name {
                $name {
                    $($counter: self.$counter.get(),)*
                    $($gauge: self.$gauge.get(),)*
                }
            }
        }

        impl $name {
            pub(crate) fn since(self, earlier: Self) -> Self {
                // Not used by a group without counters.
                let _ = earlier;
                Self {
                    $($counter: self.$counter.saturating_sub(earlier.$counter),)*
                    $($gauge: self.$gauge,)*
                }
            }

            pub(crate) fn plus(self, other: Self) -> Self {
                Self {
                    $($counter: self.$counter + other.$counter,)*
                    $($gauge: self.$gauge + other.$gauge,)*
                }
            }

            /// Returns the counters: the name, the meaning and the count of each.
            #[must_use = "it is a list"]
            pub fn counters(self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((
                    stringify!($counter),
                    concat!($($counter_about),*).trim_ascii_start(),
                    self.$counter,
                ),)*]
                .into_iter()
            }

            /// Returns the gauges: the name, the meaning and the value of each.
            #[must_use = "it is a list"]
            pub fn gauges(self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((
                    stringify!($gauge),
                    concat!($($gauge_about),*).trim_ascii_start(),
                    self.$gauge,
                ),)*]
                .into_iter()
            }
        }
    };
}

group! {
    /// How a poller spends its time.
    Turns read from TurnCounters
    counters {
        /// Turns taken. A turn polls the device and processes what it finds.
        taken,
        /// Of these, turns that found something to do.
        busy,
        /// Times that the poller went to sleep because nothing arrived.
        slept,
        /// Times that the poller woke up: one less than `slept` while it sleeps.
        woken,
        /// Nanoseconds that the poller has slept, excluding a current sleep.
        asleep_ns,
    }
    gauges {}
}

group! {
    /// Calls and responses that had to wait, by the resource that they waited for. Each counter
    /// counts a call or response at most once.
    Stalls read from StallCounters
    counters {
        /// Calls that started while the server's limit for this client was reached: either the
        /// credits or the calls in flight per connection were exhausted.
        no_credit,
        /// Calls for whose response no receive could be promised, because the poller's own receives
        /// were exhausted.
        no_receive,
        /// Calls that found no free send slot.
        no_send_slot,
        /// Calls that queued behind other waiting calls.
        queued,
        /// Requests of a shared channel that its poller could not send at once, because it was not
        /// connected or for one of the reasons above.
        backlogged,
        /// Calls of a shared channel that waited for a call permit, because `max_in_flight` calls
        /// were in flight.
        no_permit,
        /// Of these, calls that gave up before they got a permit. No method's statistics include
        /// them.
        gave_up,
        /// Responses that found no free send slot.
        responses,
    }
    gauges {
        /// Calls that currently wait, on all connections of the poller.
        calls_waiting,
        /// Responses that currently wait.
        responses_waiting,
    }
}

group! {
    /// Streams: calls with any number of messages.
    Streams read from StreamCounters
    counters {
        /// Streams opened, by this side or by clients.
        opened,
        /// Streams that have ended on both sides.
        ended,
        /// Frames sent with messages, grants, or the end of this side's messages.
        frames_sent,
        /// Frames received with the same.
        frames_received,
        /// Times that a stream waited for a credit of its connection.
        stalled,
    }
    gauges {
        /// Streams that are open now.
        open,
    }
}

group! {
    /// Calls that their client has taken back, by how far they had got.
    Cancels read from CancelCounters
    counters {
        /// Client: calls that were never sent.
        never_sent,
        /// Client: calls whose server was told.
        in_flight,
        /// Server: calls whose request still waited. It was not decoded.
        before_start,
        /// Server: calls whose handler was dropped.
        running,
        /// Server: calls that had been answered already.
        too_late,
    }
    gauges {}
}

group! {
    /// Receives, and how many of them are promised.
    Credits read from CreditCounters
    counters {
        /// Frames sent only for their credits.
        frames_sent,
    }
    gauges {
        /// Receives that may be promised: those posted plus those in reserve.
        budget,
        /// Of these, receives that are promised: to clients, and to responses that have not arrived
        /// yet.
        promised,
        /// Sum of the windows granted to clients.
        windows,
        /// Requests that this side may send at once, summed over all its servers.
        available,
    }
}

group! {
    /// The handlers of a server.
    Handlers read from HandlerCounters
    counters {
        /// Calls whose handler awaited something, counted once each. All other handlers completed
        /// in their first poll.
        awaited,
        /// Calls rejected without decoding, because the limit of concurrent calls was reached.
        shed,
        /// Calls whose deadline had passed before their handler was started.
        expired,
        /// Calls refused because the poller was overloaded: they had waited for too long, or had too
        /// little time left.
        refused,
    }
    gauges {
        /// Calls whose handlers are currently parked, awaiting something.
        parked,
        /// Calls that have been received and whose handlers have not started.
        queued,
    }
}

group! {
    /// The connections of a poller.
    Connections read from ConnectionCounters
    counters {
        /// Clients accepted.
        accepted,
        /// Servers connected to.
        connected,
        /// Failed attempts to connect to a server.
        not_connected,
        /// Connections closed by this side, because the channel was dropped or this side stopped.
        closed_locally,
        /// Connections closed by the peer or by the end of its process.
        closed_by_peer,
        /// Connections that failed because of the device or because the peer was silent for too
        /// long. The log has the error.
        failed,
        /// Connections closed by this side because the peer violated the protocol.
        violated,
    }
    gauges {}
}

group! {
    /// Long messages: those that do not fit a frame.
    Transfers read from TransferCounters
    counters {
        /// Messages that were begun to be sent.
        sent,
        /// Messages that began to arrive.
        received,
        /// Bytes that were sent, or described for the receiver to read.
        bytes_sent,
        /// Bytes that have arrived.
        bytes_received,
        /// Of the bytes sent, those that were copied into slots or registered memory.
        bytes_copied,
        /// Of the bytes sent, those that the receiver reads where they are.
        bytes_by_reference,
        /// Of the bytes received, those that were read from the sender's memory.
        bytes_fetched,
        /// Of the bytes received, those that arrived in slots.
        bytes_in_fragments,
        /// Bytes of fields that were copied out of received messages.
        bytes_copied_in,
        /// READs begun.
        reads,
        /// Messages that have waited for memory.
        waited,
        /// Messages that got no memory.
        refused,
        /// Messages that their receiver stopped.
        stopped,
    }
    gauges {}
}

group! {
    /// Memory of long messages, in bytes.
    Memory read from MemoryCounters
    counters {}
    gauges {
        /// Registered with the devices.
        registered,
        /// Of messages that are being received, for all of which there is memory.
        posted,
        /// That peers may read.
        in_flight,
        /// In fields that the application keeps.
        held,
        /// That are kept only because peers do not take them: the call has ended, or the peer has
        /// done nothing for 15 seconds. Includes bytes that have not been sent.
        pinned,
    }
}

impl Turns {
    /// Returns the number of turns that found nothing to do.
    #[must_use]
    pub fn empty(&self) -> u64 {
        self.taken.saturating_sub(self.busy)
    }
}

impl Connections {
    /// Returns the number of open connections.
    #[must_use]
    pub fn open(&self) -> u64 {
        (self.accepted + self.connected).saturating_sub(self.closed())
    }

    /// Returns the number of connections that have ended, for any reason.
    #[must_use]
    pub fn closed(&self) -> u64 {
        self.closed_locally + self.closed_by_peer + self.failed + self.violated
    }
}
