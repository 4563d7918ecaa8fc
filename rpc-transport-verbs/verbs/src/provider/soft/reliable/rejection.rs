//! Why a peer's request is not executed, and how this side reports it.

use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::types::{AsyncEvent, CompletionOpcode, CompletionStatus, WrId};

/// Reason for not executing a request.
pub(super) enum Rejection {
    /// The request cannot be executed now and stays in its slot.
    NotYet,
    /// The sender has reclaimed the memory that the request names, so the request no longer exists.
    Lost,
    /// The request is malformed: no software device sends it.
    Invalid,
    /// The request fails: the status for the requester, and how this side reports it.
    Status(CompletionStatus, LocalReport),
    /// The response to this side's own request cannot be stored: the status of that request.
    OfResponse(CompletionStatus),
}

/// How this side reports a failed request.
pub(super) enum LocalReport {
    /// By the completion of the receive that the request consumed.
    Receive(CompletionStatus),
    /// By an asynchronous event.
    RequestError,
    AccessError,
    /// By the completion of this receive, which was taken out of its queue before.
    Taken(WrId, CompletionStatus),
}

impl SoftQueuePair {
    /// Reports on this side that a request of the peer has failed.
    pub(super) fn report(&mut self, common: &mut Common, report: LocalReport) {
        let qp_num = self.core.number;
        match report {
            LocalReport::Receive(local) => {
                self.complete_receive(common, local, CompletionOpcode::Receive, 0, None, 0);
            }
            LocalReport::RequestError => common.raise(AsyncEvent::QpRequestError { qp_num }),
            LocalReport::AccessError => common.raise(AsyncEvent::QpAccessError { qp_num }),
            LocalReport::Taken(wr_id, status) => {
                self.complete_taken(common, wr_id, status, 0, 0, 0);
            }
        }
    }
}
