//! Writes to a link what is to be sent: responses, requests and acknowledgements, as many as fit a
//! batch, with one system call.
//!
//! A message whose writing has begun is written to its end before anything else: the socket takes as
//! much of a batch as it has room for, and [`Partial`] remembers where the next batch begins.

use rustix::io::Errno;

use super::batch::{Batch, Batched, MAX_MESSAGES};
use super::gather::{RESPONSE_PIECE, Stop};
use crate::hooks::inject;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::context::tcp_link::{Partial, PartialKind, Response, TcpLink, extended};
use crate::provider::soft::wire::header::{Header, Message};
use crate::types::{AsyncEvent, CompletionStatus};

/// Bytes that are written to a link before other links have their turn: a peer may read as fast as
/// this side writes.
const MOST_WRITTEN: usize = 4 * 1024 * 1024;

impl SoftQueuePair {
    /// Writes the requests that were posted inline. If the application has completions to poll first,
    /// which may lead to more requests, the next look at the links does: then one system call
    /// writes all of them.
    #[cold]
    pub(crate) fn transmit_or_defer(&mut self, common: &mut Common) {
        let unsent = self.initiator.sends.posted - self.initiator.sends.started;
        let has_completions = !common.completion_queues.queue(self.core.recv_cq).is_empty();
        if unsent < MAX_MESSAGES as u64 && has_completions {
            if let Link::Tcp(tcp) = &mut self.link {
                tcp.is_doorbell_due = false;
            }
            common.tcp.defer(self.core.index);
        } else {
            self.transmit(common);
        }
    }

