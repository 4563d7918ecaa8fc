//! Hooks for tests: where this crate takes the time from, and where a simulation makes things go wrong.
//!
//! Without the feature `test-util`, nothing is left of them but the system's clock.

use std::time::Instant;

#[cfg(feature = "test-util")]
pub use with_simulation::{Fault, Point, Post};
#[cfg(feature = "test-util")]
pub(crate) use with_simulation::{
    Hooks, at_point, does_strike, how_many_taken, install, is_simulated, times_heard,
};

/// The system's monotonic clock; in a simulation, the simulation's.
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(feature = "test-util")]
    if let Some(now) = with_simulation::now() {
        return now;
    }
    Instant::now()
}

// Macros, so that nothing of them is left in a build without the feature `test-util`.

/// The process may be killed here: before the store that follows, so that all of its stores up to here
/// are seen by its peers, and none after it.
#[cfg(feature = "test-util")]
macro_rules! point {
    ($point:ident) => {
        crate::hooks::at_point(crate::hooks::Point::$point)
    };
}

/// Whether this goes wrong now.
#[cfg(feature = "test-util")]
macro_rules! strikes {
    ($fault:ident) => {
        crate::hooks::does_strike(crate::hooks::Fault::$fault)
    };
}

/// How many requests of a list are taken: all of them, or fewer if the post is refused or taken in
/// part, which is held against `$blamed`.
#[cfg(feature = "test-util")]
macro_rules! taken {
    ($post:ident, $count:expr, $blamed:expr) => {
        crate::hooks::how_many_taken(crate::hooks::Post::$post, $count, $blamed)
    };
}

#[cfg(not(feature = "test-util"))]
macro_rules! point {
    ($point:ident) => {};
}

#[cfg(not(feature = "test-util"))]
macro_rules! strikes {
    ($fault:ident) => {
        false
    };
}

#[cfg(not(feature = "test-util"))]
macro_rules! taken {
    ($post:ident, $count:expr, $blamed:expr) => {
        $count
    };
}

pub(crate) use {point, strikes, taken};

#[cfg(feature = "test-util")]
mod with_simulation {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Instant;

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

    /// What a simulation decides, for the thread that it runs on.
    pub(crate) trait Hooks {
        /// Its time.
        fn now(&self) -> Instant;
        /// Whether the calling thread is in a simulated process.
        fn is_in_process(&self) -> bool;
        /// A process that is to die at this point does so.
        fn point(&self, point: Point);
        /// Whether a fault strikes now.
        fn does_strike(&self, fault: Fault) -> bool;
        /// How many of `count` requests are taken.
        fn taken(&self, post: Post, count: usize, blamed: Option<u32>) -> usize;
    }

    thread_local! {
        static INSTALLED: RefCell<Option<Rc<dyn Hooks>>> = const { RefCell::new(None) };
    }

    /// Sets the calling thread's simulation, or with `None` takes it away.
    pub(crate) fn install(hooks: Option<Rc<dyn Hooks>>) {
        INSTALLED.set(hooks);
    }

    fn installed() -> Option<Rc<dyn Hooks>> {
        INSTALLED.with_borrow(Clone::clone)
    }

    /// The simulation's time, on its thread.
    pub(super) fn now() -> Option<Instant> {
        INSTALLED.with_borrow(|hooks| hooks.as_ref().map(|hooks| hooks.now()))
    }

    /// Whether the calling thread is in a simulated process.
    pub(crate) fn is_simulated() -> bool {
        installed().is_some_and(|hooks| hooks.is_in_process())
    }

    /// See the macro `point`.
    #[inline]
    pub(crate) fn at_point(point: Point) {
        if let Some(hooks) = installed() {
            hooks.point(point);
        }
    }

    /// See the macro `strikes`.
    #[inline]
    pub(crate) fn does_strike(fault: Fault) -> bool {
        installed().is_some_and(|hooks| hooks.does_strike(fault))
    }

    /// See the macro `taken`.
    pub(crate) fn how_many_taken(post: Post, count: usize, blamed: Option<u32>) -> usize {
        match installed() {
            Some(hooks) => hooks.taken(post, count, blamed),
            None => count,
        }
    }

    /// How often an asynchronous event is heard that was raised once.
    pub(crate) fn times_heard() -> u32 {
        if does_strike(Fault::LostEvent) {
            0
        } else if does_strike(Fault::RepeatedEvent) {
            2
        } else {
            1
        }
    }
}
