//! Delivery of messages between unreliable queue pairs of one process, from one context to another.
//!
//! A message that its receiver cannot accept is dropped silently, and the receive it would have
//! used stays for the next one.

use std::ptr::NonNull;

use super::datagram::{GLOBAL_ROUTE_LEN, global_route_header};
use super::message::{Message, Route};
use crate::provider::soft::context::completion_queues::Completion;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::remote_access::RemoteRequest;
use crate::provider::soft::context::state::{Common, State};
use crate::provider::soft::process::node::Node;
use crate::provider::soft::shared::copy::{copy_shared, scatter};
use crate::provider::work::Sge;
use crate::types::{
    Access, CompletionOpcode, CompletionStatus, Extras, Gid, QpNum, QpType, RemoteMemory,
};

impl Message {
    /// Delivers the message to its receivers. Call it without holding any context's owner word.
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
        let State {
            queue_pairs,
            common,
        } = &mut *state;
        if let Some(qp) = queue_pairs.get_mut(qp_index as usize)
            // Indices are reused at once, numbers only after a long time.
            && qp.core.number == to
            && qp.accepts(self, context.gids.first())
        {
            qp.take_message(common, self, context.gids.first());
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
}

impl SoftQueuePair {
    /// Returns true if the queue pair accepts this message from a queue pair of its process.
    fn accepts(&self, message: &Message, gid: Gid) -> bool {
        let is_for = match message.route {
            // Sequence numbers are not checked: a message may begin with any number, and messages
            // are delivered whole.
            Route::Connected => {
                self.core.qp_type == QpType::UnreliableConnection
                    && self.core.attributes.dest_qp_num == Some(message.from)
                    && self.core.attributes.address.is_some_and(|to| to.gid == gid)
            }
            Route::Datagram { qkey, .. } => {
                self.core.qp_type == QpType::UnreliableDatagram
                    && self.core.attributes.qkey == Some(qkey)
            }
        };
        is_for && self.core.receives_now()
    }

    /// Receives a message for this queue pair.
    fn take_message(&mut self, common: &mut Common, message: &Message, from: Gid) {
        if matches!(message.route, Route::Connected) {
            self.communication_established(common);
        }
        match message.remote {
            Some(remote) => self.take_write(common, message, remote),
            None => self.take_send(common, message, from),
        }
    }

    fn take_write(&mut self, common: &mut Common, message: &Message, remote: RemoteMemory) {
        let (access, has_receive) = (self.core.attributes.access, self.has_receive(common));
        if !access.is_some_and(|access| access.contains(Access::REMOTE_WRITE))
            || (message.imm.is_some() && !has_receive)
        {
            return;
        }
        // Zero bytes touch nothing, so nothing is checked.
        if !message.payload.is_empty() {
            let request = RemoteRequest {
                memory: remote,
                len: message.payload.len() as u64,
                needs: Access::REMOTE_WRITE,
                domain: self.core.domain,
                qp_num: self.core.number,
            };
            let Some(bytes) = common.memory.check_remote(&request) else {
                return;
            };
            // SAFETY: `check_remote` found this many bytes in a registered region, which stays
            // registered while the owner word is held. The region is exposed, so everything else
            // accesses it by atomics or through the device.
            unsafe {
                let from = NonNull::from(&*message.payload).cast();
                copy_shared(from, bytes, message.payload.len());
            }
        }
        if message.imm.is_some() {
            self.complete_receive_of(common, message, CompletionStatus::Success);
        }
    }

    fn take_send(&mut self, common: &mut Common, message: &Message, from: Gid) {
        let header_len = message.header_len();
        let len = header_len + message.payload.len();
        let shared = &common.shared_receive_queues;
        let queue = ReceiveQueue::seen_by(shared, self.core.srq, &self.receives);
        let mut only = [Sge::NONE];
        let Some(elements) = queue.next_elements(&mut only) else {
            return;
        };
        if len as u64 > Sge::total_len(elements) {
            return;
        }
        let checked = if len == 0 {
            Ok(())
        } else {
            common
                .memory
                .regions
                .check_all(elements, self.core.domain, Access::LOCAL_WRITE)
        };
        match checked {
            Ok(()) => {
                if let Route::Datagram { address, .. } = &message.route {
                    let header = global_route_header(address, from, message);
                    // SAFETY: the elements are valid and long enough, as explained for the payload
                    // below.
                    unsafe { scatter(&header, elements, 0) };
                }
                // SAFETY: each element was just checked to lie in a region of this context, which
                // stays registered while the owner word is held. The bytes belong to the device
                // until the receive's completion is polled. Header and payload fit into the
                // elements.
                unsafe { scatter(&message.payload, elements, header_len) };
                self.complete_receive_of(common, message, CompletionStatus::Success);
            }
            Err(status) => {
                // The receiver caused this error, so its queue pair fails.
                self.complete_receive_of(common, message, status);
                self.fail(common, None);
            }
        }
    }

    fn has_receive(&self, common: &Common) -> bool {
        let shared = &common.shared_receive_queues;
        let queue = ReceiveQueue::seen_by(shared, self.core.srq, &self.receives);
        queue.next().is_some()
    }

    /// Consumes the next receive for this message and completes it.
    fn complete_receive_of(
        &mut self,
        common: &mut Common,
        message: &Message,
        status: CompletionStatus,
    ) {
        let mut extras = 0;
        let mut src_qp = 0;
        if message.solicited {
            extras |= Extras::SOLICITED;
        }
        if message.imm.is_some() {
            extras |= Extras::IMMEDIATE;
        }
        if matches!(message.route, Route::Datagram { .. }) {
            extras |= Extras::GLOBAL_ROUTE | Extras::SOURCE;
            src_qp = message.from.0;
        }
        self.take_receive(common, |wr_id, qp_num| Completion {
            opcode: match message.remote {
                Some(_) => CompletionOpcode::ReceiveRdmaWithImm,
                None => CompletionOpcode::Receive,
            },
            extras: Extras(extras),
            data: message.imm.unwrap_or(0),
            src_qp,
            // The cast is lossless: the longest message's length fits in 32 bits.
            byte_len: (message.header_len() + message.payload.len()) as u32,
            ..Completion::of_receive(wr_id, qp_num, status)
        });
        common.counters.receives += 1;
    }
}
