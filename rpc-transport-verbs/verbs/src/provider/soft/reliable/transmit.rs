//! Transmits sends: writes them into the peer's ring, and notifies the peer.
//!
//! Writing a message and notifying the receiver (the doorbell) are two steps. A receiver that polls
//! the ring sees a message as soon as it is written. A receiver that does not is notified by the
//! doorbell, once for all messages before it.

use std::ptr::NonNull;

use super::poll::POLLS_BEFORE_ACK;
use crate::hooks::inject;
use crate::provider::soft::context::link::{Link, Rings, Unannounced};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::send_queue::Unwritten;
use crate::provider::soft::context::state::Common;
use crate::provider::soft::shared::commit::Flags;
use crate::provider::soft::shared::descriptor::Descriptor;
use crate::provider::soft::shared::ring::{MAX_IN_RING, ReceiverState, RingSender};
use crate::provider::work::SendWork;
use crate::types::{Access, DeviceCounters};

impl SoftQueuePair {
    /// Notifies the receiver of the messages written since the last doorbell, unless it polls. Over
    /// TCP, writes those that were posted inline.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self, common: &mut Common) {
        match &mut self.link {
            Link::Rings(rings) => rings.ring_doorbell(&mut common.counters),
            Link::Tcp(tcp) if tcp.is_doorbell_due => self.transmit_or_defer(common),
            Link::Tcp(_) | Link::Down => {}
        }
    }

    /// Writes as many of the waiting requests as there is room for, and notifies the receiver.
    #[cold]
    #[inline(never)]
    pub(crate) fn transmit(&mut self, common: &mut Common) {
        if let Link::Tcp(_) = self.link {
            self.write_link(common, false);
        } else {
            self.write_ring(common);
        }
        self.watch_acks(common);
        #[cfg(debug_assertions)]
        crate::provider::soft::context::check::check_queue_pair(self);
    }

    fn write_ring(&mut self, common: &mut Common) {
        while self.initiator.sends.local_failure.is_none()
            && let Some(next) = self.initiator.sends.next_unwritten()
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
            self.initiator.sends.set_written();
            self.complete_acknowledged(common);
        }
        self.ring_doorbell(common);
    }

    /// Adds the queue pair to the lists of those whose acknowledgements are awaited by polls, or
    /// checked by the engine.
    #[inline]
    pub(crate) fn watch_acks(&mut self, common: &mut Common) {
        if !self.is_awaiting && self.awaits_polls() {
            self.await_progress(common);
        }
        if !self.is_unacked && self.initiator.sends.acked < self.initiator.sends.posted {
            self.is_unacked = true;
            common.unacked.push(self.core.index);
        }
    }

    /// Writes a message if it may be written now. Returns `false` if it has to wait, or if it failed:
    /// then `local_failure` is set.
    #[inline]
    pub(super) fn try_write(&mut self, common: &mut Common, work: &SendWork) -> bool {
        if !self.initiator.may_send(&self.core) {
            return false;
        }
        let Some((sender, unannounced)) = self.link.with_room() else {
            return false;
        };
        let flags = flags(work.solicited);
        let len = work.len as usize;
        let mut place = (0, 0);
        if !work.inline {
            let bytes = (work.addr, len);
            let regions = &common.memory.regions;
            match regions.check(work.local_key, self.core.domain, bytes, Access::NONE) {
                Ok(found) => place = found,
                Err(status) => {
                    // The request completes after all earlier ones: see `process_acks`.
                    self.initiator.sends.local_failure = Some(status);
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
        unannounced.add(Unannounced::Messages);
        common.counters.sends += 1;
        true
    }

    /// Writes the oldest waiting request, a copied message, if it may be written now.
    fn try_write_copy(&mut self, common: &mut Common) -> bool {
        if !self.initiator.may_send(&self.core) {
            return false;
        }
        let Some((sender, unannounced)) = self.link.with_room() else {
            return false;
        };
        let Some(Unwritten::Inline { bytes, solicited }) = self.initiator.sends.next_unwritten()
        else {
            return false;
        };
        let start = NonNull::from(&**bytes).cast();
        sender.send(start, bytes.len(), flags(*solicited));
        unannounced.add(Unannounced::Messages);
        common.counters.sends += 1;
        true
    }
}

impl Link {
    /// Returns the peer's ring if it has room, and what its reader has not been told of.
    #[inline]
    fn with_room(&mut self) -> Option<(&mut RingSender, &mut Unannounced)> {
        let rings = self.rings_mut()?;
        let sender = rings.sender.as_mut()?;
        let has_room = sender.has_room() && !inject!(NoRoom);
        has_room.then_some((sender, &mut rings.unannounced))
    }
}

impl Rings {
    #[inline]
    fn ring_doorbell(&mut self, counters: &mut DeviceCounters) {
        if self.unannounced == Unannounced::Nothing {
            return;
        }
        let Some(sender) = &self.sender else { return };
        counters.doorbells += 1;
        let is_hot = sender.is_receiver_hot();
        if is_hot && self.unannounced == Unannounced::Messages {
            self.unannounced = Unannounced::Nothing;
        } else {
            self.notify(counters, is_hot);
        }
    }

    /// Notifies a receiver that does not poll the ring, or may have to wake its engine.
    #[cold]
    #[inline(never)]
    fn notify(&mut self, counters: &mut DeviceCounters, is_hot: bool) {
        let was = std::mem::take(&mut self.unannounced);
        let Some(sender) = &self.sender else { return };
        if !is_hot {
            counters.wakes += 1;
            if sender.notify_cold_receiver() == ReceiverState::Asleep {
                counters.sleepers_woken += 1;
            }
        }
        if was == Unannounced::OneSided {
            sender.wake_engine();
        }
    }
}

fn flags(solicited: bool) -> u16 {
    if solicited { Flags::SOLICITED } else { 0 }
}
