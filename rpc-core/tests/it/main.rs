//! The tests of calls, streams and messages over the loopback transport, where time is a value, and of a
//! few things that need a device. One program: a module for each subject.

mod calls;
mod deadlines;
mod destructors_over_device;
mod durations;
mod error_details;
mod error_details_golden;
mod error_texts;
mod executor;
mod faults;
mod faults_streams;
mod hostile;
mod hostile_bytes;
mod hostile_clients;
mod hostile_servers;
mod idle;
mod long_messages;
mod long_messages_hostile;
mod long_messages_memory;
mod long_messages_stalled;
mod long_receivers_stalled;
mod long_responses;
mod memory_over_device;
mod method_limits;
#[cfg(feature = "metrics")]
mod metrics;
mod overload;
mod reentrancy;
mod scarcity;
mod send_caller;
mod server;
mod shared;
mod shared_pollers;
mod shared_turns;
mod shedding;
mod shutdown;
mod stats;
mod streams;
mod streams_client;
mod streams_long;
mod streams_overload;
mod streams_waiting;
mod streams_wakers;
mod support;
mod trailing_metadata;
mod waiting;
