//! Queue pairs.

use std::io;

use super::request::{Receive, receive};
use super::{Binding, Element, Request};
use crate::provider;
use crate::types::queue_pair_transitions::check_transition;
use crate::types::{
    Gid, ModifyError, Operation, PostError, PostErrorReason, QpAttributes, QpNum, QpState, QpType,
    QueuePairCapabilities, RemoteOperation, VerbsError, WrId,
};

/// A queue pair. It does not count what is in its send queue: the caller does.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) qp: provider::QueuePair,
    pub(super) qp_type: QpType,
}

impl QueuePair {
    /// Returns the number.
    pub fn qp_num(&self) -> QpNum {
        self.qp.qp_num()
    }

    /// Returns the type.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns what was granted.
    pub fn capabilities(&self) -> QueuePairCapabilities {
        self.qp.capabilities()
    }

    /// Returns the state.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        self.qp.state()
    }

    /// Returns the attributes.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn query(&self) -> Result<QpAttributes, VerbsError> {
        self.qp.query()
    }

    /// Changes attributes, and returns the state that the queue pair is in now.
    ///
    /// # Errors
    ///
    /// If the transition does not exist, or an attribute is missing, superfluous or out of range; or if
    /// the peer cannot be reached.
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<QpState, ModifyError> {
        let from = self.qp.state().map_err(|source| ModifyError::Os {
            action: "tell its state",
            source: io::Error::other(source),
        })?;
        let (claimed, wanted) = (attributes.current_state, attributes.state);
        let to = check_transition(self.qp_type, from, claimed, wanted, attributes.mask())?;
        self.qp.modify(from, to, attributes)?;
        Ok(to)
    }

    /// Posts a request.
    ///
    /// # Safety
    ///
    /// The program leaves the elements' bytes to the device until the request has completed, and the
    /// objects that the request names live as long. An entry of the send queue is free, and elements,
    /// inline bytes and operation are within what the queue pair and its type permit.
    ///
    /// # Errors
    ///
    /// Why the request was not posted.
    pub unsafe fn post(
        &mut self,
        request: &Request<'_>,
        list: &[Element],
    ) -> Result<(), PostErrorReason> {
        let wr_id = WrId::from_raw(request.wr_id);
        let is_reliable = self.qp_type == QpType::ReliableConnection;
        let posted: Result<(), PostError> = match (&request.operation, list) {
            (Operation::Remote(RemoteOperation::Send), [only])
                if is_reliable && !request.fenced =>
            {
                let sge = only.sge();
                self.qp.post_send(&[provider::SendWork {
                    wr_id,
                    addr: sge.addr,
                    len: sge.len,
                    local_key: sge.local_key,
                    signaled: request.signaled,
                    inline: request.inline,
                    solicited: request.solicited,
                }])
            }
            _ => {
                let list: Vec<_> = list.iter().map(Element::sge).collect();
                let destination =
                    request
                        .destination
                        .map(|(handle, qp_num, qkey)| provider::Destination {
                            address: handle.0.name(),
                            qp_num,
                            qkey,
                        });
                let work = provider::Work {
                    wr_id,
                    operation: request.operation.map_binding(Binding::raw),
                    first_element: 0,
                    element_count: list.len(),
                    destination,
                    signaled: request.signaled,
                    fenced: request.fenced,
                    solicited: request.solicited,
                    inline: request.inline,
                };
                self.qp.post(&[work], &list)
            }
        };
        posted.map_err(|error| error.reason)
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The program leaves the elements' bytes to the device until the receive has completed.
    ///
    /// # Errors
    ///
    /// If the queue is full, or the queue pair is in RESET.
    pub unsafe fn post_recv(&self, wr_id: u64, list: &[Element]) -> Result<(), PostErrorReason> {
        let list: Vec<_> = list.iter().map(Element::sge).collect();
        let posted = match receive(wr_id, &list) {
            Receive::Simple(work) => self.qp.post_recv(&[work]),
            Receive::List(work) => self.qp.post_recv_lists(&[work], &list),
        };
        posted.map_err(|error| error.reason)
    }

    /// Joins a multicast group.
    ///
    /// # Errors
    ///
    /// If there are too many groups or members.
    pub fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        self.qp.attach_multicast(gid, lid)
    }

    /// Leaves a multicast group. Returns false if the queue pair was not in it.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn detach_multicast(&mut self, gid: Gid, lid: u16) -> Result<bool, VerbsError> {
        self.qp.detach_multicast(gid, lid)
    }
}
