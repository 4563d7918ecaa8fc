//! Posting of sends to a queue pair whose link is a TCP connection.

use std::ptr::NonNull;

use super::batch::MAX_MESSAGES;
use crate::hooks::accepted;
use crate::provider::soft::context::general_send::GeneralSend;
use crate::provider::soft::context::queue_pair::{SoftQueuePair, Unannounced};
use crate::provider::soft::context::state::Common;
use crate::provider::work::{Operation, SendWork, Sge, Work};
use crate::types::{LocalKey, PostError, QpState, RemoteOperation, WrId};

impl SoftQueuePair {
    /// Posts an inline send of `bytes`; `ring_doorbell` writes it.
    pub(crate) fn post_inline_over_tcp(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), PostError> {
        self.check_post(1)?;
        if self.sends.is_full() {
            return Err(self.full(0));
        }
        let mut inline = self.sends.inline_bytes();
        inline.fill(bytes);
        let element = Sge {
            addr: NonNull::dangling(),
            // The cast is lossless: inline sends are short.
            len: bytes.len() as u32,
            local_key: LocalKey(0),
        };
        let work = send_work(wr_id, signaled, false, true);
        let mut send = GeneralSend::new(self.sends.posted, &work, &[element]);
        send.inline = Some(inline);
        self.sends.add(wr_id, signaled || self.sq_sig_all);
        self.sends.general.push_back(send);
        self.unannounced = Unannounced::Messages;
        if self.state == QpState::Error {
            self.flush_sends(common);
        } else {
            self.watch_acks_over_tcp(common);
        }
        Ok(())
    }

    /// Writes the requests that were posted inline. If the application has completions to poll first,
    /// which may lead to more requests, the next look at the links does: then one system call
    /// writes all of them.
    pub(crate) fn ring_doorbell_over_tcp(&mut self, common: &mut Common) {
        let unsent = self.sends.posted - self.sends.started;
        if unsent < MAX_MESSAGES as u64 && !common.completion_queues.queue(self.recv_cq).is_empty()
        {
            self.unannounced = Unannounced::Nothing;
            common.tcp.defer(self.index);
        } else {
            self.transmit_over_tcp(common);
        }
    }

    /// Posts a list of plain sends, and writes as many as the socket takes.
    pub(crate) fn post_send_over_tcp(
        &mut self,
        common: &mut Common,
        list: &[SendWork],
    ) -> Result<(), PostError> {
        self.check_post(list.len())?;
        let mut taken = accepted!(Sends, list.len(), Some(self.number.0));
        for (index, send) in list[..taken].iter().enumerate() {
            if self.sends.is_full() {
                taken = index;
                break;
            }
            let element = Sge {
                addr: send.addr,
                len: send.len,
                local_key: send.local_key,
            };
            let work = send_work(send.wr_id, send.signaled, send.solicited, send.inline);
            self.post_one_over_tcp(&work, &[element]);
        }
        self.after_post_over_tcp(common);
        if taken == list.len() {
            Ok(())
        } else {
            Err(self.full(taken))
        }
    }

    /// Puts a request into the queue, which has a free entry.
    pub(crate) fn post_one_over_tcp(&mut self, work: &Work, elements: &[Sge]) {
        let mut send = GeneralSend::new(self.sends.posted, work, elements);
        if work.inline {
            // SAFETY: this call posts the request, and its elements belong to the caller until the
            // call returns.
            unsafe { send.stage(self.sends.inline_bytes()) };
        }
        self.sends.add(work.wr_id, work.signaled || self.sq_sig_all);
        self.sends.general.push_back(send);
    }

    /// Does what follows the posting of requests: writes them, or flushes them.
    pub(crate) fn after_post_over_tcp(&mut self, common: &mut Common) {
        if self.state == QpState::Error {
            self.flush_sends(common);
            return;
        }
        self.transmit_over_tcp(common);
        self.watch_acks_over_tcp(common);
    }

    /// Adds the queue pair to the list of those whose timers the engine checks. Acknowledgements are
    /// found as everything else that a link brings.
    fn watch_acks_over_tcp(&mut self, common: &mut Common) {
        if !self.is_unacked && self.sends.acked < self.sends.posted {
            self.is_unacked = true;
            common.unacked.push(self.index);
        }
    }
}

fn send_work(wr_id: WrId, signaled: bool, solicited: bool, inline: bool) -> Work {
    Work {
        wr_id,
        operation: Operation::Remote(RemoteOperation::Send),
        first_element: 0,
        element_count: 1,
        destination: None,
        signaled,
        fenced: false,
        solicited,
        inline,
    }
}
