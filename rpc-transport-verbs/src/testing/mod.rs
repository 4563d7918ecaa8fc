//! What tests and fuzzers drive: a simulation of processes, and peers that mean harm.

#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod hostile;
#[cfg(feature = "test-util")]
pub mod simulation;
