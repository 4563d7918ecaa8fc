//! The sender's part of a long message: handles the receiver's entries, and ends the message.

use std::time::Duration;

use super::super::link::LinkKey;
use super::super::link_transfers::{LinkTransfers, TransferKey};
use super::super::{Driver, State, TimerTarget};
use super::Transfers;
use super::outgoing::{Outgoing, TransferOwner};
use crate::protocol::connection::{FREE_FRAGMENTS, ProtocolError};
use crate::protocol::frame::{CallId, ControlRequest, FRAGMENT, SEGMENTS, TransferId};
use crate::transport::{CloseReason, Transport};

/// Time within which a receiver has to release a segment that it has no reason to keep. After it,
/// the connection is closed, which frees the memory.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(30);

/// How many ended messages of a link have their numbers remembered, since an entry of a control frame
/// about one may still be on its way. Credits bound the messages that end meanwhile.
const ENDED: usize = 1024;

/// The peer did not release segments of a long message.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the peer has not released {bytes} bytes of a long message (transfer {:#010x}) for {} s, and the \
     connection is closed to free them: check that the peer's poller still takes turns",
    transfer.0,
    RELEASE_TIMEOUT.as_secs()
)]
pub(crate) struct NotReleased {
    transfer: TransferId,
    bytes: u64,
}

impl<T: Transport> State<T> {
    /// Handles an entry of a control frame about a message that this side sends.
    pub(in super::super) fn receive_transfer_entry(
        &mut self,
        link: LinkKey,
        id: TransferId,
        request: ControlRequest,
    ) -> Result<(), ProtocolError> {
        let Some(key) = self.transfers.outgoing_of(link, id) else {
            // The last frame of the message and this entry have crossed.
            let ended = &self.links[link.index()].transfers.ended;
            return match request {
                ControlRequest::Accepted | ControlRequest::Stopped if ended.contains(&id) => Ok(()),
                _ => Err(ProtocolError::UnknownTransfer { transfer: id }),
            };
        };
        let outgoing = &mut self.transfers.outgoing[key.index()];
        let twice = ProtocolError::ReleasedTwice { transfer: id };
        match request {
            ControlRequest::Fetched(segments) => {
                let segments = segments as usize;
                if outgoing.form != SEGMENTS || segments > outgoing.exposed.len() {
                    return Err(twice);
                }
                outgoing.is_accepted = true;
                let released: Vec<_> = outgoing.exposed.drain(..segments).collect();
                self.conceal_all(link, released);
                self.after_progress(key);
            }
            ControlRequest::Accepted => {
                let len = outgoing.announced as usize + outgoing.message.len();
                let is_long = outgoing.form == SEGMENTS || len > FREE_FRAGMENTS as usize;
                if outgoing.is_accepted || !(is_long || outgoing.is_abandoned) {
                    return Err(twice);
                }
                outgoing.is_accepted = true;
            }
            _ => {
                let released = std::mem::take(&mut outgoing.exposed);
                self.conceal_all(link, released);
                self.counters.transfers.stopped.add(1);
                self.abandon_transfer(key);
            }
        }
        let outgoing = &self.transfers.outgoing[key.index()];
        if !outgoing.has_ended {
            self.queue_piece(key);
        }
        self.end_if_done(key);
        Ok(())
    }

    /// Gives up a message that is no longer wanted. If some of it was not announced, a frame tells
    /// the receiver.
    pub(in super::super) fn abandon_transfer(&mut self, key: TransferKey) {
        let outgoing = &mut self.transfers.outgoing[key.index()];
        outgoing.is_abandoned = true;
        let message = std::mem::take(&mut outgoing.message);
        self.transfers.discard(message);
        if !self.transfers.outgoing[key.index()].has_ended {
            self.queue_piece(key);
        }
        self.after_progress(key);
    }

    /// Gives up the request of a call that has ended here, if it is long.
    #[cold]
    pub(in super::super) fn abandon_request(&mut self, link: LinkKey, call: CallId) {
        let Some(entry) = self.links.get(link.index()) else {
            return;
        };
        let outgoing = &self.transfers.outgoing;
        let mut keys = entry.transfers.outgoing.iter();
        let is_of_call = |key: &&TransferKey| {
            outgoing
                .get(key.index())
                .is_some_and(|outgoing| outgoing.owner == TransferOwner::Request(call))
        };
        if let Some(&key) = keys.find(is_of_call) {
            self.abandon_transfer(key);
        }
    }

    /// Restarts the release timer after progress of the receiver, if segments are still exposed.
    pub(super) fn after_progress(&mut self, key: TransferKey) {
        let outgoing = &mut self.transfers.outgoing[key.index()];
        outgoing.was_late = false;
        if let Some(timer) = outgoing.timer.take() {
            self.timers.cancel(timer);
        }
        if !outgoing.exposed.is_empty() {
            self.start_release_timer(key);
        }
    }

