//! The sender's part of a long message: handles the receiver's entries, and ends the message. Closes
//! the connection of a receiver that does not take the message: otherwise, one response would be kept
//! for as long as the connection lasts. [`Looks`] decides when a receiver has had enough time.

use super::super::TimerTarget;
use super::super::link::LinkKey;
use super::super::link_bodies::{LinkBodies, TransferKey};
use super::super::links::Links;
use super::looks::{LOOK, Looks, PATIENCE};
use super::sending::{Awaited, Outgoing, Sending, SentMessage, TransferOwner};
use crate::protocol::connection::{FREE_FRAGMENTS, ProtocolError};
use crate::protocol::frame::{CallId, ControlRequest, SEGMENTS, TransferId};
use crate::transport::Transport;

/// The peer does not take a long message of this side.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum ReceiverStalled {
    #[error(
        "the peer has not released {bytes} bytes of a long message (transfer {:#010x}) for {} s, and \
         the connection is closed to free them: check that the peer's poller still takes turns",
        transfer.0,
        PATIENCE.as_secs()
    )]
    Release { transfer: TransferId, bytes: u64 },
    #[error(
        "the peer has neither accepted nor stopped a long message (transfer {:#010x}) for {} s, and the \
         connection is closed to free the {left} bytes that wait for it: check that the peer's poller \
         still takes turns",
        transfer.0,
        PATIENCE.as_secs()
    )]
    Acceptance { transfer: TransferId, left: u64 },
    #[error(
        "the peer has granted no credit for the rest of a long message (transfer {:#010x}) for {} s, and \
         the connection is closed to free the {left} bytes that wait for one: check that the peer's \
         poller still takes turns",
        transfer.0,
        PATIENCE.as_secs()
    )]
    Credits { transfer: TransferId, left: u64 },
}

