//! How fast bytes move: messages of any size as calls, beside what the machine and the device can do.
//!
//! In every measurement, the receiver reads the first word of each cache line, because a device may
//! not have moved bytes that are not read. One exception: of the stream beside small calls, the
//! receiver reads one line of each message.

pub mod calls;
pub mod copies;
pub mod idle;
pub mod memory;
pub mod neighbour;
pub mod pattern;
pub mod puts;
pub mod raw;
pub mod service;
mod source;

pub use source::SourceArgs;

/// Returns the number of transfers of `size` bytes that move `bytes` bytes.
#[must_use]
pub fn transfers(bytes: usize, size: usize) -> usize {
    (bytes / size).max(1)
}

/// Returns how many transfers of this size are in flight at a time: enough that none waits for the
/// other side, in not more than 256 MiB.
#[must_use]
pub fn in_flight(size: usize) -> usize {
    const KIB: usize = 1024;
    if size < 64 * KIB {
        32
    } else if size < 1024 * KIB {
        16
    } else if size <= 16 * 1024 * KIB {
        8
    } else {
        4
    }
}
