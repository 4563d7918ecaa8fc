//! Transmits sends: writes them from the send queue into the peer's ring.

use std::ptr::NonNull;

use crate::hooks::{accepted, inject};
use crate::provider::soft::context::state::State;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::descriptor::Descriptor;
use crate::provider::soft::shared::ring::{MAX_IN_RING, ReceiverState};
use crate::provider::work::SendWork;
use crate::verbs::types::{Access, PostError, PostErrorReason, QpState};

impl State {
    /// Posts a list of sends and writes as many as there is room for, with one doorbell.
    #[inline]
    pub(crate) fn post_send(&mut self, qp_index: u32, list: &[SendWork]) -> Result<(), PostError> {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let state = qp.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) && !list.is_empty() {
            return Err(PostError {
                taken: 0,
                reason: PostErrorReason::State { state },
            });
        }
        let mut taken = accepted!(Sends, list.len(), Some(qp.number.0));
        for (index, work) in list[..taken].iter().enumerate() {
            let signaled = work.signaled || qp.sq_sig_all;
            if !qp.sends.push(SendWork { signaled, ..*work }) {
                taken = index;
                break;
            }
        }
        match state {
            QpState::Error => self.flush_sends(qp_index),
            _ => self.transmit(qp_index),
        }
        if taken == list.len() {
            return Ok(());
        }
        let capacity = self.queue_pairs[qp_index as usize].sends.capacity();
        Err(PostError {
            taken,
            reason: PostErrorReason::QueueFull { capacity },
        })
    }

    /// Writes as many of the next sends as the ring has room for, and notifies the receiver once
    /// for each run of plain sends.
    #[inline]
    pub(crate) fn transmit(&mut self, qp_index: u32) {
        self.transmit_plain(qp_index);
        let qp = &mut self.queue_pairs[qp_index as usize];
        let mut waits = qp.sends.started < qp.sends.posted;
        if waits {
            waits = self.transmit_waiting(qp_index);
        }
        let qp = &mut self.queue_pairs[qp_index as usize];
        if (waits || qp.sends.signaled > 0) && !qp.is_awaiting {
            self.await_progress(qp_index);
        }
        let qp = &mut self.queue_pairs[qp_index as usize];
        if !qp.is_unacked && qp.sends.acked < qp.sends.posted {
            qp.is_unacked = true;
            self.unacked.push(qp_index);
        }
    }

    /// Handles what follows the plain sends that had room: requests of other kinds, and plain sends
    /// after them. The rest has to wait. Returns `false` if nothing has to wait.
    #[cold]
    fn transmit_waiting(&mut self, qp_index: u32) -> bool {
        while self.is_request_next(qp_index) && self.issue(qp_index) {
            let before = self.queue_pairs[qp_index as usize].sends.started;
            self.transmit_plain(qp_index);
            if self.queue_pairs[qp_index as usize].sends.started == before {
                break;
            }
        }
        let qp = &mut self.queue_pairs[qp_index as usize];
        // SAFETY: either the call that posted the inline requests is still running, so their bytes
        // are the caller's, or this is a later call, by which time they are already staged.
        unsafe { qp.sends.stage_inline() };
        qp.sends.started < qp.sends.posted
    }

    // Always inlined: one of its two callers is on the path of every message, and the other is
    // rare.
    #[inline(always)]
    fn transmit_plain(&mut self, qp_index: u32) {
        let qp = &mut self.queue_pairs[qp_index as usize];
        let before = qp.sends.started;
        if let (QpState::Rts, Some(sender)) = (qp.state, &mut qp.link.sender)
            && !qp.link.has_psn_mismatch
        {
            while qp.sends.started < qp.sends.posted
                && qp.sends.local_failure.is_none()
                && sender.has_room()
                && !inject!(NoRoom)
            {
                let number = qp.sends.started;
                let Some(&work) = qp.sends.request(number) else {
                    break;
                };
                if work.general {
                    // `issue` handles it.
                    break;
                }
                let flags = if work.solicited { Flags::SOLICITED } else { 0 };
                let len = work.len as usize;
                if work.inline {
                    // The bytes belong to the caller while it posts; later, a staged copy is used.
                    match qp.sends.staged(number) {
                        Some(bytes) => sender.send(NonNull::from(&*bytes).cast(), len, flags),
                        None => sender.send(work.addr, len, flags),
                    }
                } else {
                    let bytes = (work.addr, len);
                    match self
                        .regions
                        .check(work.local_key, qp.domain, bytes, Access::NONE)
                    {
                        Err(status) => {
                            // The request completes after all earlier ones: see `process_acks`.
                            qp.sends.local_failure = Some(status);
                            break;
                        }
                        Ok(_) if len <= MAX_IN_RING => sender.send(work.addr, len, flags),
                        Ok((arena, offset)) => {
                            let offset = offset as u64;
                            let descriptor = Descriptor {
                                arena,
                                offset,
                                len: work.len,
                            };
                            sender.send_descriptor(descriptor, flags);
                        }
                    }
                }
                qp.sends.started += 1;
            }
            let written = qp.sends.started - before;
            if written > 0 {
                self.counters.sends += written;
                self.counters.doorbells += 1;
                match sender.notify_receiver() {
                    ReceiverState::Hot => {}
                    ReceiverState::Cold => self.counters.wakes += 1,
                    ReceiverState::Asleep => {
                        self.counters.wakes += 1;
                        self.counters.sleepers_woken += 1;
                    }
                }
            }
        }
    }

    /// Returns true if the next send is more than a plain message.
    fn is_request_next(&self, qp_index: u32) -> bool {
        let sends = &self.queue_pairs[qp_index as usize].sends;
        let next = sends.request(sends.started);
        sends.started < sends.posted && next.is_some_and(|work| work.general)
    }
}
