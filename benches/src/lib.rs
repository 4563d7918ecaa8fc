//! Verbline's benchmarks. `bench` measures, `count` counts instructions:
//!
//! ```text
//! cargo run --release -p benches -- --help
//! cargo run --release -p benches -- latency --json
//! make count
//! ```
//!
//! docs/benchmarks.md lists the measurements and says what each figure means. This library has one
//! module for each concern:
//!
//! - the frame: [`setup`] (the options of every measurement), [`measurements`] (what is measured),
//!   [`role`] and [`child`] (the processes of the other side), [`report`] (one table and one object)
//!   and `verbline_load::plot` (SVG);
//! - subjects: [`raw`] (verbs without calls, over an [`endpoint`]), [`rpc`] (calls), [`shared`] (calls
//!   through a shared client), [`service`] (the server), `security` (its TLS), [`message`] (the messages), [`in_flight`] (many
//!   calls in flight on one thread), [`rates`] (those in turns), [`streams`], [`spin`] (a service whose
//!   handlers take their time), [`overload`] (more calls than its server can answer, made with [`due`])
//!   and [`bandwidth`] (messages of any size);
//! - comparison: `peers`, [`external`], [`sockets`], [`counts`] (with the accepted figures), [`baseline`]
//!   (the figures of another day);
//! - method: [`cores`], [`clock`], [`line`](mod@line), [`slices`], [`rounds`], [`allocations`],
//!   [`system_calls`].
//!
//! Open and closed loops, their histograms and the files for HdrHistogram's plotter are those of
//! [`verbline_load`].
//!
//! Why alternating slices: virtual machines change regime. The same ping-pong over one cache line
//! takes 100 or 540 ns, for minutes at a time, depending on where the virtual cores run. So we
//! compare two things only within one run, in short turns, and quote their ratio.
#![forbid(unsafe_code)]

pub mod allocations;
pub mod arguments;
pub mod bandwidth;
pub mod baseline;
pub mod child;
pub mod clock;
pub mod cores;
pub mod counts;
pub mod drop_time;
pub mod due;
pub mod endpoint;
pub mod external;
pub mod in_flight;
pub mod line;
pub mod measurements;
pub mod message;
pub mod overload;
#[cfg(feature = "stream")]
pub mod peers;
pub mod rates;
pub mod raw;
pub mod report;
pub mod role;
pub mod rounds;
pub mod rpc;
#[cfg(feature = "tls")]
pub mod security;
pub mod service;
pub mod setup;
pub mod shared;
pub mod slices;
pub mod sockets;
pub mod spin;
pub mod streams;
pub mod system_calls;

/// The return type of the programs. They end at the first error and print it as a sentence.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;