    /// Starts the release timer unless it runs. Sending more does not restart it, because that is
    /// no progress of the receiver.
    pub(super) fn expect_release(&mut self, key: TransferKey) {
        let outgoing = &self.transfers.outgoing[key.index()];
        if outgoing.timer.is_none() && !outgoing.exposed.is_empty() {
            self.start_release_timer(key);
        }
    }

    fn start_release_timer(&mut self, key: TransferKey) {
        let end = self.clock.now() + RELEASE_TIMEOUT;
        let timer = self.timers.insert(end, TimerTarget::Release(key));
        self.transfers.outgoing[key.index()].timer = Some(timer);
    }

    /// Returns true if the receiver has no reason to keep segments of a message for long. A server
    /// that has no memory for a request may keep it waiting until its deadline.
    fn must_be_released(&self, key: TransferKey) -> bool {
        let outgoing = &self.transfers.outgoing[key.index()];
        let is_over = match outgoing.owner {
            TransferOwner::Request(call) => {
                let calls = &self.links[outgoing.link.index()].calls;
                !calls.is_in_flight(call)
            }
            TransferOwner::Response => true,
            TransferOwner::Stream(_) => false,
        };
        is_over || outgoing.is_accepted || outgoing.is_abandoned
    }

    /// Handles the release timer of a message.
    pub(in super::super) fn check_release(&mut self, key: TransferKey) {
        let outgoing = &mut self.transfers.outgoing[key.index()];
        outgoing.timer = None;
        // The call may have ended just now: then the receiver gets the same time once more.
        let call_may_be_new = !(outgoing.is_accepted || outgoing.is_abandoned || outgoing.was_late)
            && matches!(outgoing.owner, TransferOwner::Request(_));
        if !self.must_be_released(key) || call_may_be_new {
            let is_over = self.must_be_released(key);
            self.transfers.outgoing[key.index()].was_late = is_over;
            return self.start_release_timer(key);
        }
        let outgoing = &self.transfers.outgoing[key.index()];
        let bytes = outgoing
            .exposed
            .iter()
            .map(|(_, len)| u64::from(*len))
            .sum();
        let error = NotReleased {
            transfer: outgoing.id,
            bytes,
        };
        let link = &mut self.links[outgoing.link.index()];
        if link.ended.is_none() {
            tracing::warn!(connection = %link.id, %error, "closing a connection");
            link.ended = Some(CloseReason::Failed(std::sync::Arc::new(error)));
            self.transport.close(link.id);
        }
    }

    /// Removes a message of which nothing follows and nothing is exposed.
    pub(super) fn end_if_done(&mut self, key: TransferKey) {
        let Some(outgoing) = self.transfers.outgoing.get(key.index()) else {
            return;
        };
        if !outgoing.has_ended || !outgoing.exposed.is_empty() || outgoing.is_queued {
            return;
        }
        let outgoing = self.transfers.outgoing.remove(key.index());
        if let Some(timer) = outgoing.timer {
            self.timers.cancel(timer);
        }
        let link = &mut self.links[outgoing.link.index()].transfers;
        link.outgoing.retain(|other| *other != key);
        if outgoing.form == FRAGMENT || outgoing.is_abandoned {
            if link.ended.len() == ENDED {
                link.ended.pop_front();
            }
            link.ended.push_back(outgoing.id);
        }
        self.transfers.discard(outgoing.message);
        if let TransferOwner::Stream(stream) = outgoing.owner {
            self.long_message_sent(stream, key);
        }
    }
}

impl Outgoing {
    /// Returns the bytes that the peer may read, and of these, those that it has no reason to keep.
    fn exposed_bytes(&self) -> (u64, u64) {
        let exposed = self.exposed.iter().map(|(_, len)| u64::from(*len)).sum();
        match self.is_abandoned || self.was_late {
            true => (exposed, exposed),
            false => (exposed, 0),
        }
    }
}

impl<M> Transfers<M> {
    /// Returns the bytes that peers may read, and of these, those that they have no reason to keep.
    pub(in super::super) fn exposed(&self) -> (u64, u64) {
        sum(self.outgoing.iter().map(|(_, outgoing)| outgoing))
    }

    /// As [`exposed`](Self::exposed), of one connection.
    pub(in super::super) fn exposed_on(&self, link: &LinkTransfers) -> (u64, u64) {
        let of_link = link.outgoing.iter();
        sum(of_link.filter_map(|key| self.outgoing.get(key.index())))
    }
}

fn sum<'a>(messages: impl Iterator<Item = &'a Outgoing>) -> (u64, u64) {
    messages
        .map(Outgoing::exposed_bytes)
        .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}

impl<T: Transport> Driver<T> {
    /// Handles the release timer of a message.
    #[cold]
    pub(in super::super) fn expire_release(&self, key: TransferKey) {
        self.state.borrow_mut().check_release(key);
    }
}
