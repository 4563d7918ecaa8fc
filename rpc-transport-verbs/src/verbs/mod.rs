//! The safe verbs layer: one verbs object per file, usable without the rest of the crate.
//!
//! The names are those of `libibverbs`, spelled out, so that a man page can be looked up. What is
//! different from C:
//!
//! * **Memory in flight is owned.** A [`Slot`] is the unique token of one piece of a
//!   [`MemoryRegion`]. Posting consumes it; only the device's word brings it back: its completion,
//!   a later completion of the same send queue, a flush, or the end of the queue pair. So no bytes
//!   can be touched while the device may touch them, whatever is dropped or forgotten.
//! * **Memory that peers may touch is another type.** [`ExposedMemory`] never hands out a slice, since
//!   a peer's WRITE changes bytes under any reference; its bytes are copied in and out, or are atomic
//!   cells. What a peer is told of it is a [`RemoteMemory`]; local and remote keys are different types.
//! * **A completion is claimed once.** [`WorkCompletion`] is not `Clone`; claiming consumes it.
//! * **Parents outlive children.** Every object shares ownership of what it was made from, so that
//!   dropping them in any order destroys them in an order that the device accepts. Who wants to know
//!   calls `destroy` (or `dealloc`, `deregister`), which says [`Busy`] where C says `EBUSY`.
//! * **Events need no acknowledgement.** The layer acknowledges each itself, so that destroying an object
//!   never waits for a reader who has forgotten to.
//! * **Errors say what was expected**: [`ModifyError`] names the attribute and the transition,
//!   [`PostError`] the index of the request and the rule. Every [`CompletionStatus`] and [`AsyncEvent`]
//!   has an `explanation`.
//!
//! The calling order, each step by the method's verbs name:
//!
//! 1. [`Context::open`], [`Context::alloc_pd`], [`ProtectionDomain::register`],
//!    [`MemoryRegion::into_slots`];
//! 2. [`Context::create_cq`], [`ProtectionDomain::create_srq`], [`ProtectionDomain::create_qp`];
//! 3. [`SharedReceiveQueue::post_recv`] *before* the peer may send;
//! 4. [`QueuePair::to_init`], [`QueuePair::to_rtr`] with what the peer told out of band,
//!    [`QueuePair::to_rts`]; neither side sends before both are ready to receive;
//! 5. [`QueuePair::post_send`]; [`CompletionQueue::poll`]; then [`QueuePair::complete_send`] or
//!    [`SharedReceiveQueue::claim`] for each completion.
//!
//! Two ways to post: [`SendRequest`] is a message of one slot, and as quick as can be; [`WorkRequest`] is
//! everything else that a send queue does, from lists of elements and immediates to RDMA READ, atomics and
//! memory windows ([`QueuePair::post`]).
//!
//! A thread that has nothing else to do may sleep until completions come: [`CompletionChannel`].
//!
//! One [`Context`] belongs to one poller: everything that was made from it may be used from any
//! thread, but the device lets one thread at a time do so.
//!
//! # A one-sided program
//!
//! One queue pair, connected to itself, reads its own memory as a peer's.
//!
//! ```
//! use std::error::Error;
//!
//! use rpc_transport_verbs::verbs::{
//!     Access, AddressWish, Context, Psn, QueuePairConfig, RemoteEndpoint, RtrAttributes, RtsAttributes,
//!     WorkRequest,
//! };
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let context = Context::open("soft")?;
//!     let address = context.choose_address(AddressWish::default())?;
//!     let domain = context.alloc_pd()?;
//!     let mut cq = context.create_cq(16)?;
//!     let mut qp = domain.create_qp(QueuePairConfig::new(&cq, &cq))?;
//!     let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
//!     let memory = domain.expose(4096, access)?;
//!
//!     let (gid, lid, psn) = (address.gid, address.lid, Psn::new(7));
//!     let myself = RemoteEndpoint { gid, lid, qp_num: qp.qp_num(), psn };
//!     qp.to_init(address.port, Access::REMOTE_READ)?;
//!     let sgid_index = address.gid_index;
//!     qp.to_rtr(RtrAttributes { sgid_index, max_dest_rd_atomic: 1, ..RtrAttributes::new(myself) })?;
//!     qp.to_rts(RtsAttributes { max_rd_atomic: 1, ..RtsAttributes::new(psn) })?;
//!
//!     memory.write(0, b"far away")?;
//!     let read = WorkRequest::read(memory.element(100..108)?, memory.remote(0)).signaled();
//!     qp.post(&mut vec![read], &mut drop)?;
//!     let mut completions = Vec::new();
//!     while cq.poll(&mut completions, 1)? == 0 {}
//!     for completion in completions {
//!         assert!(completion.is_success(), "{}", completion.status());
//!         qp.complete_send(completion, &mut drop)?;
//!     }
//!     assert_eq!(memory.to_vec(100..108)?, b"far away");
//!     Ok(())
//! }
//! ```

mod address;
mod address_handle;
mod completion_channel;
mod completion_queue;
mod context;
mod device_list;
mod element;
mod exposed_memory;
mod fork;
mod in_flight;
mod memory_region;
mod memory_window;
// Tests alone, which are programs in its documentation.
#[cfg(doctest)]
mod misuse;
mod multicast;
mod posted_receives;
mod protection_domain;
mod queue_pair;
mod receive_places;
mod registered_memory;
mod shared_receive_queue;
mod slot;
pub(crate) mod types;
mod work_request;

pub use address::{AddressError, AddressWish, PortAddress};
pub use address_handle::AddressHandle;
pub use completion_channel::CompletionChannel;
pub use completion_queue::{CompletionQueue, CompletionQueueHandle};
pub use context::Context;
pub use device_list::devices;
pub use element::{Element, Elements};
pub use exposed_memory::ExposedMemory;
pub use fork::{fork_init, is_fork_initialized};
pub use memory_region::MemoryRegion;
pub use memory_window::{Binding, MemoryWindow};
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{QueuePair, QueuePairConfig, SendRequest};
pub use shared_receive_queue::SharedReceiveQueue;
pub use slot::{Slot, SlotIndex};
pub use types::{
    Access, AckTimeout, AddressVector, AlternatePath, AsyncEvent, AtomicCapability, Attribute,
    AttributeMask, Busy, ClaimError, CompletionOpcode, CompletionStatus, CreateFlags,
    DeviceAttributes, DeviceCapabilities, DeviceCapability, DeviceCounters, DeviceInfo,
    Explanation, ExtendedConfig, FirmwareVersion, ForkStatus, Forked, Gid, GidEntry, GidType, Guid,
    InvalidCode, LinkLayer, LinkSpeed, LinkWidth, LocalKey, ModifyError, Mtu, NodeType, OpenError,
    PageSizes, PartitionKey, PathMigration, PhysicalState, PortAttributes, PortCapabilities,
    PortCapability, PortFlag, PortFlags, PortMtu, PortState, PostError, PostErrorReason, Psn,
    QpAttributes, QpInitAttributes, QpNum, QpState, QpType, QueuePairCapabilities, Rate,
    RemoteEndpoint, RemoteKey, RemoteMemory, RetryCount, RnrCounters, RnrRetry, RnrTimer,
    RtrAttributes, RtsAttributes, SendOps, SoftOptions, SrqAttributes, SrqNum, TransportType,
    VerbsError, VirtualLanes, WindowType, WorkCompletion, WorkKind, WrId,
};
pub use work_request::{ReceiveRequest, WorkRequest};
