//! Verbline's transport: frames between processes over RDMA verbs, on an RDMA device or on a
//! software device with the same semantics.
//!
//! # Scope
//!
//! The transport moves whole frames between two connected peers, in order, each frame into one
//! receive slot of the peer, without the kernel on the data path. It pools registered memory,
//! shares a receive queue among the connections of a poller, signals selectively, and detects at
//! once that a peer's process has ended. It implements two traits of `rpc-core`, [`Fabric`] and
//! [`Transport`], and knows nothing of calls, services or flow control: `rpc-core` never has more
//! frames in flight than the peer has promised receives.
//!
//! Applications need one type of this crate, [`Device`], which has no type parameter for the kind
//! of device. If you don't need RPC, use [`verbs`] directly: verbs objects as safe types.
//!
//! # Overview
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
//!   verbs: the safe layer ─► provider: RDMA devices (feature `rdma`), or the software device
//! ```
//!
//! # Features
//!
//! * `rdma` (off): RDMA devices, through libibverbs, which is loaded when a device is opened. The
//!   feature adds no public name. Without it, opening an RDMA device by name fails with an error
//!   that names the feature.
//! * `test-util` (off): `testing::simulation`, simulated processes over the software device, for
//!   the fault campaign.
//!
//! # Example
//!
//! This program uses the transport directly, without calls: it has a server and a client in one
//! process. In a real program, `rpc-core` drives both.
//!
//! ```
//! use std::error::Error;
//! use std::sync::{Arc, atomic::AtomicUsize};
//! use std::time::Duration;
//!
//! use rpc_core::limits::Intents;
//! use rpc_core::transport::{Admission, Admitted, Event, Fabric, ConnectionQuota, Refusal, Transport};
//! use rpc_transport_verbs::Device;
//!
//! struct AdmitAll;
//!
//! impl Admission for AdmitAll {
//!     fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
//!         let quota = ConnectionQuota::acquire(&Arc::new(AtomicUsize::new(0)));
//!         let client_session = session.to_vec();
//!         Ok(Admitted { poller: 0, client_session, server_session: Vec::new(), quota })
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let device = Device::best()?;
//!     let mut server = device.open(&Intents::default())?;
//!     println!("{}", server.limits());
//!     let ports = vec![device.port(&server)];
//!     let listener = device.listen("127.0.0.1:0", ports, Arc::new(AdmitAll))?;
//!
//!     let mut client = device.open(&Intents::default())?;
//!     let address = listener.local_addr().to_string();
//!     let connected = client.connect(&address, b"", Duration::from_secs(5))?;
//!     let mut buf = client.reserve(connected.connection, 5)?;
//!     buf.as_mut().copy_from_slice(b"hello");
//!     client.send(connected.connection, buf)?;
//!     client.flush();
//!
//!     let mut events = Vec::new();
//!     loop {
//!         server.poll(&mut events);
//!         for event in events.drain(..) {
//!             if let Event::Received { buf, .. } = event {
//!                 assert_eq!(buf.as_ref(), b"hello");
//!                 server.release(buf);
//!                 return Ok(());
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # The modules, in the order of a call
//!
//! | module | purpose |
//! | --- | --- |
//! | `device` | turns names into a [`Device`]; lists cores and pins threads to them |
//! | `device::survey` | reports the capabilities of each device of the machine, and the best device |
//! | `device::sizing` | derives numbers from intents, each with its reason, and checks them against the device |
//! | `device::setup` | creates one poller's resources, once: a lane for each of its devices |
//! | `connect::client`, `connect::server` | each side's half of connection setup; `transport::queue_pairs` creates and connects the queue pairs |
//! | `connect::handshake` | the messages as values and bytes, and the choice of the device |
//! | `connect::control_thread` | handles every TCP socket of the process |
//! | `connect::liveness`, `connect::keepalive` | detect the end of the peer's process, and a process that is stopped |
//! | `connect::rpc_transport` | implements the interface that the driver uses, and selects the lane |
//! | `transport` | a poller's lanes |
//! | `transport::notices` | notices from other threads to a poller; checking for them costs one load |
//! | `transport::sleep`, `wakeup` | how an idle poller sleeps, and how it is woken |
//! | `transport::lane` | a poller's resources on one device; `connection` is one connection, `routes` finds it |
//! | `transport::buffer_pool` | the states of a slot, and the sum over all states |
//! | `transport::transmit`, `send_queue` | reserve, send, flush: queue entries, signaling, chains |
//! | `transport::receive`, `receive_queue` | poll: claims receives, and posts them again in batches |
//! | `transport::events`, `device_event` | asynchronous events: their messages and their consequences |
//! | `transport::reserve` | receives for a poller that lags, and the limit that triggers posting them |
//! | `transport::close`, `failure` | the end of a connection, and its error message |
//! | [`verbs`], `provider` | the verbs as safe types, and the devices that implement them |
//!
//! [`Fabric`]: rpc_core::transport::Fabric
//! [`Transport`]: rpc_core::transport::Transport

// So that the harness of the transport's tests can name this crate in the same way inside and
// outside of it.
#[cfg(test)]
extern crate self as rpc_transport_verbs;

mod connect;
mod device;
mod event_fd;
mod hooks;
mod provider;
#[cfg(any(feature = "test-util", all(any(test, fuzzing), not(loom))))]
pub mod testing;
mod transport;
pub mod verbs;

pub use connect::client::Dialed;
pub use connect::server::Port;
pub use device::sizing::Sizing;
pub use device::survey::{Survey, SurveyedDevice, SurveyedPort};
pub use device::{DEVICE_VARIABLE, Device, DeviceError};
pub use rpc_core::transport::SlotsByState;
pub use transport::failure::ConnectionFailure;
pub use transport::{RecvBuf, SendBuf, VerbsTransport};
