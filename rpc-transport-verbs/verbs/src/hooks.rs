//! Hooks for the simulation: the source of time, and the points where it injects faults.
//!
//! Without the feature `test-util`, only the system's clock remains.

use std::time::Instant;

#[cfg(feature = "test-util")]
pub use with_simulation::{
    Fault, Hooks, Point, Post, deliveries, install, is_in_killed_process, is_simulated,
};
#[cfg(feature = "test-util")]
pub(crate) use with_simulation::{
    accepted_count, at_point, has_simulation, is_injected, note_unbindable,
};

/// Returns the time of the system's monotonic clock or, in a simulation, of the simulated clock.
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "test-util")]
    if let Some(now) = with_simulation::now() {
        return now;
    }
    Instant::now()
}

// Macros, so that a build without the feature `test-util` contains no hooks.

/// Marks a point at which the process may be killed. The kill takes effect before the store that
/// follows: peers see all of the process's earlier stores, and none later.
#[cfg(feature = "test-util")]
macro_rules! point {
    ($point:ident) => {
        crate::hooks::at_point(crate::hooks::Point::$point)
    };
}

/// Returns true if this fault is injected now.
#[cfg(feature = "test-util")]
macro_rules! inject {
    ($fault:ident) => {
        crate::hooks::is_injected(crate::hooks::Fault::$fault)
    };
}

/// Returns how many requests of a list are accepted: all of them, or fewer if an injected fault
/// rejects the post or accepts only part of it. The fault is attributed to `$blamed`.
#[cfg(feature = "test-util")]
macro_rules! accepted {
    ($post:ident, $count:expr, $blamed:expr) => {
        crate::hooks::accepted_count(crate::hooks::Post::$post, $count, $blamed)
    };
}

#[cfg(not(feature = "test-util"))]
macro_rules! point {
    ($point:ident) => {};
}

#[cfg(not(feature = "test-util"))]
macro_rules! inject {
    ($fault:ident) => {
        false
    };
}

#[cfg(not(feature = "test-util"))]
macro_rules! accepted {
    ($post:ident, $count:expr, $blamed:expr) => {
        $count
    };
}

pub(crate) use {accepted, inject, point};

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
            /// An announcement becomes visible late.
            LateAnnouncement,
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
        /// A point at which a process can be killed: before a store that its peers can see, or
        /// after the last of several such stores.
        Point {
            /// Before the stores of a ring's preamble.
            MakeRing,
            /// After announcing a ring to the peer.
            Attach,
            /// Before a ring becomes ready.
            RingReady,
            /// Before a ring is marked as closed.
            RingOver,
            /// Before the payload of a message.
            Payload,
            /// Before the commit word.
            Commit,
            /// Before the load of the mark.
            Doorbell,
            /// Before the announcement of a ring.
            Announcement,
            /// Before the write to the file that wakes a sleeper.
            Wake,
            /// Before an announcement is taken. Those taken are counted for their sender now and then.
            TakeAnnouncement,
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
            /// After a mark was armed, before the ring is checked again.
            SecondLook,
            /// Before a mark is disarmed.
            Disarm,
        }
    }

    /// The decisions of a simulation, for the thread that it runs on.
    pub trait Hooks {
        /// Returns the simulation's time.
        fn now(&self) -> Instant;
        /// Returns true if the calling thread is running a simulated process.
        fn is_in_process(&self) -> bool;
        /// Returns true if the calling thread is running a simulated process that has been killed.
        fn is_in_killed_process(&self) -> bool;
        /// Kills the running process if it is to be killed at this point.
        fn point(&self, point: Point);
        /// Returns true if the fault is injected now.
        fn is_injected(&self, fault: Fault) -> bool;
        /// Returns how many of `count` requests are accepted.
        fn accepted(&self, post: Post, count: usize, blamed: Option<u32>) -> usize;
        /// Notes that the device of the running process binds no window any more, which may end all
        /// its connections.
        fn note_unbindable(&self);
    }

    thread_local! {
        static INSTALLED: RefCell<Option<Rc<dyn Hooks>>> = const { RefCell::new(None) };
    }

    /// Sets the calling thread's simulation, or removes it with `None`.
    pub fn install(hooks: Option<Rc<dyn Hooks>>) {
        INSTALLED.set(hooks);
    }

    fn installed() -> Option<Rc<dyn Hooks>> {
        let installed = INSTALLED.try_with(|hooks| hooks.borrow().clone());
        installed.ok().flatten()
    }

    /// Returns the simulation's time, if the calling thread has a simulation.
    pub(super) fn now() -> Option<Instant> {
        installed().map(|hooks| hooks.now())
    }

    /// Returns true if the calling thread has a simulation, whether or not it runs a process of it.
    pub(crate) fn has_simulation() -> bool {
        installed().is_some()
    }

    /// Returns true if the calling thread is running a simulated process.
    pub fn is_simulated() -> bool {
        installed().is_some_and(|hooks| hooks.is_in_process())
    }

    /// Returns true if the calling thread is running a simulated process that has been killed.
    pub fn is_in_killed_process() -> bool {
        installed().is_some_and(|hooks| hooks.is_in_killed_process())
    }

    /// See the macro `point`.
    #[inline]
    pub(crate) fn at_point(point: Point) {
        if let Some(hooks) = installed() {
            hooks.point(point);
        }
    }

    /// See the macro `inject`.
    #[inline]
    pub(crate) fn is_injected(fault: Fault) -> bool {
        installed().is_some_and(|hooks| hooks.is_injected(fault))
    }

    /// See the macro `accepted`.
    pub(crate) fn accepted_count(post: Post, count: usize, blamed: Option<u32>) -> usize {
        match installed() {
            Some(hooks) => hooks.accepted(post, count, blamed),
            None => count,
        }
    }

    /// Notes that an injected fault keeps a window from being bound.
    pub(crate) fn note_unbindable() {
        if let Some(hooks) = installed() {
            hooks.note_unbindable();
        }
    }

    /// Returns how many times an asynchronous event that was raised once is delivered.
    pub fn deliveries() -> u32 {
        if is_injected(Fault::LostEvent) {
            0
        } else if is_injected(Fault::RepeatedEvent) {
            2
        } else {
            1
        }
    }
}
