//! Counts what an exchange costs, in instructions, locked ones, code lines and simulated cache misses, and
//! compares the figures with the accepted ones.
//!
//! - [`callgrind`]: runs a program under valgrind's callgrind and reads what it counted;
//! - [`figure`]: one figure, and the functions that make it up;
//! - [`locked`]: the instructions that wait for the core's stores;
//! - [`accepted`]: the file with the accepted figures, and the comparison.

pub mod accepted;
pub mod callgrind;
pub mod figure;
pub mod locked;
