//! Delivery of messages between unreliable queue pairs of one process, from one context to another.
//!
//! A message that its receiver cannot accept is dropped silently, and the receive it would have
//! used stays for the next one.

use std::ptr::NonNull;

use super::datagram::{GLOBAL_ROUTE_LEN, global_route_header};
use super::message::{Message, Route};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::remote_access::RemoteRequest;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::work_queues::Completion;
use crate::provider::soft::process::node::Node;
use crate::provider::soft::shared::copy::{copy_shared, scatter};
use crate::provider::work::Sge;
use crate::verbs::types::{
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
        if let Some(qp) = state.queue_pairs.get(qp_index as usize)
            // Indices are reused at once, numbers only after a long time.
            && qp.number == to
            && qp.accepts(self, node.gid)
        {
            state.take_message(qp_index, self, node.gid);
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
                self.qp_type == QpType::UnreliableConnection
                    && self.attributes.dest_qp_num == Some(message.from)
                    && self.attributes.address.is_some_and(|to| to.gid == gid)
            }
            Route::Datagram { qkey, .. } => {
                self.qp_type == QpType::UnreliableDatagram && self.attributes.qkey == Some(qkey)
            }
        };
        is_for && self.receives_now()
    }
}

impl State {
    /// Receives a message for this queue pair.
    fn take_message(&mut self, qp_index: u32, message: &Message, from: Gid) {
        if matches!(message.route, Route::Connected) {
            self.communication_established(qp_index);
        }
        match message.remote {
            Some(remote) => self.take_write(qp_index, message, remote),
            None => self.take_send(qp_index, message, from),
        }
    }

    fn take_write(&mut self, qp_index: u32, message: &Message, remote: RemoteMemory) {
        let qp = &self.queue_pairs[qp_index as usize];
        let (access, has_receive) = (qp.attributes.access, self.has_receive(qp_index));
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
                domain: qp.domain,
                qp_num: qp.number,
            };
            let Some(bytes) = self.check_remote(&request) else {
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
            self.complete_receive_of(qp_index, message, CompletionStatus::Success);
        }
    }

    fn take_send(&mut self, qp_index: u32, message: &Message, from: Gid) {
        let header_len = message.header_len();
        let len = header_len + message.payload.len();
        let qp = &self.queue_pairs[qp_index as usize];
        let (queue, domain) = match qp.srq {
            Some(srq) => {
                let srq = &self.shared_receive_queues[srq];
                (&srq.queue, srq.domain)
            }
            None => (&qp.receives, qp.domain),
        };
        let Some(receive) = queue.front() else { return };
        if len > receive.len as usize {
            return;
        }
        let single = [Sge {
            addr: receive.addr,
            len: receive.len,
            local_key: receive.local_key,
        }];
        let elements = queue.front_list().unwrap_or(&single);
        let checked = if len == 0 {
            Ok(())
        } else {
            self.regions
                .check_all(elements, domain, Access::LOCAL_WRITE)
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
                self.complete_receive_of(qp_index, message, CompletionStatus::Success);
            }
            Err(status) => {
                // The receiver caused this error, so its queue pair fails.
                self.complete_receive_of(qp_index, message, status);
                self.fail(qp_index, None);
            }
        }
    }

    fn has_receive(&self, qp_index: u32) -> bool {
        let qp = &self.queue_pairs[qp_index as usize];
        let queue = match qp.srq {
            Some(srq) => &self.shared_receive_queues[srq].queue,
            None => &qp.receives,
        };
        queue.front().is_some()
    }

    /// Consumes the oldest receive for this message and completes it.
    fn complete_receive_of(&mut self, qp_index: u32, message: &Message, status: CompletionStatus) {
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
        self.take_receive(qp_index, |wr_id, qp_num| Completion {
            wr_id,
            status: status.code(),
            opcode: match message.remote {
                Some(_) => CompletionOpcode::ReceiveRdmaWithImm,
                None => CompletionOpcode::Receive,
            },
            extras: Extras(extras),
            data: message.imm.unwrap_or(0),
            src_qp,
            qp_num,
            // The cast is lossless: the longest message's length fits in 32 bits.
            byte_len: (message.header_len() + message.payload.len()) as u32,
            frees: None,
        });
        self.counters.receives += 1;
    }
}
