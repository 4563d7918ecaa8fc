//! The faults that a simulation can inject, and their rates.

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* $case:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$case_doc])* $case,)* }

        impl $name {
            /// All variants, in order.
            pub const ALL: &[Self] = &[$(Self::$case,)*];
        }
    };
}

named! {
    /// A fault.
    Fault {
        /// A committed message becomes visible late.
        LateMessage,
        /// A ready bit that was set becomes visible late.
        LateBell,
        /// An acknowledgement becomes visible late, so a send completes late.
        LateCompletion,
        /// A poll returns fewer completions than are available.
        ShortPoll,
        /// A ring appears full.
        NoRoom,
        /// A hot ring goes cold long before its patience ends.
        GoesCold,
        /// No receive appears available, several times in a row.
        ReceiverNotReady,
        /// An asynchronous event is lost.
        LostEvent,
        /// An asynchronous event is delivered twice.
        RepeatedEvent,
        /// A poller, an engine or an event thread does nothing for a while.
        Stall,
        /// A queue pair fails on its own.
        QueuePairFails,
        /// A liveness socket is closed, or carries invalid bytes.
        LineCut,
        /// The end of a liveness socket is noticed late.
        LateLine,
        /// A client is ready, and the server learns of it late.
        LateReady,
        /// A process is killed between two of its steps.
        Death,
    }
}

named! {
    /// A post that can be rejected, or accepted only in part.
    Post {
        /// Posts of sends to a queue pair.
        Sends,
        /// Posts of receives to the shared receive queue.
        Receives,
    }
}

named! {
    /// A point at which a process can be killed: before a store that its peers can see, or after
    /// the last of several such stores.
    Point {
        /// Before the stores of a ring's preamble.
        MakeRing,
        /// After announcing a ring to the peer.
        Attach,
        /// Before a ring becomes ready.
        RingReady,
        /// Before a ring is marked as over.
        RingOver,
        /// Before the payload of a message.
        Payload,
        /// Before the commit word.
        Commit,
        /// Before the load of the mark.
        Doorbell,
        /// Before the ready bit.
        ReadyBit,
        /// Before the ready bit's summary.
        Summary,
        /// Before the write to the file that wakes a sleeper.
        Wake,
        /// After summaries were taken, before their bits are.
        TakeBits,
        /// Before the acknowledgement.
        Ack,
        /// After a message was copied, before it has a completion.
        Copied,
        /// Before an RNR NAK.
        Nak,
        /// Before the permission to retry.
        Retry,
        /// Before a sender voids its descriptors to reclaim its memory.
        Close,
        /// Before a mark is armed.
        Arm,
        /// After a mark was armed, before the second look.
        SecondLook,
        /// Before a mark is disarmed.
        Disarm,
    }
}

/// Fault rates, in thousandths of the opportunities for each fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    pub(super) rates: [u16; Fault::ALL.len()],
    pub(super) posts: [u16; Post::ALL.len()],
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rates: [0; Fault::ALL.len()],
            posts: [0; Post::ALL.len()],
        }
    }
}

impl Faults {
    /// Returns rates that inject no faults.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Sets the rate of a fault, in thousandths.
    pub fn set(&mut self, fault: Fault, thousandths: u16) {
        self.rates[fault as usize] = thousandths;
    }

    /// Sets the rate at which posts are rejected or cut short, in thousandths.
    pub fn set_post(&mut self, post: Post, thousandths: u16) {
        self.posts[post as usize] = thousandths;
    }
}
