//! Support for tests and fuzzers: a simulation of processes, and hostile peers.

#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod hostile;
#[cfg(feature = "test-util")]
pub mod simulation;
