//! The safe verbs layer: one verbs object per file, usable without the rest of the crate.
//!
//! Names are those of `libibverbs`, spelled out, so that you can find the man page. The differences
//! from C are:
//!
//! * **The queue owns memory in flight.** A [`Slot`] is the unique token for one piece of a
//!   [`MemoryRegion`]. Posting consumes the slot. Only the device returns it: by the request's
//!   completion, by a later completion of the same send queue, by a flush, or by the end of the
//!   queue pair. No code can therefore touch bytes that the device may still touch, whatever is
//!   dropped or forgotten.
//! * **Memory that peers may access has its own type.** [`ExposedMemory`] never hands out a slice,
//!   because a peer's WRITE would change bytes behind a reference. Its bytes are copied in and out,
//!   or accessed as atomic cells. A [`RemoteMemory`] describes it to a peer. Local and remote keys
//!   are different types.
//! * **A completion is claimed once.** [`WorkCompletion`] is not `Clone`, and claiming consumes it.
//! * **Parents outlive children.** Every object shares ownership of its parent. You may drop
//!   objects in any order; they are destroyed in an order that the device accepts. To find out
//!   whether an object is still in use, call `destroy` (or `dealloc`, `deregister`), which returns
//!   [`Busy`] where C returns `EBUSY`.
//! * **You don't acknowledge events.** The layer acknowledges each event itself, so destroying an
//!   object never waits for a missing acknowledgement.
//! * **Errors name the rule that was broken**: [`ModifyError`] names the attribute and the
//!   transition, [`PostError`] the index of the request and the rule. Every [`CompletionStatus`]
//!   and [`AsyncEvent`] has an `explanation`.
//! * **The layer checks what devices don't**: the transitions of a queue pair and their masks, its
//!   state before a send is posted, the free entries of the send queue, and lengths.
//!   `docs/deviations.md` lists the differences between Soft-RoCE and the specification.
//!
//! The usual order of calls, under their verbs names:
//!
//! 1. [`Context::open`], [`Context::alloc_pd`], [`ProtectionDomain::register`],
//!    [`MemoryRegion::into_slots`];
//! 2. [`Context::create_cq`], [`ProtectionDomain::create_srq`], [`ProtectionDomain::create_qp`];
//! 3. [`SharedReceiveQueue::post_recv`] *before* the peer may send;
//! 4. [`QueuePair::to_init`], [`QueuePair::to_rtr`] with the peer's address, received out of band,
//!    then [`QueuePair::to_rts`]; neither side sends before both are ready to receive;
//! 5. [`QueuePair::post_send`]; [`CompletionQueue::poll`]; then [`QueuePair::complete_send`] or
//!    [`SharedReceiveQueue::claim`] for each completion.
//!
//! There are two ways to post. [`SendRequest`] is a message in one slot and the fastest path.
//! [`WorkRequest`] covers the other send queue operations: lists of elements, immediates, RDMA
//! READ, atomics and memory windows ([`QueuePair::post`]).
//!
//! An idle thread may sleep until completions arrive: see [`CompletionChannel`].
//!
//! Use one [`Context`] per poller. All objects of a context may be used from any thread, but the
//! device serializes access: one thread at a time.
//!
//! # A one-sided program
//!
//! One queue pair, connected to itself, reads its own memory as if it were a peer's.
//!
//! ```
//! use std::error::Error;
//!
//! use verbline_verbs::{
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
mod block;
mod completion_channel;
mod completion_queue;
mod context;
mod destination;
mod device_list;
mod element;
mod event_fd;
mod exposed_memory;
#[doc(hidden)]
pub mod for_transport;
mod fork;
mod hooks;
mod in_flight;
mod log_limit;
mod memory_region;
mod memory_window;
// Only doctests: programs that must not compile.
#[cfg(doctest)]
mod misuse;
mod multicast;
mod posted_receives;
mod protection_domain;
mod provider;
mod queue_pair;
mod receive_table;
mod registered_memory;
mod shared_receive_queue;
mod slot;
mod streaming_copy;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod testing;
mod types;
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
pub use streaming_copy::{CopyRule, RegisteredWriter, copy_past_caches};
pub use types::{
    Access, AckTimeout, AddressVector, AlternatePath, AsyncEvent, AtomicCapability, Attribute,
    AttributeMask, Busy, ClaimError, CompletionOpcode, CompletionStatus, CreateFlags,
    DeviceAttributes, DeviceCapabilities, DeviceCapability, DeviceCounters, DeviceInfo,
    Explanation, ExtendedConfig, FirmwareVersion, ForkStatus, Forked, Gid, GidEntry, GidType, Guid,
    InvalidCode, LinkLayer, LinkSpeed, LinkWidth, LocalKey, ModifyError, Mtu, NodeType, OpenError,
    PageSizes, PartitionKey, PathMigration, PhysicalState, PortAttributes, PortCapabilities,
    PortCapability, PortFlag, PortFlags, PortMtu, PortState, PostError, PostErrorReason, Psn,
    QpAttributes, QpInitAttributes, QpNum, QpState, QpType, QueuePairCapabilities, Rate,
    ReadExecution, ReceiveOrder, RemoteEndpoint, RemoteKey, RemoteMemory, RetryCount, RnrCounters,
    RnrRetry, RnrTimer, RtrAttributes, RtsAttributes, SendOps, SoftOptions, SoftPath,
    SrqAttributes, SrqNum, TransportType, VerbsError, VirtualLanes, WindowType, WorkCompletion,
    WorkKind, WrId,
};
pub use work_request::{ReceiveRequest, WorkRequest};
