//! Verbline's benchmarks. The programs:
//!
//! | program | what it measures |
//! | --- | --- |
//! | `latency` | one call at a time, next to a raw verbs ping-pong, in alternating slices of one run; calls at one rate, and at rising rates; the first call after an idle gap |
//! | `throughput` | calls per second with many in flight, over one or many connections, or through a shared client |
//! | `bandwidth` | bytes per second of uploads and downloads of any size, in alternating turns with raw READs and a copy of memory; single uploads; what small calls notice beside large messages; registered memory |
//! | `connections` | calls per second over one connection, beside many idle ones, and over many in turn |
//! | `overload` | calls answered in time when up to four times as many arrive as the server can answer, and how soon it recovers |
//! | `stream` (feature `stream`, which is on) | streams beside tonic's and beside unary calls: messages per second, round trips, cancellation, memory of idle streams |
//! | `peers` (feature `peers`) | UCX, iceoryx2 and tonic in alternating turns with Verbline and raw verbs, in one table |
//! | `rdma` | one call at a time over an RDMA device, in alternating turns with raw verbs and `ib_send_lat`; system calls |
//! | `attack` | what clients notice while another user, or a hostile process of the same user, attacks their server |
//! | `copies` | copies into registered memory that another core reads, with plain stores and with stores past the caches |
//! | `unfair` | calls per second of a client with many in flight, and of clients with one, on one poller |
//! | `compare` | runs `latency`, `throughput` and `stream`, and compares their figures with those of a file |
//! | `count` | instructions, code lines and simulated cache misses of `instructions` (feature `count`) and `raw_instructions`, next to the accepted figures |
//!
//! `make bench`, `make bench-compare`, `make bench-peers`, `make bench-rdma`, `make overload`, `make attacks` and `make count` run them. This library
//! holds the code that they share, with one module for each concern:
//!
//! - subjects: [`raw`] (verbs without calls), [`rpc`] (calls), [`shared`] (calls through a shared
//!   client), [`service`] (the server), [`message`] (the messages), [`in_flight`] (many calls in
//!   flight on one thread, with [`task_set`]), [`rates`] (those in turns), [`open_loop`] (calls at
//!   intended times from [`arrivals`]), [`sweep`] (calls at rising rates), [`streams`], [`spin`] (a server whose
//!   handlers take their time), [`overload`] (more calls than that server can answer), [`bandwidth`]
//!   (messages of any size) and [`attack`] (processes that mean harm);
//! - comparison: [`perftest`], [`tcp`], [`counts`] (with the accepted figures);
//! - method: [`cores`], [`clock`], [`line`](mod@line), [`slices`], [`rounds`], [`allocations`],
//!   [`system_calls`], [`child`] (the process of the other side);
//! - figures of another day: [`baseline`];
//! - output: [`table`] (for people), [`hgrm`] (for the plotter), [`report`] (JSON).
//!
//! Why alternating slices: virtual machines change regime. The same ping-pong over one cache line
//! takes 100 or 540 ns, for minutes at a time, depending on where the virtual cores run. So we
//! compare two things only within one run, in short turns, and quote their ratio.
#![forbid(unsafe_code)]

pub mod allocations;
pub mod arguments;
pub mod arrivals;
pub mod attack;
pub mod bandwidth;
pub mod baseline;
pub mod child;
pub mod clock;
pub mod cores;
pub mod counts;
pub mod drop_time;
pub mod hgrm;
pub mod in_flight;
pub mod line;
pub mod message;
pub mod open_loop;
pub mod overload;
#[cfg(feature = "stream")]
pub mod peers;
pub mod perftest;
pub mod rates;
pub mod raw;
pub mod report;
pub mod rounds;
pub mod rpc;
pub mod service;
pub mod shared;
pub mod slices;
pub mod spin;
pub mod streams;
pub mod sweep;
pub mod system_calls;
pub mod table;
pub mod task_set;
pub mod tcp;

/// The return type of the programs. They end at the first error and print it as a sentence.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
