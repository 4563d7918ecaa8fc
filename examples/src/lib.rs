//! Programs to start from, each a page, with the command that runs it at its top:
//!
//! | program | what it shows |
//! | --- | --- |
//! | `greeter_server` | a service, and the server around it |
//! | `greeter_client` | a client on the fastest path: this thread polls the device |
//! | `tokio_server` | a service whose handlers wait for sockets, and so run on tokio |
//! | `in_process` | both in one program, and how a service is tested |
//! | `device_info` | what the devices of this machine can do, and which is taken; all that they say of themselves, also as JSON |
//! | `verbs_tutorial` | verbs without calls: two queue pairs of one process, from the device list to the last event |
//!
//! This library holds nothing of its own. The programs of the README are compiled and run here as
//! documentation tests, since every crate that they need is a dependency of this package.
#![forbid(unsafe_code)]

/// The README, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The page about threads, whose programs are tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/threads.md")]
pub struct Threads;
