//! Example programs to start from. Each fits on a page, with the command that runs it at the top:
//!
//! | program | what it shows |
//! | --- | --- |
//! | `greeter_server` | a service and its server |
//! | `greeter_client` | a client on the fastest path: this thread polls the device |
//! | `shared_client` | a client whose tasks share one channel, on tokio |
//! | `tokio_server` | a service whose handlers wait for sockets, so they run on tokio |
//! | `route_guide_server`, `route_guide_client` | gRPC's route guide: a method of each kind, one call of each |
//! | `chat_server`, `chat_client` | a chat room: a bidirectional stream for each participant, and a server that sends what one says to all |
//! | `watch_server`, `watch_client` | a stream that never ends; the client resumes it when the server has been started again |
//! | `blob_server`, `blob_client` | files of any size: in one message, or in a stream of parts; both sides check the digest |
//! | `tls_server`, `tls_client` | both sides prove who they are with certificates, and the server greets by name |
//! | `in_process` | server and client in one program, and how to test a service |
//! | `observed_server` | a server that prints its statistics, and metrics for Prometheus |
//! | `device_info` | the capabilities of this machine's devices, which one is chosen, and all of their attributes, also as JSON |
//! | `verbs_tutorial` | verbs without RPC: two queue pairs of one process, from the device list to the last event |
//!
//! This library is empty. It compiles and runs the programs of the README as documentation tests,
//! because this package depends on every crate that they need.
#![forbid(unsafe_code)]

/// The README; its programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The page for those who know tonic, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-tonic.md")]
pub struct FromTonic;

/// The page about interceptors, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/interceptors.md")]
pub struct Interceptors;

/// The page about TLS, whose programs are tests.
#[cfg(all(doctest, feature = "tls"))]
#[doc = include_str!("../../docs/tls.md")]
pub struct Tls;

/// The page about errors and retries, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/errors.md")]
pub struct Errors;

/// The page about the end of a server, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/shutdown.md")]
pub struct Shutdown;

/// The page about health and reflection, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/health.md")]
pub struct Health;

/// The page about tests, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
pub struct Testing;

/// The page about sizes, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/sizing.md")]
pub struct Sizes;

/// The page about streams, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/streaming.md")]
pub struct Streams;

/// The page about hosts and containers, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/deploy.md")]
pub struct Deploying;

/// The page about load, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/load.md")]
pub struct Load;

/// The page about threads, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/threads.md")]
pub struct Threads;
