//! The provider interface: one enum per verbs object, with a variant for each provider.
//!
//! Code above this module does not depend on which device it uses; code below it knows nothing of
//! slots and their owners. The layer above guarantees, in one place, the invariant that makes raw
//! addresses sound here: the memory of a work request belongs to the device from the moment it is
//! posted until its completion (or a later one of the same send queue) has been polled, or the
//! queue pair has been reset or destroyed.

use crate::verbs::types::{
    DeviceInfo, ExtendedConfig, ForkStatus, LocalKey, OpenError, QpType, VerbsError,
};

mod address_handle;
mod completion_channel;
mod completion_queue;
mod context;
mod fork_guard;
mod limits;
mod memory_region;
mod memory_window;
mod protection_domain;
mod queue_pair;
#[cfg(feature = "rdma")]
mod rdma;
mod shared_receive_queue;
mod soft;
mod work;

pub(crate) use address_handle::AddressHandle;
pub(crate) use completion_channel::CompletionChannel;
pub(crate) use completion_queue::CompletionQueue;
pub(crate) use context::Context;
pub(crate) use memory_region::MemoryRegion;
pub(crate) use memory_window::MemoryWindow;
pub(crate) use protection_domain::ProtectionDomain;
pub(crate) use queue_pair::QueuePair;
pub(crate) use shared_receive_queue::SharedReceiveQueue;
#[cfg(feature = "test-util")]
pub(crate) use soft::{Killer, SimulatedProcess};
pub(crate) use work::{
    Destination, Operation, ReceiveList, ReceiveWork, SendWork, Sge, WindowBinding, Work,
};

#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) use soft::hostile as soft_hostile;

/// Directory in which the kernel lists its RDMA devices.
const KERNEL_DEVICES: &str = "/sys/class/infiniband";

/// Returns the names of the kernel's RDMA devices, sorted, whether or not this build can drive
/// them.
pub(crate) fn kernel_device_names() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(KERNEL_DEVICES) else {
        // The kernel has no RDMA support.
        return Vec::new();
    };
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn is_listed_by_kernel(name: &str) -> bool {
    kernel_device_names().iter().any(|listed| listed == name)
}

/// Returns the names of the RDMA devices that this build can drive, in libibverbs' order.
pub(crate) fn rdma_device_names() -> Result<Vec<String>, OpenError> {
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
    rdma.into_iter().chain([soft::device_info()]).collect()
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

/// Identifies a memory window in a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WindowName {
    Soft(soft::WindowName),
    #[cfg(feature = "rdma")]
    Rdma(rdma::WindowName),
}

/// Identifies a region in a request that binds a window to it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RegionName {
    Soft(LocalKey),
    #[cfg(feature = "rdma")]
    Rdma(rdma::RegionName),
}

/// Identifies an address handle in a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AddressName {
    Soft(soft::AddressName),
    #[cfg(feature = "rdma")]
    Rdma(rdma::AddressName),
}

/// Defines `of_soft`, which returns the software device's own identifier, or `None` for an object
/// of another provider.
macro_rules! of_soft {
    ($($name:ident => $own:ty;)*) => {
        $(impl $name {
            fn of_soft(self) -> Option<$own> {
                match self {
                    Self::Soft(name) => Some(name),
                    #[cfg(feature = "rdma")]
                    Self::Rdma(_) => None,
                }
            }
        })*
    };
}

of_soft! {
    WindowName => soft::WindowName;
    RegionName => LocalKey;
    AddressName => soft::AddressName;
}

/// The parameters of a new queue pair, with the provider's own objects.
pub(crate) struct QueuePairConfig<'a> {
    pub(crate) qp_type: QpType,
    pub(crate) send_cq: &'a CompletionQueue,
    pub(crate) recv_cq: &'a CompletionQueue,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    pub(crate) max_send_sge: usize,
    pub(crate) max_recv_sge: usize,
    pub(crate) max_inline_data: usize,
    pub(crate) sq_sig_all: bool,
    pub(crate) extended: ExtendedConfig,
}

/// Returns the error for combining objects of different devices.
#[cfg(feature = "rdma")]
fn foreign(call: &'static str, object: &'static str) -> VerbsError {
    VerbsError::ForeignObject { call, object }
}
