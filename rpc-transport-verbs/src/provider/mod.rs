//! The provider interface: one enum per verbs object, with a variant for each provider.
//!
//! Code above this module does not depend on which device it uses; code below it knows nothing of
//! slots and their owners. The layer above guarantees, in one place, the invariant that makes raw
//! addresses sound here: the memory of a work request belongs to the device from the moment it is
//! posted until its completion (or a later one of the same send queue) has been polled, or the
//! queue pair has been reset or destroyed.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::verbs::{
    Access, AddressVector, AsyncEvent, DeviceAttributes, DeviceCounters, DeviceInfo,
    ExtendedConfig, ForkStatus, Gid, GidEntry, LocalKey, ModifyError, OpenError, PartitionKey,
    PortAttributes, PostError, QpAttributes, QpNum, QpState, QpType, QueuePairCapabilities,
    RemoteKey, RemoteMemory, RnrCounters, SoftOptions, SrqAttributes, SrqNum, VerbsError,
    WindowType, WorkCompletion, WrId,
};

mod fork_guard;
mod limits;
#[cfg(feature = "rdma")]
mod rdma;
mod soft;
#[cfg(feature = "test-util")]
pub(crate) use soft::{Killer, SimulatedProcess};

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

/// One send, as passed to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWork {
    pub(crate) wr_id: WrId,
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
    pub(crate) signaled: bool,
    pub(crate) inline: bool,
    pub(crate) solicited: bool,
    /// Internal to the software device; posters set it to `false`. The software device sets it on
    /// an entry whose request has further details, which it stores elsewhere.
    pub(crate) general: bool,
}

impl SendWork {
    /// Converts this into a request of any kind, whose only element has index `element` in the
    /// list.
    pub(crate) fn general(&self, element: usize) -> Work {
        Work {
            wr_id: self.wr_id,
            operation: Operation::Send,
            first_element: element,
            element_count: 1,
            destination: None,
            signaled: self.signaled,
            fenced: false,
            solicited: self.solicited,
            inline: self.inline,
        }
    }
}

/// One receive, as passed to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWork {
    pub(crate) wr_id: WrId,
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
}

/// One scatter/gather element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sge {
    pub(crate) addr: NonNull<u8>,
    pub(crate) len: u32,
    pub(crate) local_key: LocalKey,
}

/// One request of any kind. The layer above has checked that the queue pair's type supports the
/// operation, and that counts and lengths are within the queue pair's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) wr_id: WrId,
    pub(crate) operation: Operation,
    /// Index of its first element in the list that is passed with the requests.
    pub(crate) first_element: usize,
    pub(crate) element_count: usize,
    /// Present for a datagram only.
    pub(crate) destination: Option<Destination>,
    pub(crate) signaled: bool,
    pub(crate) fenced: bool,
    pub(crate) solicited: bool,
    pub(crate) inline: bool,
}

impl Work {
    /// Returns the request's own elements, out of the list of all requests.
    pub(crate) fn elements<'a>(&self, all: &'a [Sge]) -> &'a [Sge] {
        &all[self.first_element..][..self.element_count]
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Send,
    SendWithImm(u32),
    SendWithInvalidate(RemoteKey),
    Write(RemoteMemory),
    WriteWithImm(RemoteMemory, u32),
    Read(RemoteMemory),
    CompareAndSwap {
        remote: RemoteMemory,
        expected: u64,
        desired: u64,
    },
    FetchAndAdd {
        remote: RemoteMemory,
        addend: u64,
    },
    LocalInvalidate(RemoteKey),
    BindWindow(WindowBinding),
}

/// Parameters of a window binding. Window and region live until the request has completed, and the
/// region as long as the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowBinding {
    pub(crate) window: WindowName,
    pub(crate) region: RegionName,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// The window's new key; for a type 1 window it is only a proposal.
    pub(crate) key: RemoteKey,
}

/// Destination of a datagram. The address handle lives until the request has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) address: AddressName,
    pub(crate) qp_num: QpNum,
    pub(crate) qkey: u32,
}

/// One receive of any number of elements: `count` elements from index `first` of the list that is
/// passed with the receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveList {
    pub(crate) wr_id: WrId,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl ReceiveList {
    /// Returns the receive's own elements, out of the list of all receives.
    pub(crate) fn elements<'a>(&self, all: &'a [Sge]) -> &'a [Sge] {
        &all[self.first..][..self.count]
    }
}

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

// SAFETY: the address is only passed to the device, and its memory belongs to the holder of the
// request, as for `SendWork` below.
unsafe impl Send for Sge {}
// SAFETY: a shared `Sge` only exposes the address as a number for the device and dereferences
// nothing.
unsafe impl Sync for Sge {}

