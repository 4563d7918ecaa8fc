//! What Verbline's transport uses beyond the verbs: files that wake threads, the cores of threads,
//! blocks of registered memory, lists of members, connections that it hands to the software device, who
//! is at the other end of a Unix socket, the accounts of those who connect, and the hooks of its
//! simulation.
//!
//! No other crate should use it: any release may change it.

pub use crate::affinity::{allowed_cores, pin, start_thread, unpin, unpinned};
pub use crate::block::{Block, BlockRegion};
pub use crate::destination::Destination;
pub use crate::event_fd::EventFd;
pub use crate::fork_sockets::keep_from_children;
pub use crate::heap::give_back_free_heap;
pub use crate::key_history::KeyHistory;
pub use crate::member_list::{Listed, MemberList, MemberOrder};
pub use crate::provider::{
    AwaitedClaim, Credentials, InlineError, LinkBytes, LinkTarget, is_forked, kernel_device_names,
    rdma_device_names,
};
pub use crate::record_layer::{
    BadRecord, MAX_PLAIN, MAX_RECORD, MOST_EMPTY, Opened, ReadAhead, RecordLayer,
};
pub use crate::system_error::epoll_add;
#[cfg(any(test, feature = "test-util"))]
pub use crate::types::LinkRecords;
pub use crate::types::LockedMemory;
#[cfg(feature = "test-util")]
pub use crate::types::WindowFault;
pub use crate::window_trial::WindowTrialError;

/// Hooks for the simulation: the source of time, and the points where it injects faults.
pub mod hooks {
    pub use crate::hooks::now;
    #[cfg(feature = "test-util")]
    pub use crate::hooks::{
        Fault, Hooks, Point, Post, deliveries, install, is_in_killed_process, is_simulated,
    };
    #[cfg(feature = "test-util")]
    pub use crate::provider::{Killer, SimulatedProcess};
}

/// The accounts of sockets that have been accepted and are nobody's yet, and of listeners that pause.
pub mod strangers {
    pub use crate::strangers::{
        ACCEPTS_IN_A_ROW, Limits, Rank, Room, Stage, Strangers, TICK, accepted, resume,
    };
}
