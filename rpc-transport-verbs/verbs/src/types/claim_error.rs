//! Why a completion could not be claimed.

use super::queue_pair_attributes::QpNum;
use super::wr_id::WrId;

/// A completion that names no work request in flight on this queue.
///
/// The completion belongs to another queue, was kept while its entry was reused, or was reported
/// twice by the device; no memory was released. Or it belongs to a receive of several elements,
/// which [`claim_recv_elements`](crate::QueuePair::claim_recv_elements) would have returned;
/// these elements are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{wr_id} of queue pair {qp_num} names no work request that is in flight here, or a receive of several elements, which claim_recv_elements claims"
)]
pub struct ClaimError {
    /// The id in the completion.
    pub wr_id: WrId,
    /// The queue pair that reported it.
    pub qp_num: QpNum,
}
