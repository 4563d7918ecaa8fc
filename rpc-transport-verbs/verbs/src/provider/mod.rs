//! The provider interface: one enum per verbs object, with a variant for each provider.
//!
//! Code above this module does not depend on which device it uses; code below it knows nothing of
//! slots and their owners. The layer above guarantees, in one place, the invariant that makes raw
//! addresses sound here. The memory of a work request belongs to the device from the moment it is
//! posted. It does so until the request's completion, or a later one of the same send queue, has
//! been polled, or the queue pair has been reset or destroyed.

use crate::types::{DeviceInfo, ForkStatus, OpenError, VerbsError};

mod address_handle;
mod completion_channel;
mod completion_queue;
mod context;
mod fork_guard;
mod kernel_devices;
mod limits;
mod memory_region;
mod memory_window;
mod names;
mod protection_domain;
mod queue_pair;
mod queue_pair_options;
#[cfg(feature = "rdma")]
mod rdma;
mod shared_receive_queue;
mod soft;
mod work;

pub(crate) use address_handle::AddressHandle;
pub(crate) use completion_channel::CompletionChannel;
pub(crate) use completion_queue::{CompletionQueue, HeldCompletions};
pub(crate) use context::Context;
pub use fork_guard::is_forked;
pub use kernel_devices::kernel_device_names;
pub(crate) use memory_region::MemoryRegion;
pub(crate) use memory_window::MemoryWindow;
pub(crate) use names::{AddressName, RegionName, WindowName};
pub(crate) use protection_domain::ProtectionDomain;
pub(crate) use queue_pair::QueuePair;
pub(crate) use queue_pair_options::QueuePairOptions;
pub(crate) use shared_receive_queue::SharedReceiveQueue;
pub use soft::{AwaitedClaim, Credentials, LinkBytes, LinkTarget};
#[cfg(feature = "test-util")]
pub use soft::{Killer, SimulatedProcess};
pub(crate) use soft::{Nonce, OnClaim};
#[cfg(feature = "shim")]
pub(crate) use soft::{SharedMemory, make_private, make_private_after_fork, share};
pub use work::InlineError;
pub(crate) use work::{Destination, ReceiveList, ReceiveWork, SendWork, Sge, WindowBinding, Work};

#[cfg(any(test, fuzzing))]
pub(crate) use soft::{
    hostile as soft_hostile, hostile_link as soft_hostile_link, hostile_tcp as soft_hostile_tcp,
};

/// Returns the names of the RDMA devices that this build can drive, in libibverbs' order.
///
/// # Errors
///
/// If libibverbs cannot be loaded, or cannot list them.
pub fn rdma_device_names() -> Result<Vec<String>, OpenError> {
    #[cfg(feature = "rdma")]
    return rdma::device_names();
    #[cfg(not(feature = "rdma"))]
    Ok(Vec::new())
}

/// Returns the devices that can be opened.
pub(crate) fn devices() -> Vec<DeviceInfo> {
    #[cfg(feature = "rdma")]
    let rdma = rdma::devices();
    #[cfg(not(feature = "rdma"))]
    let rdma = Vec::new();
    rdma.into_iter().chain(soft::device_infos()).collect()
}

/// Keeps registered memory out of forked children, on devices where that needs a call.
pub(crate) fn fork_init() -> Result<(), VerbsError> {
    #[cfg(feature = "rdma")]
    return rdma::fork_init();
    #[cfg(not(feature = "rdma"))]
    Ok(())
}

/// Returns whether the process may fork.
pub(crate) fn is_fork_initialized() -> ForkStatus {
    #[cfg(feature = "rdma")]
    return rdma::is_fork_initialized();
    #[cfg(not(feature = "rdma"))]
    ForkStatus::Unneeded
}

/// Evaluates the same expression on the object of either provider.
macro_rules! forward {
    ($self:expr, $object:ident => $call:expr) => {
        match $self {
            Self::Soft($object) => $call,
            #[cfg(feature = "rdma")]
            Self::Rdma($object) => $call,
        }
    };
}
use forward;

/// The parameters of a new queue pair, with the provider's own objects.
pub(crate) struct QueuePairConfig<'a> {
    pub(crate) send_cq: &'a CompletionQueue,
    pub(crate) recv_cq: &'a CompletionQueue,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) options: QueuePairOptions,
}

/// Returns the error for combining objects of different devices.
#[cfg(feature = "rdma")]
fn foreign(call: &'static str, object: &'static str) -> VerbsError {
    VerbsError::ForeignObject { call, object }
}
