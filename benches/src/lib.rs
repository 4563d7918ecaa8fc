//! Verbline's benchmarks. The programs:
//!
//! | program | what it measures |
//! | --- | --- |
//! | `latency` | one call at a time, beside the raw verbs ping-pong, in alternating slices of one run; calls at a rate, and at rising rates; the first call after a rest |
//! | `throughput` | calls per second with many in flight, over one or many connections, or through a shared client |
//! | `peers` (feature `peers`) | tonic and UCX in turn with both, in one table |
//! | `rdma` | one call at a time over an RDMA device, in turn with raw verbs and `ib_send_lat`; system calls |
//! | `instructions` (feature `count`) | nothing by itself: callgrind counts its instructions |
//!
//! `make bench`, `make bench-peers`, `make bench-rdma` and `make count` run them. What they share is here, a file for
//! each concern:
//!
//! - what is measured: [`raw`] (verbs without calls), [`rpc`] (calls), [`shared`] (calls through a shared client), [`service`] (who answers),
//!   [`message`] (what is sent), [`crew`] (many calls under way on one thread), [`open_loop`] (calls
//!   at intended times: [`arrivals`]) and [`sweep`] (at rising rates);
//! - beside what: [`perftest`], [`tcp`];
//! - how: [`cores`], [`clock`], [`slices`], [`allocations`], [`system_calls`], [`child`] (the other
//!   side's process);
//! - what is said of it: [`table`] (for people), [`hgrm`] (for the plotter), [`report`] (JSON).
//!
//! Why alternating slices: virtual machines change regime. The same ping-pong over one cache line
//! takes 100 or 540 ns, depending on where the virtual cores sit, for minutes at a time. So two
//! things are only ever compared within one run, in short turns, and what is quoted is the ratio.
#![forbid(unsafe_code)]

pub mod allocations;
pub mod arguments;
pub mod arrivals;
pub mod child;
pub mod clock;
pub mod cores;
pub mod crew;
pub mod hgrm;
pub mod message;
pub mod open_loop;
#[cfg(feature = "peers")]
pub mod peers;
pub mod perftest;
pub mod raw;
pub mod report;
pub mod rpc;
pub mod service;
pub mod shared;
pub mod slices;
pub mod sweep;
pub mod system_calls;
pub mod table;
pub mod tcp;

/// What the programs return: they end at the first error, and print it as a sentence.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
