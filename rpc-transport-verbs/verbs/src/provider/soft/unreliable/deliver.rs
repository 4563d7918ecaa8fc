//! Delivery of messages between unreliable queue pairs of one process, from one context to another.
//!
//! A message that its receiver cannot accept is dropped silently, and the receive it would have
//! used stays for the next one.

use std::ptr::NonNull;

use super::datagram::{GLOBAL_ROUTE_LEN, global_route_header};
use super::message::{Message, Route};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::responder::{Arrived, Place, Rejection, Responder};
use crate::provider::soft::context::state::{Common, State};
use crate::provider::soft::process::node::Node;
use crate::provider::soft::shared::copy::{copy_shared, scatter};
use crate::provider::work::Sge;
use crate::types::{CompletionStatus, Extras, Gid, QpNum, QpType};

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
        let header_len = message.header_len();
        let len = (header_len + message.payload.len()) as u64;
        let mut responder = Responder::new(
            &self.core,
            &mut self.receives,
            &mut common.memory,
            &mut common.shared_receive_queues,
        );
        let admitted = responder.admit(&Arrived {
            operation: &message.operation,
            len,
            outstanding: 0,
            is_solicited: message.solicited,
        });
        let received = admitted.and_then(|placement| {
            if len > 0 {
                let mut only = [Sge::NONE];
                match responder.place(&placement, &mut only, 0, len)? {
                    // SAFETY: the elements were just checked to lie in regions of this context, which
                    // stay registered while the owner word is held, and to have room for header and
                    // payload. Their bytes belong to the device until the receive's completion is
                    // polled.
                    Place::Elements(elements, _) => unsafe {
                        if let Route::Datagram { address, .. } = &message.route {
                            scatter(&global_route_header(address, from, message), elements, 0);
                        }
                        scatter(&message.payload, elements, header_len);
                    },
                    // SAFETY: as above, for the memory that the key permits to write. The region is
                    // exposed, so everything else accesses it by atomics or through the device.
                    Place::At(to) => unsafe {
                        let from = NonNull::from(&*message.payload).cast();
                        copy_shared(from, to, message.payload.len());
                    },
                }
            }
            // The cast is lossless: the longest message's length fits in 32 bits.
            responder.finish(placement, len as u32)
        });
        match received {
            Ok(mut done) => {
                if let Some(completion) = &mut done.completion {
                    common.counters.receives += 1;
                    if let Route::Datagram { .. } = message.route {
                        completion.extras.0 |= Extras::GLOBAL_ROUTE | Extras::SOURCE;
                        completion.src_qp = message.from.0;
                    }
                }
                self.apply(common, done);
            }
            // The receiver caused this error, so its queue pair fails.
            Err(Rejection::Status(CompletionStatus::RemoteOperation, report)) => {
                common.counters.receives += 1;
                self.report(common, report);
                self.fail(common, None);
            }
            // It is dropped.
            Err(_) => {}
        }
    }
}
