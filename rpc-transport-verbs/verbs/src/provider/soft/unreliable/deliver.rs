//! Delivery of messages between unreliable queue pairs of one process, from one context to another.
//!
//! A message that its receiver cannot accept is dropped silently, and the receive it would have
//! used stays for the next one.

use std::ptr::NonNull;

use super::datagram::{GLOBAL_ROUTE_LEN, global_route_header};
use super::message::{Message, Route};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::responder::{Arrived, Done, Place, Rejection, Responder};
use crate::provider::soft::process::node::Node;
use crate::provider::soft::shared::copy::{copy_shared, scatter};
use crate::provider::work::Sge;
use crate::types::{CompletionStatus, Extras, Gid, QpNum, QpType};

impl Message {
    /// Delivers the message to its receivers. Call it without holding any context's lock.
    pub(crate) fn deliver(&self, node: &Node) {
        match &self.route {
            Route::Datagram { address, .. } if address.gid.is_multicast() => {
                if self.to == QpNum::MULTICAST {
                    for member in node.groups.members(address.gid) {
                        self.deliver_to(node, member);
                    }
                }
            }
            _ => self.deliver_to(node, self.to),
        }
    }

    fn deliver_to(&self, node: &Node, to: QpNum) {
        let Some((context, qp_index)) = node.find_queue_pair(to.0) else {
            return;
        };
        // In the child of a fork nothing is delivered.
        let Ok(mut state) = context.enter() else {
            return;
        };
        let gid = context.gids.first();
        if let Some((qp, common)) = state.find(qp_index, to)
            && self.is_for(qp, gid)
        {
            let is_connected = matches!(self.route, Route::Connected);
            if is_connected {
                qp.communication_established(common);
            }
            let (memory, shared) = (&mut common.memory, &mut common.shared_receive_queues);
            let responder = Responder::new(&qp.core, &mut qp.receives, memory, shared);
            match self.receive(responder, gid) {
                Ok(done) => {
                    common.counters.receives += u64::from(done.completion.is_some());
                    qp.apply(common, done);
                }
                // The receiver caused this error, so its queue pair fails.
                Err(Rejection::Status(CompletionStatus::RemoteOperation, report)) => {
                    common.counters.receives += 1;
                    qp.report(common, report);
                    qp.fail(common, None);
                }
                // It is dropped.
                Err(_) => {}
            }
            state.finish_turn();
        }
    }

    /// Returns the number of bytes in front of the message in a receive.
    fn header_len(&self) -> usize {
        match self.route {
            Route::Connected => 0,
            Route::Datagram { .. } => GLOBAL_ROUTE_LEN,
        }
    }

    /// Returns true if a queue pair of this process, which has this GID, accepts the message.
    fn is_for(&self, qp: &SoftQueuePair, gid: Gid) -> bool {
        let core = &qp.core;
        let is_for = match self.route {
            // Sequence numbers are not checked: a message may begin with any number, and messages
            // are delivered whole.
            Route::Connected => {
                core.qp_type == QpType::UnreliableConnection
                    && core.attributes.dest_qp_num == Some(self.from)
                    && core.attributes.address.is_some_and(|to| to.gid == gid)
            }
            Route::Datagram { qkey, .. } => {
                core.qp_type == QpType::UnreliableDatagram && core.attributes.qkey == Some(qkey)
            }
        };
        is_for && core.receives_now()
    }

    /// Puts the message where it belongs.
    fn receive(&self, mut responder: Responder<'_>, from: Gid) -> Result<Done, Rejection> {
        let header_len = self.header_len();
        let len = (header_len + self.payload.len()) as u64;
        let placement = responder.admit(&Arrived {
            operation: &self.operation,
            len,
            outstanding: 0,
            is_solicited: self.solicited,
        })?;
        if len > 0 {
            let mut only = [Sge::NONE];
            match responder.place(&placement, &mut only, 0, len)? {
                // SAFETY: the elements were just checked to lie in regions of this context, which
                // stay registered while the context's lock is held, and to have room for header and
                // payload. Their bytes belong to the device until the receive's completion is
                // polled.
                Place::Elements(elements, _) => unsafe {
                    if let Route::Datagram { address, .. } = &self.route {
                        scatter(&global_route_header(address, from, self), elements, 0);
                    }
                    scatter(&self.payload, elements, header_len);
                },
                // SAFETY: as above, for the memory that the key permits to write. The region is
                // exposed, so everything else accesses it by atomics or through the device.
                Place::At(to) => unsafe {
                    let from = NonNull::from(&*self.payload).cast();
                    copy_shared(from, to, self.payload.len());
                },
            }
        }
        // The cast is lossless: the longest message's length fits in 32 bits.
        let mut done = responder.finish(placement, len as u32)?;
        if let (Some(completion), Route::Datagram { .. }) = (&mut done.completion, &self.route) {
            completion.extras.0 |= Extras::GLOBAL_ROUTE | Extras::SOURCE;
            completion.src_qp = self.from.0;
        }
        Ok(done)
    }
}
