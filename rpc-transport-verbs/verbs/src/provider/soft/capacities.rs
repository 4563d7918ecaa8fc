//! The capacities of a context of this device.

use super::shared::ring::MAX_BUFFERED;
use crate::provider::limits::AttributeLimits;
use crate::types::VerbsError;

/// The name under which applications open the device.
pub(crate) const DEVICE_NAME: &str = "soft";
/// The name under which applications open the device with TCP connections between queue pairs.
pub(crate) const TCP_DEVICE_NAME: &str = "tcp";

/// Maximum number of RDMA reads and atomics in flight, as reported to queue pairs.
pub(super) const MAX_RD_ATOMIC: u8 = 16;

pub(super) const ATTRIBUTE_LIMITS: AttributeLimits = AttributeLimits {
    port_count: 1,
    pkey_count: 1,
    max_rd_atomic: MAX_RD_ATOMIC,
    max_dest_rd_atomic: MAX_RD_ATOMIC,
};

/// Work requests of one queue. The layer above numbers them in 20 bits and keeps twice as many
/// receive entries as can be posted.
pub(super) const MAX_WR: usize = 1 << 17;
/// Entries of a completion queue: enough for 64 queues of the maximum depth.
pub(super) const MAX_CQE: usize = 1 << 23;
/// Maximum number of completion queues, and of shared receive queues, of one context.
pub(super) const MAX_QUEUES: usize = 1 << 16;
/// Bytes of a region: 64 GiB.
pub(super) const MAX_REGION_LEN: usize = 1 << 36;
/// Scatter/gather elements of a request: the number of descriptors that fit into one slot of a
/// ring.
pub(super) const MAX_SGE: usize = 8;
/// Bytes that any request can carry in the ring.
pub(super) const MAX_INLINE: usize = MAX_BUFFERED;
/// Longest message, in bytes.
pub(super) const MAX_MESSAGE_LEN: usize = 1 << 31;

pub(super) fn exhausted(call: &'static str, what: &'static str, limit: usize) -> VerbsError {
    VerbsError::Exhausted {
        call,
        what,
        limit: limit as u64,
    }
}

/// Converts an index into one of a context's tables, which are all limited to far less than 2³²
/// entries.
pub(super) fn index32(index: usize) -> u32 {
    index as u32
}
