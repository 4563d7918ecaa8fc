//! RDMA verbs as safe types: one type per verbs object, over RDMA devices and over a software device.
//!
//! A program that uses verbs posts requests to queues in its own memory, and a device carries them
//! out without the kernel: it sends a message into a receive that the peer has posted, or reads and
//! writes memory that the peer has exposed. This crate makes that safe. What C leaves to the reader
//! of a manual is a type here, or is checked and refused with its reason.
//!
//! It leaves to you what depends on your protocol: how two processes learn each other's address and
//! queue pair number (any socket will do), how many receives the peer may count on, what the bytes
//! mean, and what happens when a connection has failed. If you want calls, use the crate `verbline`,
//! which is built on this one.
//!
//! ```text
//!  Context ──┬─ alloc_pd ─▶ ProtectionDomain ──┬─ register ────▶ MemoryRegion ─▶ Slot, Slot, …
//!  (a device)│                                 ├─ expose ──────▶ ExposedMemory ◀── MemoryWindow
//!            ├─ create_cq ▶ CompletionQueue    ├─ create_srq ──▶ SharedReceiveQueue
//!            │                  ▲              └─ create_qp ───▶ QueuePair
//!            │                  └─────────── completions ──────────┤
//!            └─ create_comp_channel ▶ CompletionChannel            └──▶ the peer's QueuePair
//!               (to sleep)
//! ```
//!
//! # A program
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
//!     // The software device, which exists everywhere; or the name of an RDMA device.
//!     let context = Context::open("soft")?;
//!     let address = context.choose_address(AddressWish::default())?;
//!     let domain = context.alloc_pd()?;
//!     let mut cq = context.create_cq(16)?;
//!     let mut qp = domain.create_qp(QueuePairConfig::new(&cq, &cq))?;
//!     let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
//!     let memory = domain.expose(4096, access)?;
//!
//!     // Two processes send each other these over a socket. Here, they are one.
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
//!     // A thread may also sleep until then: `CompletionChannel`.
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
//!
//! # Which device
//!
//! [`devices`] lists what [`Context::open`] takes: the RDMA devices that the feature `rdma` finds, then
//! the software device, under two names. `soft` connects processes of one user on one host through
//! memory that they share. `tcp` connects processes through TCP connections: [`Context::open_soft`]
//! has the addresses ([`SoftPath`]). A [`DeviceName`] may also name a port and a GID, or be a network
//! device or an address: `mlx5_0:1:3`, `@eth0`, `@192.0.2.0/24`. [`Context::choose_address`] chooses the port and the GID to send
//! from, and says why a device has none. The software device is stricter than network cards, so that
//! what works on a laptop works on them; [`Context::query_device`] reports the limits of each.
//!
//! # The order of calls
//!
//! Under their verbs names:
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
//! Use one [`Context`] per poller. All objects of a context may be used from any thread, but the
//! device serializes access: one thread at a time.
//!
//! # What differs from C
//!
//! Names are those of `libibverbs`, spelled out, so that you can find the man page.
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
//! # Features
//!
//! * `rdma` (off): RDMA devices, through libibverbs, which is loaded when a device is opened. The
//!   feature adds no public name. Without it, opening an RDMA device by name fails with an error
//!   that names the feature.
//! * `test-util` (off): hooks for Verbline's fault campaign, which simulates processes over the
//!   software device. They are not part of the interface.
//! * `shim` (off): what the library that preloads libibverbs' functions over the software device needs.
//!   It is not part of the interface.
//!
//! # Where to look next
//!
//! - [`QueuePair`] and [`SharedReceiveQueue`] post; [`CompletionQueue`] polls; [`Slot`] and
//!   [`ExposedMemory`] are the memory.
//! - In the repository, `docs/verbs.md` lists a tour as a program, an explanation of every status, and
//!   what each device does, case by case.

// The module `provider` has one enum per object, with a variant for each kind of device: `rdma` is
// libibverbs, `soft` the software device. The other modules are the safe types above it, one object
// each; `types` has the attributes, states, numbers and errors that both use.

// First, because the others use its macro.
#[macro_use]
#[doc(hidden)]
pub mod log_limit;

mod address;
mod address_handle;
mod affinity;
mod block;
mod completion_channel;
mod completion_queue;
mod context;
mod destination;
mod device_list;
mod device_name;
mod device_search;
mod element;
mod event_fd;
mod exposed_memory;
#[cfg(feature = "shim")]
#[doc(hidden)]
pub mod for_shim;
#[doc(hidden)]
pub mod for_transport;
mod fork;
mod fork_sockets;
mod heap;
mod hooks;
mod in_flight;
mod key_history;
mod member_list;
mod memory_region;
mod memory_window;
// Only doctests: programs that must not compile.
#[cfg(doctest)]
mod misuse;
mod multicast;
mod posted_receives;
mod prefetch;
mod protection_domain;
mod provider;
mod queue_pair;
mod record_layer;
mod registered_memory;
mod shared_receive_queue;
mod slot;
mod strangers;
mod streaming_copy;
mod system_error;
#[cfg(any(test, fuzzing))]
pub mod testing;
mod types;
mod window_trial;
mod work_request;

pub use address::{AddressError, PortAddress};
pub use address_handle::AddressHandle;
pub use completion_channel::CompletionChannel;
pub use completion_queue::{CompletionQueue, CompletionQueueHandle};
pub use context::Context;
pub use device_list::devices;
pub use device_name::{AddressWish, DeviceName, GidFilter};
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
    DeviceNameError, Explanation, ExtendedConfig, FirmwareVersion, ForkStatus, Forked, Gid,
    GidEntry, GidType, Guid, InvalidCode, LinkLayer, LinkSpeed, LinkWidth, LocalKey, ModifyError,
    Mtu, NodeType, OpenError, PageSizes, PartitionKey, PathMigration, PhysicalState,
    PortAttributes, PortCapabilities, PortCapability, PortFlag, PortFlags, PortMtu, PortState,
    PostError, PostErrorReason, Psn, QpAttributes, QpInitAttributes, QpNum, QpState, QpType,
    QueuePairCapabilities, Rate, ReadExecution, ReceiveOrder, RemoteEndpoint, RemoteKey,
    RemoteMemory, RetryCount, RnrCounters, RnrRetry, RnrTimer, RtrAttributes, RtsAttributes,
    SendOps, SoftOptions, SoftPath, SrqAttributes, SrqNum, TransportType, VerbsError, VirtualLanes,
    WindowType, WorkCompletion, WorkKind, WrId,
};
pub use work_request::{ReceiveRequest, WorkRequest};
