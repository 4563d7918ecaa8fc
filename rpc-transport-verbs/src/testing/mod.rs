//! Support for tests and fuzzers: a simulation of processes, and hostile peers.

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(feature = "test-util")]
pub mod simulation;
