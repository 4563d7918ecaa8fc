//! What `bench` measures. Each file has one measurement, or a few of one subject: its options, which
//! clap reads, and [`measure`](crate::setup::Measurement::measure), which fills the report.
//!
//! To add one, write such a file and name it in `bin/bench.rs`. The options of every measurement, the
//! printing and the files are in [`crate::setup`] and [`crate::report`].

pub mod bandwidth;
pub mod channels;
pub mod compare;
pub mod connections;
pub mod copies;
pub mod curves;
pub mod idle;
pub mod latency;
pub mod open;
#[cfg(feature = "stream")]
pub mod over_tcp;
#[cfg(feature = "tls")]
pub mod over_tls;
pub mod overload;
#[cfg(feature = "peers")]
pub mod peers;
pub mod pinning;
pub mod ratios;
pub mod rdma;
#[cfg(feature = "stream")]
pub mod stream;
pub mod summary;
pub mod throughput;
pub mod tool;
pub mod unfair;
