//! Transmits sends: writes them into the peer's ring, and notifies the peer.
//!
//! Writing a message and notifying the receiver (the doorbell) are two steps. A receiver that polls
//! the ring sees a message as soon as it is written. A receiver that does not is notified by the
//! doorbell, once for all messages before it.

use std::ptr::NonNull;

use super::poll::POLLS_BEFORE_ACK;
use crate::hooks::{accepted, inject};
use crate::provider::soft::context::queue_pair::{SoftQueuePair, Unannounced};
use crate::provider::soft::context::send_queue::Unwritten;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::descriptor::Descriptor;
use crate::provider::soft::shared::ring::{MAX_IN_RING, ReceiverState};
use crate::provider::work::SendWork;
use crate::types::{Access, PostError, PostErrorReason, QpState, WrId};

impl SoftQueuePair {
    /// Posts an inline send of `bytes` and writes it at once, if nothing has to wait. Returns
    /// `false` and does nothing otherwise. `ring_doorbell` notifies the receiver.
    #[inline]
    pub(crate) fn try_post_inline(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> bool {
        let Some(sender) = &mut self.link.sender else {
            return false;
        };
        if self.state != QpState::Rts
            || self.link.has_psn_mismatch
            || !self.sends.is_written()
            || self.sends.is_full()
            || !sender.is_known_to_have_room()
            || bytes.len() > MAX_IN_RING
            || inject!(NoRoom)
        {
            return false;
        }
        sender.send(NonNull::from(bytes).cast(), bytes.len(), 0);
        let signaled = signaled || self.sq_sig_all;
        self.sends.add(wr_id, signaled);
        self.sends.started += 1;
        self.unannounced = Unannounced::Messages;
        common.counters.sends += 1;
        if signaled || !self.is_unacked {
            self.watch_acks(common);
        }
        true
    }

    /// Posts an inline send of `bytes` that waits for room, or for earlier requests.
    pub(crate) fn post_inline_in_order(
        &mut self,
        common: &mut Common,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), PostError> {
        if self.link.is_tcp {
            return self.post_inline_over_tcp(common, wr_id, bytes, signaled);
        }
        self.check_post(1)?;
        if self.sends.is_full() {
            return Err(self.full(0));
        }
        self.sends.add(wr_id, signaled || self.sq_sig_all);
        let bytes = bytes.into();
        self.sends.push_unwritten(Unwritten::Inline {
            bytes,
            solicited: false,
        });
        self.after_post(common);
        Ok(())
    }

    /// Notifies the receiver of the messages written since the last doorbell, unless it polls.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self, common: &mut Common) {
        if self.unannounced == Unannounced::Nothing {
            return;
        }
        let Some(sender) = &self.link.sender else {
            if self.link.is_tcp {
                self.ring_doorbell_over_tcp(common);
            }
            return;
        };
        common.counters.doorbells += 1;
        let is_hot = sender.is_receiver_hot();
        if is_hot && self.unannounced == Unannounced::Messages {
            self.unannounced = Unannounced::Nothing;
        } else {
            self.notify(common, is_hot);
        }
    }

    /// Notifies a receiver that does not poll the ring, or may have to wake its engine.
    #[cold]
    #[inline(never)]
    fn notify(&mut self, common: &mut Common, is_hot: bool) {
        let was = std::mem::take(&mut self.unannounced);
        let Some(sender) = &self.link.sender else {
            return;
        };
        if !is_hot {
            common.counters.wakes += 1;
            if sender.notify_cold_receiver() == ReceiverState::Asleep {
                common.counters.sleepers_woken += 1;
            }
        }
        if was == Unannounced::OneSided {
            sender.wake_engine();
        }
    }