    /// Writes as much as there is and as the socket takes. An acknowledgement is written with every
    /// message; alone only if it is due.
    pub(crate) fn write_link(&mut self, common: &mut Common, is_ack_due: bool) {
        let Link::Tcp(tcp) = &mut self.link else {
            return;
        };
        tcp.is_doorbell_due = false;
        let mut left = MOST_WRITTEN;
        loop {
            let Some(link) = self.link.tcp() else { return };
            if !link.is_open() || link.outbound.is_blocked || inject!(NoRoom) {
                return;
            }
            let has_work = self.initiator.sends.started < self.initiator.sends.posted
                || !link.outbound.responses.is_empty()
                || link.outbound.partial.is_some()
                || (is_ack_due && link.owes_ack());
            if !has_work {
                return;
            }
            let mut batch = Batch::new();
            match self.gather(common, &mut batch) {
                Ok(()) => {}
                Err(Stop::Done) => return,
                Err(Stop::TornRequest) => {
                    let status = CompletionStatus::LocalProtection;
                    let link = self.link.tcp();
                    if link.is_some_and(|link| link.outbound.rewind_to.is_some()) {
                        // Those before it were to be sent again behind it, which is impossible now.
                        return self.fail(common, Some(status));
                    }
                    // It completes after those before it, whose acknowledgements may still come.
                    self.initiator.sends.local_failure.get_or_insert(status);
                    return self.await_progress(common);
                }
                Err(Stop::TornResponse) => return self.tear_response(common),
            }
            let Some(link) = self.link.tcp_mut() else {
                return;
            };
            if batch.is_empty() && is_ack_due && link.owes_ack() {
                batch.add(PartialKind::Ack, ack(link).encode(), 0, 0);
            }
            if batch.is_empty() {
                return;
            }
            common.counters.doorbells += 1;
            // SAFETY: `gather` has found every payload in registered memory, which stays registered
            // while the owner word is held, or in memory of the request or of the response, which
            // this queue pair holds.
            match unsafe { batch.write(&mut link.stream) } {
                Ok(written) => {
                    let is_full = written < batch.bytes() || link.stream.holds_unsent();
                    common.tcp.moved += written;
                    self.account_for(common, &batch, written);
                    left = left.saturating_sub(written);
                    // With nothing left, other links have their turn: the epoll set tells at once
                    // that this one can be written to.
                    if is_full || left == 0 {
                        return self.set_blocked(common, true);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.set_blocked(common, true),
                // A part of a payload is not there, such as the end of a file that was cut short; or
                // the record layer seals nothing more.
                Err(Errno::FAULT | Errno::BADMSG) => return self.end_link(common),
                Err(error) => {
                    // What the peer has sent before the end, such as a fatal NAK, is still to be
                    // read, and the end itself is found by a read.
                    tracing::debug!(%error, qp_num = %self.core.number, "a link cannot be written to");
                    return self.set_blocked(common, true);
                }
            }
        }
    }

    /// Ends the queue pair because the rest of a response cannot be sent: the peer finds the end of
    /// the connection in its middle.
    #[cold]
    fn tear_response(&mut self, common: &mut Common) {
        common.raise(AsyncEvent::QpAccessError {
            qp_num: self.core.number,
        });
        self.fail_gently(common);
    }

    /// Ends the link. The peer is told what was executed: its requests were successful, though this
    /// queue pair is gone.
    pub(crate) fn close_link(&mut self, common: &mut Common) {
        let Link::Tcp(tcp) = &mut self.link else {
            return;
        };
        let Some(mut link) = tcp.connection.take() else {
            return;
        };
        common.tcp.remove(&link, self.core.index);
        let outbound = &link.outbound;
        if link.is_open() && link.owes_ack() && outbound.partial.is_none() {
            let last = ack(&link).encode();
            // If the socket does not take it, the peer finds the end of the connection.
            link.stream.write_message(last.as_bytes());
        }
        link.stream.shut_down();
    }

    /// Goes on with what waited until the socket takes more.
    pub(super) fn write_again(&mut self, common: &mut Common) {
        let Some(link) = self.link.tcp_mut() else {
            return;
        };
        if link.stream.flush().is_err() {
            // If the socket has ended, a read finds that.
            return;
        }
        self.set_blocked(common, false);
        // An acknowledgement that fell due while the socket was full is in no list.
        self.write_link(common, true);
        #[cfg(debug_assertions)]
        crate::provider::soft::context::check::check_queue_pair(self);
    }

    /// Records whether the socket takes more.
    pub(super) fn set_blocked(&mut self, common: &mut Common, is_blocked: bool) {
        let index = self.core.index;
        if let Some(link) = self.link.tcp_mut()
            && link.outbound.is_blocked != is_blocked
        {
            common.tcp.set_blocked(link, index, is_blocked);
        }
    }

    /// Records what the socket has taken of a batch.
    fn account_for(&mut self, common: &mut Common, batch: &Batch, mut written: usize) {
        for (message, header) in batch.messages() {
            if written == 0 {
                return;
            }
            let left = message.len - message.written;
            let is_whole = written >= left;
            if message.kind == PartialKind::Request && message.written == 0 {
                let next = self.link.tcp().map_or(0, |link| link.outbound.next);
                let number = self.initiator.sends.started;
                self.initiator.begun(number, next..next + 1);
            }
            let Some(link) = self.link.tcp_mut() else {
                return;
            };
            if !is_whole {
                link.outbound.partial = Some(Partial {
                    kind: message.kind,
                    header: *header,
                    written: message.written + written,
                });
                return;
            }
            written -= left;
            link.outbound.partial = None;
            // The acknowledgement is as old as the header, which an earlier batch may have begun.
            let expected = link.inbound.expected;
            link.inbound.acknowledged = extended(header.acked(), expected).min(expected);
            link.inbound.is_ack_requested &= link.owes_ack();
            self.account_for_whole(common, &message);
        }
    }

    fn account_for_whole(&mut self, common: &mut Common, message: &Batched) {
        let Some(link) = self.link.tcp_mut() else {
            return;
        };
        match message.kind {
            PartialKind::Ack => {}
            PartialKind::Response => {
                if let Some(Response::Read { len, sent, .. }) = link.outbound.responses.front_mut()
                {
                    *sent += (*len - *sent).min(RESPONSE_PIECE);
                    if sent < len {
                        return;
                    }
                }
                link.outbound.responses.pop_front();
            }
            PartialKind::Request => {
                common.counters.sends += 1;
                link.outbound.next += 1;
                self.initiator.sends.started += 1;
                self.rewind();
            }
        }
    }
}

fn ack(link: &TcpLink) -> Header {
    Header {
        message: Message::Ack,
        len: 0,
        sequence: 0,
        acked: link.inbound.expected as u32,
    }
}
