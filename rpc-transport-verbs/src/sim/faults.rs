//! What can go wrong, by name, and how often it does.

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* $case:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$case_doc])* $case,)* }

        impl $name {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$case,)*];
        }
    };
}

named! {
    /// What can go wrong.
    Fault {
        /// A message that is committed is seen later.
        LateMessage,
        /// A ready bit that is set is seen later.
        LateBell,
        /// An acknowledgement is seen later, and so a send completes later.
        LateCompletion,
        /// A poll gives fewer completions than there are.
        ShortPoll,
        /// A ring seems full.
        NoRoom,
        /// A hot ring goes cold long before its time.
        GoesCold,
        /// No receive is to be seen, a few times on end.
        ReceiverNotReady,
        /// An asynchronous event is not heard.
        LostEvent,
        /// An asynchronous event is heard twice.
        RepeatedEvent,
        /// A poller, an engine or a thread of events does nothing for a while.
        Stall,
        /// A queue pair fails by itself.
        QueuePairFails,
        /// A lifeline is cut, or says what it should not.
        LineCut,
        /// The end of a lifeline is seen later.
        LateLine,
        /// A client is ready, and the server learns of it later.
        LateReady,
        /// A process is killed between two of its steps.
        Death,
    }
}

named! {
    /// Where a post can be refused, or taken in part.
    Post {
        /// Of sends, to a queue pair.
        Sends,
        /// Of receives, to the shared receive queue.
        Receives,
    }
}

named! {
    /// Where a process can be killed: before a store that its peers can see, or after the last of
    /// several.
    Point {
        /// A ring's preamble.
        MakeRing,
        /// It has told its peer of a ring.
        Attach,
        /// A ring becomes ready.
        RingReady,
        /// A ring is over.
        RingOver,
        /// The payload of a message.
        Payload,
        /// The commit word.
        Commit,
        /// The look at the mark.
        Doorbell,
        /// The ready bit.
        ReadyBit,
        /// The ready bit's summary.
        Summary,
        /// The file that wakes a sleeper.
        Wake,
        /// After summaries were taken, their bits.
        TakeBits,
        /// The acknowledgement.
        Ack,
        /// A message was copied, and has no completion yet.
        Copied,
        /// "Receiver not ready".
        Nak,
        /// The leave to try again.
        Retry,
        /// A sender has its memory back.
        Close,
        /// A mark is armed.
        Arm,
        /// After it was armed, the second look.
        SecondLook,
        /// A mark is disarmed.
        Disarm,
    }
}

/// How often each thing goes wrong, in thousandths of its chances.
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
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// A fault strikes so many times in a thousand.
    pub fn set(&mut self, fault: Fault, thousandths: u16) {
        self.rates[fault as usize] = thousandths;
    }

    /// Posts are cut so many times in a thousand.
    pub fn set_post(&mut self, post: Post, thousandths: u16) {
        self.posts[post as usize] = thousandths;
    }
}