    /// Posts a list of sends and writes as many as there is room for, with one doorbell.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        common: &mut Common,
        list: &[SendWork],
    ) -> Result<(), PostError> {
        if self.link.is_tcp {
            return self.post_send_over_tcp(common, list);
        }
        self.check_post(list.len())?;
        let mut taken = accepted!(Sends, list.len(), Some(self.number.0));
        for (index, work) in list[..taken].iter().enumerate() {
            if self.sends.is_full() {
                taken = index;
                break;
            }
            self.sends.add(work.wr_id, work.signaled || self.sq_sig_all);
            if self.sends.is_written() && self.try_write(common, work) {
                self.sends.started += 1;
            } else {
                // SAFETY: the call that posts the request is running, so the bytes of an inline
                // request are readable.
                let request = unsafe { unwritten(work) };
                self.sends.push_unwritten(request);
            }
        }
        self.after_post(common);
        if taken == list.len() {
            Ok(())
        } else {
            Err(self.full(taken))
        }
    }

    /// Fails if the state does not allow requests to be posted.
    #[inline]
    pub(crate) fn check_post(&self, count: usize) -> Result<(), PostError> {
        let state = self.state;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) && count > 0 {
            return Err(PostError {
                taken: 0,
                reason: PostErrorReason::State { state },
            });
        }
        Ok(())
    }

    /// Returns the error for a list of which only `taken` requests found a free entry.
    #[cold]
    pub(crate) fn full(&self, taken: usize) -> PostError {
        let capacity = self.sends.capacity();
        PostError {
            taken,
            reason: PostErrorReason::QueueFull { capacity },
        }
    }

    /// Does what follows the posting of requests: writes those that had to wait, or flushes them.
    #[inline]
    pub(crate) fn after_post(&mut self, common: &mut Common) {
        if self.state == QpState::Error {
            self.flush_sends(common);
        } else if self.sends.is_written() {
            self.watch_acks(common);
            self.ring_doorbell(common);
        } else {
            self.transmit(common);
        }
    }

    /// Writes as many of the waiting requests as there is room for, and notifies the receiver.
    #[cold]
    #[inline(never)]
    pub(crate) fn transmit(&mut self, common: &mut Common) {
        if self.link.is_tcp {
            return self.transmit_over_tcp(common);
        }
        while self.sends.local_failure.is_none()
            && let Some(next) = self.sends.next_unwritten()
        {
            let is_written = match next {
                Unwritten::General => self.issue(common),
                Unwritten::Inline { .. } => self.try_write_copy(common),
                Unwritten::Plain(work) => {
                    let work = *work;
                    self.try_write(common, &work)
                }
            };
            if !is_written {
                break;
            }
            self.sends.set_written();
            self.complete_without_peer(common);
        }
        self.watch_acks(common);
        self.ring_doorbell(common);
    }

    /// Adds the queue pair to the lists of those whose acknowledgements are awaited by polls, or
    /// checked by the engine.
    #[inline]
    pub(crate) fn watch_acks(&mut self, common: &mut Common) {
        let sends = &self.sends;
        if !self.is_awaiting && (sends.signaled > 0 || sends.started < sends.posted) {
            self.await_progress(common);
        }
        if !self.is_unacked && self.sends.acked < self.sends.posted {
            self.is_unacked = true;
            common.unacked.push(self.index);
        }
    }

    /// Returns true if a message may be written now: the queue pair may send, and there is room.
    #[inline]
    fn may_write(&mut self) -> bool {
        self.state == QpState::Rts
            && !self.link.has_psn_mismatch
            && self
                .link
                .sender
                .as_mut()
                .is_some_and(|sender| sender.has_room() && !inject!(NoRoom))
    }

    /// Writes a message if it may be written now. Returns `false` if it has to wait, or if it failed:
    /// then `local_failure` is set.
    #[inline]
    fn try_write(&mut self, common: &mut Common, work: &SendWork) -> bool {
        if !self.may_write() {
            return false;
        }
        let Some(sender) = &mut self.link.sender else {
            return false;
        };
        let flags = flags(work.solicited);
        let len = work.len as usize;
        let mut place = (0, 0);
        if !work.inline {
            let bytes = (work.addr, len);
            let regions = &common.regions;
            match regions.check(work.local_key, self.domain, bytes, Access::NONE) {
                Ok(found) => place = found,
                Err(status) => {
                    // The request completes after all earlier ones: see `process_acks`.
                    self.sends.local_failure = Some(status);
                    return false;
                }
            }
        }
        if len <= MAX_IN_RING {
            sender.send(work.addr, len, flags);
        } else {
            let descriptor = Descriptor {
                arena: place.0,
                offset: place.1 as u64,
                len: work.len,
            };
            sender.send_descriptor(descriptor, flags);
            if !self.is_awaiting {
                common.acks_due = common.polls + POLLS_BEFORE_ACK;
            }
        }
        self.note_written(common);
        true
    }

    /// Writes the oldest waiting request, a copied message, if it may be written now.
    fn try_write_copy(&mut self, common: &mut Common) -> bool {
        if !self.may_write() {
            return false;
        }
        let (Some(Unwritten::Inline { bytes, solicited }), Some(sender)) =
            (self.sends.next_unwritten(), &mut self.link.sender)
        else {
            return false;
        };
        sender.send(
            NonNull::from(&**bytes).cast(),
            bytes.len(),
            flags(*solicited),
        );
        self.note_written(common);
        true
    }

    #[inline]
    fn note_written(&mut self, common: &mut Common) {
        common.counters.sends += 1;
        if self.unannounced == Unannounced::Nothing {
            self.unannounced = Unannounced::Messages;
        }
    }
}

fn flags(solicited: bool) -> u16 {
    if solicited { Flags::SOLICITED } else { 0 }
}

/// Returns a message that has to wait, with a copy of its bytes if it is inline.
///
/// # Safety
///
/// The bytes of an inline message are readable.
#[cold]
unsafe fn unwritten(work: &SendWork) -> Unwritten {
    if !work.inline {
        return Unwritten::Plain(*work);
    }
    // SAFETY: the caller guarantees it; the bytes are the caller's own memory, not a peer's.
    let bytes = unsafe { std::slice::from_raw_parts(work.addr.as_ptr(), work.len as usize) };
    Unwritten::Inline {
        bytes: bytes.into(),
        solicited: work.solicited,
    }
}