// SAFETY: the addresses are passed to the device and never dereferenced as references. The memory
// behind them belongs to the holder of the work request, on any thread (see the module's
// invariant).
unsafe impl Send for SendWork {}
// SAFETY: the address is only passed to the device, and its memory belongs to the holder of the
// request, as for `SendWork`.
unsafe impl Send for ReceiveWork {}

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

#[derive(Clone, Debug)]
pub(crate) enum Context {
    Soft(soft::Context),
    #[cfg(feature = "rdma")]
    Rdma(rdma::Context),
}

impl Context {
    pub(crate) fn open(name: &str) -> Result<Self, OpenError> {
        if name == soft::DEVICE_NAME {
            return Self::open_soft(SoftOptions::default());
        }
        #[cfg(feature = "rdma")]
        return rdma::Context::open(name).map(Self::Rdma);
        #[cfg(not(feature = "rdma"))]
        if is_listed_by_kernel(name) {
            let name = name.to_owned();
            Err(OpenError::NotInThisBuild { name })
        } else {
            let (name, known) = (name.to_owned(), soft::DEVICE_NAME.to_owned());
            Err(OpenError::UnknownDevice { name, known })
        }
    }

    pub(crate) fn open_soft(options: SoftOptions) -> Result<Self, OpenError> {
        soft::Context::open(options).map(Self::Soft)
    }

    pub(crate) fn device_name(&self) -> &str {
        match self {
            Self::Soft(_) => soft::DEVICE_NAME,
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => context.device_name(),
        }
    }

    pub(crate) fn query_device(&self) -> DeviceAttributes {
        forward!(self, context => context.query_device())
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        forward!(self, context => context.query_port(port))
    }

    pub(crate) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        forward!(self, context => context.query_gid(port, index))
    }

    pub(crate) fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        forward!(self, context => context.query_gid_table(port))
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        forward!(self, context => context.query_pkey(port, index))
    }

    pub(crate) fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        Ok(match self {
            Self::Soft(context) => ProtectionDomain::Soft(context.alloc_pd()?),
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => ProtectionDomain::Rdma(context.alloc_pd()?),
        })
    }

    pub(crate) fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        Ok(match self {
            Self::Soft(context) => CompletionChannel::Soft(context.create_comp_channel()?),
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => CompletionChannel::Rdma(context.create_comp_channel()?),
        })
    }

    pub(crate) fn create_cq(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        Ok(match self {
            Self::Soft(context) => {
                let channel = match channel {
                    None => None,
                    Some(CompletionChannel::Soft(channel)) => Some(channel),
                    #[cfg(feature = "rdma")]
                    Some(_) => return Err(foreign("create_cq", "the completion channel")),
                };
                CompletionQueue::Soft(context.create_cq(depth, channel)?)
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => {
                let channel = match channel {
                    None => None,
                    Some(CompletionChannel::Rdma(channel)) => Some(channel),
                    Some(_) => return Err(foreign("create_cq", "the completion channel")),
                };
                CompletionQueue::Rdma(context.create_cq(depth, channel)?)
            }
        })
    }

    pub(crate) fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        forward!(self, context => context.get_async_event(timeout))
    }

    pub(crate) fn is_forked(&self) -> bool {
        forward!(self, context => context.is_forked())
    }

    pub(crate) fn interrupt_async_events(&self) {
        forward!(self, context => context.interrupt_async_events());
    }

    pub(crate) fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        match self {
            Self::Soft(context) => context.counters(),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Err(VerbsError::NotCounted),
        }
    }

    pub(crate) fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        forward!(self, context => context.rnr_counters(port))
    }

    pub(crate) fn counts_on_data_path(&self) -> bool {
        matches!(self, Self::Soft(_))
    }
}

#[derive(Debug)]
pub(crate) enum ProtectionDomain {
    Soft(soft::ProtectionDomain),
    #[cfg(feature = "rdma")]
    Rdma(rdma::ProtectionDomain),
}

