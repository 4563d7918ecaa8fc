//! Verbline's transport: frames between processes over RDMA verbs, on an RDMA device or on a
//! software device with the same semantics.
//!
//! # What it does, and what it leaves to others
//!
//! It moves whole frames between two connected peers, in order, each frame into one receive slot of
//! the peer, without the kernel on the data path. It pools registered memory, shares a receive queue
//! among the connections of a poller, signals selectively, and knows at once when a peer's process is
//! gone. It implements `rpc-core`'s two seams, [`Fabric`] and [`Transport`], and knows nothing of
//! calls, services or flow control: `rpc-core` never has more frames under way than the peer has
//! promised receives for.
//!
//! Whoever uses Verbline needs one name from here, [`Device`]; no type parameter says which device it
//! is. [`verbs`] is usable without the rest: verbs objects as safe types.
//!
//! # One drawing
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
//! * `rdma` (off): RDMA devices, through libibverbs, which is looked up when a device is opened. Adds no
//!   public name: without it, naming an RDMA device is an error that says so.
//!
//! * `test-util` (off): `testing::simulation`, simulated processes over the software device, for the fault campaign.
//!
//! # A small program
//!
//! A transport by itself, without calls: a server and a client in one process. In a real program,
//! `rpc-core` is what drives both.
//!
//! ```
//! use std::error::Error;
//! use std::sync::{Arc, atomic::AtomicUsize};
//! use std::time::Duration;
//!
//! use rpc_core::limits::Intents;
//! use rpc_core::transport::{Admission, Admitted, Event, Fabric, Permit, Refusal, Transport};
//! use rpc_transport_verbs::Device;
//!
//! struct LetEverybodyIn;
//!
//! impl Admission for LetEverybodyIn {
//!     fn admit(&self, session: &[u8]) -> Result<Admitted, Refusal> {
//!         let permit = Permit::of(&Arc::new(AtomicUsize::new(0)));
//!         let client_session = session.to_vec();
//!         Ok(Admitted { poller: 0, client_session, server_session: Vec::new(), permit })
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let device = Device::best()?;
//!     let mut server = device.open(&Intents::default())?;
//!     println!("{}", server.limits());
//!     let ports = vec![device.port(&server)];
//!     let listener = device.listen("127.0.0.1:0", ports, Arc::new(LetEverybodyIn))?;
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
//! | module | what happens there |
//! | --- | --- |
//! | `device` | names become a [`Device`]; cores are listed and pinned |
//! | `device::survey` | what each device of the machine can do, and which is the best |
//! | `device::sizing` | intents become numbers, each with its reason, checked against the device |
//! | `device::setup` | one poller's resources are made, once: a lane for each of its devices |
//! | `connect::client`, `connect::server` | each side's half of a connection's set-up; `transport::queue_pairs` brings them up |
//! | `connect::handshake`, `connect::control_thread` | its messages as values and bytes, and the choice of the device that both sides have; every TCP socket of the process |
//! | `connect::liveness`, `connect::keepalive` | whether the peer's process is there, and whether it stands still |
//! | `connect::rpc_transport` | the face that the driver sees, and which lane is meant |
//! | `transport` | a poller's lanes |
//! | `transport::mailbox` | what other threads tell a poller, for the price of one load |
//! | `transport::sleep`, `alarm` | a poller that has nothing to do: what it waits for, and who wakes it |
//! | `transport::lane` | what a poller owns of one device; `connection` is one connection, `routes` finds it |
//! | `transport::buffer_pool` | the places where a slot can be, and their sum |
//! | `transport::transmit`, `send_queue` | reserve, send, flush; places, signals, chains |
//! | `transport::receive`, `receive_queue` | poll; receives are claimed, and posted again in batches |
//! | `transport::events`, `device_event` | what a device says unasked, in words, and what follows from it |
//! | `transport::reserve` | receives for a poller that lags, and the limit that raises the alarm |
//! | `transport::close`, `failure` | the end of a connection, and what is said of it |
//! | [`verbs`], `provider` | the verbs as safe types, and who carries them out |
//!
//! [`Fabric`]: rpc_core::transport::Fabric
//! [`Transport`]: rpc_core::transport::Transport

// So that the harness of the transport's tests reads the same in here as outside.
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
pub use rpc_core::transport::SlotsByPlace;
pub use transport::failure::ConnectionFailure;
pub use transport::{RecvBuf, SendBuf, VerbsTransport};