impl Sending {
    /// Handles an entry of a control frame about a message that this side sends.
    pub(in super::super) fn receive_transfer_entry<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        id: TransferId,
        request: ControlRequest,
    ) -> Result<Option<SentMessage>, ProtocolError> {
        let Some(key) = self.outgoing_of(link, id) else {
            // The last frame of the message and this entry have crossed.
            let ended = &links[link].bodies.ended;
            return match request {
                ControlRequest::Accepted | ControlRequest::Stopped if ended.contains(&id) => {
                    Ok(None)
                }
                _ => Err(ProtocolError::UnknownTransfer { transfer: id }),
            };
        };
        let outgoing = &mut self.outgoing[key];
        let twice = ProtocolError::ReleasedTwice { transfer: id };
        match request {
            ControlRequest::Fetched(segments) => {
                let segments = segments as usize;
                if outgoing.form != SEGMENTS || segments > outgoing.exposed.len() {
                    return Err(twice);
                }
                outgoing.is_accepted = true;
                let released: Vec<_> = outgoing.exposed.drain(..segments).collect();
                self.conceal_all(links, link, released);
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
                self.conceal_all(links, link, released);
                links.counters.transfers.stopped.add(1);
                self.abandon_transfer(links, key);
            }
        }
        let outgoing = &self.outgoing[key];
        if !outgoing.has_ended {
            self.queue_piece(links, key);
        }
        Ok(self.end_if_done(links, key))
    }

    /// Gives up a message that is no longer wanted. If some of it was not announced, a frame tells
    /// the receiver.
    pub(in super::super) fn abandon_transfer<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: TransferKey,
    ) {
        let outgoing = &mut self.outgoing[key];
        outgoing.is_abandoned = true;
        let message = std::mem::take(&mut outgoing.message);
        self.discard(message);
        if !self.outgoing[key].has_ended {
            self.queue_piece(links, key);
        }
    }

    /// Gives up the request of a call that has ended here, if it is long.
    #[cold]
    pub(in super::super) fn abandon_request<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        link: LinkKey,
        call: CallId,
    ) {
        let owner = TransferOwner::Request(call);
        let mut keys = links[link].bodies.outgoing.iter().copied();
        if let Some(key) = keys.find(|key| self.outgoing[*key].owner == owner) {
            self.abandon_transfer(links, key);
        }
    }

    /// Begins to look at what the receiver of a message does, until the message ends.
    pub(super) fn watch_receiver<T: Transport>(&mut self, links: &mut Links<T>, key: TransferKey) {
        if self.is_sending(key) {
            let awaited = self.awaited(links, key);
            self.outgoing[key].looks = Looks::begin(awaited);
            self.start_look_at_receiver(links, key);
        }
    }

    fn start_look_at_receiver<T: Transport>(&mut self, links: &mut Links<T>, key: TransferKey) {
        let end = links.clock.now() + LOOK;
        let timer = links.timers.insert(end, TimerTarget::Release(key));
        self.outgoing[key].timer = Some(timer);
    }

    /// Returns true if the receiver has no reason to let a message wait for long. A server that has no
    /// memory for a request may let it wait until its deadline, and a reader takes the messages of a
    /// stream when it likes.
    fn is_over<T: Transport>(&self, links: &Links<T>, outgoing: &Outgoing) -> bool {
        let is_over = match outgoing.owner {
            TransferOwner::Request(call) => {
                let calls = &links[outgoing.link].calls;
                !calls.is_in_flight(call)
            }
            TransferOwner::Response => true,
            TransferOwner::Stream(_) => false,
        };
        is_over || outgoing.is_abandoned
    }

    /// Returns what the receiver of a message has to do.
    fn awaited<T: Transport>(&self, links: &Links<T>, key: TransferKey) -> Awaited {
        let outgoing = &self.outgoing[key];
        let link = &links[outgoing.link];
        let is_over = self.is_over(links, outgoing);
        // A receiver that has memory goes on. A server may not go on with a request, because
        // requests that wait for their turns occupy all receives that it has promised. Of an
        // abandoned request, this side keeps nothing.
        let takes_more = match link.is_server() {
            true => is_over || outgoing.is_accepted,
            false => is_over && !outgoing.is_abandoned,
        };
        if !outgoing.exposed.is_empty() {
            match is_over || outgoing.is_accepted {
                true => Awaited::Release(u64::from(outgoing.announced) - outgoing.exposed_len()),
                false => Awaited::Nothing,
            }
        } else if is_over && outgoing.awaits_acceptance() {
            Awaited::Acceptance
        } else if takes_more && link.connection.messages_allowed() == 0 {
            Awaited::Credits(link.bodies.credits_seen)
        } else {
            Awaited::Nothing
        }
    }

    /// Looks at a message, and closes the connection of a receiver that does nothing. The memory for
    /// what it does not take is then free again.
    pub(in super::super) fn check_receiver<T: Transport>(
        &mut self,
        links: &mut Links<T>,
        key: TransferKey,
    ) {
        let awaited = self.awaited(links, key);
        let outgoing = &mut self.outgoing[key];
        outgoing.timer = None;
        let is_late = awaited != Awaited::Nothing && awaited == outgoing.looks.noted();
        if !outgoing.looks.is_too_late(awaited, is_late) {
            return self.start_look_at_receiver(links, key);
        }
        let (transfer, left) = (outgoing.id, outgoing.message.len() as u64);
        let bytes = outgoing.exposed_len();
        let error = match awaited {
            Awaited::Release(_) => ReceiverStalled::Release { transfer, bytes },
            Awaited::Acceptance => ReceiverStalled::Acceptance { transfer, left },
            Awaited::Credits(_) | Awaited::Nothing => ReceiverStalled::Credits { transfer, left },
        };
        let link = outgoing.link;
        links.close_failed(link, error, "closing a connection");
    }
}

impl Outgoing {
    /// Returns the bytes that the peer may read.
    fn exposed_len(&self) -> u64 {
        self.exposed.iter().map(|(_, len)| u64::from(*len)).sum()
    }

    /// Returns true if as much has been sent as may be before the receiver has memory.
    fn awaits_acceptance(&self) -> bool {
        let may_send = self.form == SEGMENTS || self.announced < FREE_FRAGMENTS;
        !(self.is_accepted || self.is_abandoned || may_send)
    }

    /// Returns the bytes that the peer may read, and those that this side keeps for it although it has
    /// no reason to let them wait.
    fn kept_bytes(&self) -> (u64, u64) {
        let exposed = self.exposed_len();
        match self.is_abandoned || self.looks.was_late() {
            true => (exposed, exposed + self.message.len() as u64),
            false => (exposed, 0),
        }
    }
}

impl Sending {
    /// Returns the bytes that peers may read, and those that are kept for them without reason.
    pub(in super::super) fn exposed(&self) -> (u64, u64) {
        sum(self.outgoing.iter().map(|(_, outgoing)| outgoing))
    }

    /// As [`exposed`](Self::exposed), of one connection.
    pub(in super::super) fn exposed_on(&self, link: &LinkBodies) -> (u64, u64) {
        let of_link = link.outgoing.iter();
        sum(of_link.map(|key| &self.outgoing[*key]))
    }
}

fn sum<'a>(messages: impl Iterator<Item = &'a Outgoing>) -> (u64, u64) {
    messages
        .map(Outgoing::kept_bytes)
        .fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
}