impl ProtectionDomain {
    pub(crate) fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => MemoryRegion::Soft(domain.register(len, access)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => MemoryRegion::Rdma(domain.register(len, access)?),
        })
    }

    pub(crate) fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => MemoryWindow::Soft(domain.alloc_mw(window_type)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => MemoryWindow::Rdma(domain.alloc_mw(window_type)?),
        })
    }

    pub(crate) fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => AddressHandle::Soft(domain.create_ah(address)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => AddressHandle::Rdma(domain.create_ah(address)?),
        })
    }

    pub(crate) fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        Ok(match self {
            Self::Soft(domain) => SharedReceiveQueue::Soft(domain.create_srq(max_wr, max_sge)?),
            #[cfg(feature = "rdma")]
            Self::Rdma(domain) => SharedReceiveQueue::Rdma(domain.create_srq(max_wr, max_sge)?),
        })
    }

    #[cfg(not(feature = "rdma"))]
    pub(crate) fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        let Self::Soft(domain) = self;
        let CompletionQueue::Soft(send_cq) = config.send_cq;
        let CompletionQueue::Soft(recv_cq) = config.recv_cq;
        let srq = config.srq.map(|SharedReceiveQueue::Soft(srq)| srq);
        let queue_pair = domain.create_qp(send_cq, recv_cq, srq, &config)?;
        Ok(QueuePair::Soft(queue_pair))
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn create_qp(&self, config: QueuePairConfig<'_>) -> Result<QueuePair, VerbsError> {
        match (self, config.send_cq, config.recv_cq) {
            (
                Self::Soft(domain),
                CompletionQueue::Soft(send_cq),
                CompletionQueue::Soft(recv_cq),
            ) => {
                let srq = match config.srq {
                    None => None,
                    Some(SharedReceiveQueue::Soft(srq)) => Some(srq),
                    Some(_) => return Err(foreign("create_qp", "the shared receive queue")),
                };
                let queue_pair = domain.create_qp(send_cq, recv_cq, srq, &config)?;
                Ok(QueuePair::Soft(queue_pair))
            }
            (
                Self::Rdma(domain),
                CompletionQueue::Rdma(send_cq),
                CompletionQueue::Rdma(recv_cq),
            ) => {
                let srq = match config.srq {
                    None => None,
                    Some(SharedReceiveQueue::Rdma(srq)) => Some(srq),
                    Some(_) => return Err(foreign("create_qp", "the shared receive queue")),
                };
                let queue_pair = domain.create_qp(send_cq, recv_cq, srq, &config)?;
                Ok(QueuePair::Rdma(queue_pair))
            }
            _ => Err(foreign("create_qp", "a completion queue")),
        }
    }
}

#[derive(Debug)]
pub(crate) enum MemoryRegion {
    Soft(soft::MemoryRegion),
    #[cfg(feature = "rdma")]
    Rdma(rdma::MemoryRegion),
}

impl MemoryRegion {
    /// Returns the first of `len` zeroed bytes, which stay mapped until the region is dropped.
    pub(crate) fn start(&self) -> NonNull<u8> {
        forward!(self, region => region.start())
    }

    pub(crate) fn len(&self) -> usize {
        forward!(self, region => region.len())
    }

    pub(crate) fn local_key(&self) -> LocalKey {
        forward!(self, region => region.local_key())
    }

    pub(crate) fn remote_key(&self) -> RemoteKey {
        forward!(self, region => region.remote_key())
    }

    pub(crate) fn name(&self) -> RegionName {
        match self {
            Self::Soft(region) => RegionName::Soft(region.local_key()),
            #[cfg(feature = "rdma")]
            Self::Rdma(region) => RegionName::Rdma(region.name()),
        }
    }
}

#[derive(Debug)]
pub(crate) enum MemoryWindow {
    Soft(soft::MemoryWindow),
    #[cfg(feature = "rdma")]
    Rdma(rdma::MemoryWindow),
}

impl MemoryWindow {
    /// Returns the key that the window was allocated with. It grants no access yet.
    pub(crate) fn first_key(&self) -> RemoteKey {
        forward!(self, window => window.first_key())
    }

    pub(crate) fn name(&self) -> WindowName {
        match self {
            Self::Soft(window) => WindowName::Soft(window.name()),
            #[cfg(feature = "rdma")]
            Self::Rdma(window) => WindowName::Rdma(window.name()),
        }
    }
}

#[derive(Debug)]
pub(crate) enum AddressHandle {
    Soft(soft::AddressHandle),
    #[cfg(feature = "rdma")]
    Rdma(rdma::AddressHandle),
}

impl AddressHandle {
    pub(crate) fn name(&self) -> AddressName {
        match self {
            Self::Soft(handle) => AddressName::Soft(handle.name()),
            #[cfg(feature = "rdma")]
            Self::Rdma(handle) => AddressName::Rdma(handle.name()),
        }
    }
}

#[derive(Debug)]
pub(crate) enum CompletionChannel {
    Soft(soft::CompletionChannel),
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionChannel),
}

