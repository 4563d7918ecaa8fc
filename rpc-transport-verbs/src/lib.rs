//! RDMA for Verbline: devices that carry `rpc-core`'s calls.
//!
//! A [`Device`] is an RDMA device of this machine (feature `rdma`), or `soft`, a software device
//! with the same semantics between processes of one host. Programs that make calls need no other
//! type of this crate, and no type parameter says which kind of device it is:
//!
//! ```
//! use std::error::Error;
//!
//! use rpc_core::LocalPoller;
//! use rpc_transport_verbs::Device;
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     // What this machine has, what would be used, and why.
//!     println!("{}", Device::survey());
//!
//!     // The best device. The environment variable `VERBLINE_DEVICE` overrides the choice.
//!     let device = Device::best()?;
//!     let poller = LocalPoller::new(&device)?;
//!     // Every number that was derived for this poller: slots, queues, inline lengths, memory.
//!     println!("{}", poller.limits());
//!     Ok(())
//! }
//! ```
//!
//! The front page of `rpc-core` continues from here with a server and a client. If you don't need
//! RPC, use the crate `verbline-verbs` directly, which is [`verbs`] here: it has every verbs object as
//! a safe type, and programs of its own.
//!
//! # Features
//!
//! * `rdma` (off): RDMA devices, through libibverbs, which is loaded when a device is opened. The
//!   feature adds no public name. Without it, opening an RDMA device by name fails with an error
//!   that names the feature.
//! * `test-util` (off, internal): `testing::simulation`, simulated processes over the software
//!   device, for the fault campaign.
//!
//! # How the transport works
//!
//! The transport moves whole frames between two connected peers, in order, each frame into one
//! receive slot of the peer, without the kernel on the data path. It pools registered memory,
//! shares a receive queue among the connections of a poller, signals selectively, and detects at
//! once that a peer's process has ended. It implements two traits of `rpc-core`, [`Fabric`] and
//! [`Transport`], and knows nothing of calls, services or flow control: `rpc-core` never has more
//! frames in flight than the peer has promised receives. [`VerbsTransport`] shows it without calls.
//!
//! ```text
//!            one poller (a thread), one lane                           one process
//! ┌───────────────────────────────────────────────┐       ┌──────────────────────────────────┐
//! │ rpc-core's driver                              │       │ control thread                   │
//! │   │ reserve, send, flush    ▲ poll, release    │notices│  every TCP socket: handshakes,   │
//! │   ▼                         │                  │◄──────│  and the liveness of connections │
//! │ transmit ─► send queues   receive ◄─ SRQ       │       └──────────────────────────────────┘
//! │   │           │             ▲    ▲    ▲        │       ┌──────────────────────────────────┐
//! │   └───────── buffer pool ───┘    │    └────────┼───────│ async-event thread               │
//! │          (one registration)      │             │reserve│  posts the reserve when the      │
//! │ queue pairs ──────────► completion queue       │       │  poller lags                     │
//! └───────┬───────────────────────────────────────┘       └──────────────────────────────────┘
//!         ▼
//!   verbs: RDMA devices (feature `rdma`), or the software device
//! ```
//!
//! [`Fabric`]: rpc_core::transport::Fabric
//! [`Transport`]: rpc_core::transport::Transport

// The modules, in the order of a call:
//
// | module | purpose |
// | --- | --- |
// | `device` | turns names into a `Device`; lists and claims cores |
// | `device::survey` | reports the capabilities of each device of the machine, and the best device |
// | `device::sizing` | derives numbers from intents, each with its reason, and checks them against the device |
// | `device::setup` | creates one poller's resources, once: a lane for each of its devices |
// | `connect::client`, `connect::server` | each side's half of connection setup; `transport::queue_pairs` creates and connects the queue pairs |
// | `connect::handshake` | the messages as values and bytes, and the choice of the device |
// | `connect::control_thread` | handles every TCP socket of the process |
// | `connect::liveness`, `connect::keepalive` | detect the end of the peer's process, and a process that is stopped |
// | `connect::rpc_transport` | implements the interface that the driver uses, and selects the lane |
// | `transport` | a poller's lanes |
// | `transport::notices` | notices from other threads to a poller; checking for them costs one load |
// | `transport::sleep`, `wakeup` | how an idle poller sleeps, and how it is woken |
// | `transport::lane` | a poller's resources on one device; `connection` is one connection, `routes` finds it |
// | `transport::buffer_pool` | the states of a slot, and the sum over all states |
// | `transport::transmit`, `send_queue` | reserve, send, flush: queue entries, signaling, chains |
// | `transport::receive`, `receive_queue` | poll: claims receives, and posts them again in batches |
// | `transport::events`, `device_event` | asynchronous events: their messages and their consequences |
// | `transport::reserve` | receives for a poller that lags, and the limit that triggers posting them |
// | `transport::close`, `failure` | the end of a connection, and its error message |

#![forbid(unsafe_code)]

// So that the harness of the transport's tests can name this crate in the same way inside and
// outside of it.
#[cfg(test)]
extern crate self as rpc_transport_verbs;

mod connect;
mod device;
#[cfg(any(feature = "test-util", test, fuzzing))]
pub mod testing;
mod transport;

pub use connect::client::Dialed;
pub use connect::server::Port;
pub use device::sizing::Sizing;
pub use device::survey::{Survey, SurveyedDevice, SurveyedPort};
pub use device::{DEVICE_VARIABLE, Device, DeviceError};
pub use rpc_core::transport::SlotsByState;
pub use transport::failure::ConnectionFailure;
pub use transport::path::{CompletionVector, FabricSettings};
pub use transport::{RecvBuf, RegisteredBuf, SendBuf, VerbsTransport};
#[doc(no_inline)]
pub use verbline_verbs as verbs;

/// Runs `run`, which starts threads, with the cores of the process, even if the calling thread is
/// pinned. On a thread that may use all of them it only runs `run`.
///
/// Linux gives a new thread the cores of the thread that starts it. A handler on a pinned poller
/// therefore starts its threads, and pools that are made at their first use, like this, or on an
/// executor, or before the server is bound:
///
/// ```
/// use std::sync::LazyLock;
///
/// static THREADS: LazyLock<usize> = LazyLock::new(|| {
///     // Here, a pool would be built.
///     std::thread::available_parallelism().map_or(1, usize::from)
/// });
///
/// // In a handler: the pool has a thread for each core of the process.
/// let threads = rpc_transport_verbs::unpinned(|| *THREADS);
/// # assert!(threads > 0);
/// ```
pub fn unpinned<T>(run: impl FnOnce() -> T) -> T {
    verbs::for_transport::unpinned(run)
}
