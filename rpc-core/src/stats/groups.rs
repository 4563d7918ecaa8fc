//! What is counted of a poller's machinery: each group as a poller counts it, and as it is read.

use super::counter::{Counter, Level};

/// A group of numbers, once as atomics that a poller writes, and once as plain data that is read,
/// subtracted, added up and listed.
macro_rules! group {
    (
        $(#[$about:meta])*
        $name:ident read from $tally:ident
        counts { $($(#[$count_about:meta])* $count:ident,)* }
        levels { $($(#[$level_about:meta])* $level:ident,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$count_about])* pub $count: u64,)*
            $($(#[$level_about])* pub $level: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct $tally {
            $(pub(crate) $count: Counter,)*
            $(pub(crate) $level: Level,)*
        }

        impl $tally {
            pub(crate) fn read(&self) -> $name {
                $name {
                    $($count: self.$count.get(),)*
                    $($level: self.$level.get(),)*
                }
            }
        }

        impl $name {
            pub(crate) fn since(self, earlier: Self) -> Self {
                Self {
                    $($count: self.$count.saturating_sub(earlier.$count),)*
                    $($level: self.$level,)*
                }
            }

            pub(crate) fn plus(self, other: Self) -> Self {
                Self {
                    $($count: self.$count + other.$count,)*
                    $($level: self.$level + other.$level,)*
                }
            }

            /// What only grows, by name.
            #[must_use = "it is a list"]
            pub fn counts(self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($count), self.$count),)*].into_iter()
            }

            /// What goes up and down, by name.
            #[must_use = "it is a list"]
            pub fn levels(self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($level), self.$level),)*].into_iter()
            }
        }
    };
}

group! {
    /// How a poller spends its time.
    Turns read from TurnsTally
    counts {
        /// Turns taken: looks at the device, and what followed from them.
        taken,
        /// Of these, those that found something to do.
        busy,
        /// Times that the poller went to sleep, as nothing came.
        slept,
        /// Times that it woke up again: one less than `slept` while it sleeps.
        woken,
        /// Nanoseconds that it has slept, those of the present sleep left out.
        asleep_ns,
    }
    levels {}
}

group! {
    /// What had to wait, and for what. Each call and each response is counted once in a line.
    Stalls read from StallsTally
    counts {
        /// Calls that were begun when as many were under way as the server lets this client have:
        /// credits, or the most calls in flight on a connection, were used up.
        no_credit,
        /// Calls for whose answers no receive could be promised: the poller's own are used up.
        no_receive,
        /// Calls that found no send slot.
        no_send_slot,
        /// Calls that queued up behind others that waited.
        in_line,
        /// Requests of a shared channel that its poller could not send at once, for want of a
        /// connection or for one of the reasons above.
        backlogged,
        /// Calls of a shared channel that waited for a ticket: as many were under way as
        /// `max_in_flight` allows.
        no_ticket,
        /// Of these, those that gave up before they got one. They are in no method's line.
        gave_up,
        /// Responses that found no send slot.
        responses,
    }
    levels {
        /// Calls that wait at present, on all connections of the poller.
        calls_waiting,
        /// Responses that wait at present.
        responses_waiting,
    }
}

group! {
    /// Receives, and who they are promised to.
    Credits read from CreditsTally
    counts {
        /// Frames that were sent for their credits alone.
        frames_sent,
    }
    levels {
        /// Receives that may be promised: what is posted, and what is in reserve.
        budget,
        /// Of these, those that are promised: to clients, and to answers that are to come.
        promised,
        /// The windows that clients were granted, together.
        windows,
        /// Requests that this side may send at once, to all its servers together.
        available,
    }
}

group! {
    /// Handlers of a server.
    Handlers read from HandlersTally
    counts {
        /// Calls that awaited something, once each: the others were done when they were first polled.
        awaited,
        /// Calls that were shed, not decoded, since as many were at work as may be.
        shed,
        /// Calls whose deadline had passed before they were begun.
        expired,
    }
    levels {
        /// Calls that are at work at present, awaiting something.
        parked,
    }
}

group! {
    /// Connections of a poller.
    Connections read from ConnectionsTally
    counts {
        /// Clients that were taken in.
        accepted,
        /// Servers that were connected to.
        connected,
        /// Attempts to connect to a server that failed.
        not_connected,
        /// Ended by this side: its channel is gone, or it stopped.
        closed_locally,
        /// Ended by the peer, or with its process.
        closed_by_peer,
        /// Ended by the device, or since the peer was silent for too long: see the log, which has the
        /// error.
        failed,
        /// Ended by this side since the peer broke a rule of the protocol.
        violated,
    }
    levels {}
}

impl Turns {
    /// Turns that found nothing to do.
    #[must_use]
    pub fn empty(&self) -> u64 {
        self.taken.saturating_sub(self.busy)
    }
}

impl Connections {
    /// Connections that are up.
    #[must_use]
    pub fn open(&self) -> u64 {
        (self.accepted + self.connected).saturating_sub(self.closed())
    }

    /// Connections that have ended, for whatever reason.
    #[must_use]
    pub fn closed(&self) -> u64 {
        self.closed_locally + self.closed_by_peer + self.failed + self.violated
    }
}