impl CompletionChannel {
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<Option<u32>, VerbsError> {
        forward!(self, channel => channel.wait(timeout))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        forward!(self, channel => channel.fd())
    }
}

#[derive(Debug)]
pub(crate) enum CompletionQueue {
    Soft(soft::CompletionQueue),
    #[cfg(feature = "rdma")]
    Rdma(rdma::CompletionQueue),
}

impl CompletionQueue {
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        forward!(self, cq => cq.arm(solicited_only))
    }

    #[inline]
    pub(crate) fn poll(
        &self,
        out: &mut Vec<WorkCompletion>,
        max: usize,
    ) -> Result<usize, VerbsError> {
        forward!(self, cq => cq.poll(out, max))
    }

    pub(crate) fn resize(&self, depth: usize) -> Result<(), VerbsError> {
        forward!(self, cq => cq.resize(depth))
    }

    pub(crate) fn capacity(&self) -> usize {
        forward!(self, cq => cq.capacity())
    }

    pub(crate) fn number(&self) -> u32 {
        forward!(self, cq => cq.number())
    }
}

#[derive(Debug)]
pub(crate) enum SharedReceiveQueue {
    Soft(soft::SharedReceiveQueue),
    #[cfg(feature = "rdma")]
    Rdma(rdma::SharedReceiveQueue),
}

impl SharedReceiveQueue {
    #[inline]
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        forward!(self, srq => srq.post_recv(work))
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        forward!(self, srq => srq.post_recv_lists(work, elements))
    }

    pub(crate) fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        forward!(self, srq => srq.resize(max_wr))
    }

    pub(crate) fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        forward!(self, srq => srq.arm_limit(limit))
    }

    pub(crate) fn query(&self) -> Result<SrqAttributes, VerbsError> {
        forward!(self, srq => srq.query())
    }

    pub(crate) fn number(&self) -> SrqNum {
        forward!(self, srq => srq.number())
    }
}

#[derive(Debug)]
pub(crate) enum QueuePair {
    Soft(soft::QueuePair),
    #[cfg(feature = "rdma")]
    Rdma(rdma::QueuePair),
}

impl QueuePair {
    pub(crate) fn qp_num(&self) -> QpNum {
        forward!(self, qp => qp.qp_num())
    }

    pub(crate) fn capabilities(&self) -> QueuePairCapabilities {
        forward!(self, qp => qp.capabilities())
    }

    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        forward!(self, qp => qp.state())
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        forward!(self, qp => qp.query())
    }

    /// Modifies the queue pair. The layer above has checked the transition from `from` to `to` and
    /// which attributes are present, but not their values.
    pub(crate) fn modify(
        &mut self,
        from: QpState,
        to: QpState,
        attributes: &QpAttributes,
    ) -> Result<(), ModifyError> {
        forward!(self, qp => qp.modify(from, to, attributes))
    }

    #[inline]
    pub(crate) fn post_send(&mut self, work: &[SendWork]) -> Result<(), PostError> {
        forward!(self, qp => qp.post_send(work))
    }

    /// Posts requests of any kind; `elements` holds the elements of all of them.
    pub(crate) fn post(&mut self, work: &[Work], elements: &[Sge]) -> Result<(), PostError> {
        forward!(self, qp => qp.post(work, elements))
    }

    /// Binds a type 1 window and returns its new key.
    pub(crate) fn bind_mw(
        &mut self,
        wr_id: WrId,
        binding: WindowBinding,
        signaled: bool,
    ) -> Result<RemoteKey, PostError> {
        forward!(self, qp => qp.bind_mw(wr_id, binding, signaled))
    }

    #[inline]
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        forward!(self, qp => qp.post_recv(work))
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        forward!(self, qp => qp.post_recv_lists(work, elements))
    }

    /// Joins a multicast group. The layer above has checked that `gid` is a group's GID and that
    /// the queue pair is of type UD.
    pub(crate) fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        forward!(self, qp => qp.attach_multicast(gid, lid))
    }

    /// Leaves a multicast group. Returns `false` if the queue pair was not in it.
    pub(crate) fn detach_multicast(&mut self, gid: Gid, lid: u16) -> Result<bool, VerbsError> {
        forward!(self, qp => qp.detach_multicast(gid, lid))
    }

    /// Destroys the queues. The device does not access their memory afterwards, unless this returns
    /// `false`.
    pub(crate) fn destroy(&mut self) -> bool {
        match self {
            Self::Soft(qp) => {
                qp.destroy();
                true
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(qp) => qp.destroy(),
        }
    }
}
