//! Credits of the driver: promises receives to peers, and sends the credits that no response
//! carries.

use super::State;
use super::call_table::{Response, ResponseFrame};
use super::link::LinkKey;
use crate::protocol::frame::{CallId, FrameKind, HEADER_LEN};
use crate::transport::{ReserveError, Transport};

impl<T: Transport> State<T> {
    /// Returns the receives by which windows may grow: those not set aside for future connections.
    pub(crate) fn free_for_growth(&self) -> u32 {
        let set_aside = self
            .expected_connections
            .saturating_mul(self.initial_window + 1);
        self.budget.left().saturating_sub(set_aside)
    }

    /// Records that the credit of a request is owed and that no response carries it now.
    pub(crate) fn owe(&mut self, key: LinkKey) {
        if let Some(link) = self.links.get_mut(key.index())
            && !std::mem::replace(&mut link.owes, true)
        {
            self.owing.push(key);
        }
    }

    /// Releases the slot of a response, and the promise made for it.
    pub(crate) fn release_response(&mut self, buf: T::RecvBuf) {
        self.transport.release(buf);
        self.budget.release(1);
    }

    /// Discards a response that was taken from the call table.
    #[inline]
    pub(crate) fn discard_response(&mut self, response: Response<T::RecvBuf>) {
        if let ResponseFrame::Slot(buf) = response.frame {
            self.release_response(buf);
        }
    }

    /// Promises a receive, if necessary one that holds a response.
    pub(crate) fn promise_receive(&mut self) -> bool {
        if self.budget.left() == 0 {
            self.copy_responses_out();
        }
        self.budget.take(1)
    }

    /// Copies the responses that have not been taken yet out of their slots, because no receive is
    /// left to promise.
    #[cold]
    pub(super) fn copy_responses_out(&mut self) {
        let mut slots = Vec::new();
        for (_, link) in &mut self.links {
            link.calls.copy_responses_out(|buf| slots.push(buf));
        }
        for buf in slots {
            self.release_response(buf);
        }
    }

    pub(crate) fn send_owed_credits(&mut self) {
        let (links, transport) = (&mut self.links, &mut self.transport);
        let unflushed = &mut self.unflushed;
        // Each is tried once: a link whose peer receives nothing must not hold up the others.
        self.owing.retain(|key| {
            let Some(link) = links.get_mut(key.index()) else {
                return false;
            };
            link.owes = false;
            if link.ended.is_some() {
                return false;
            }
            if !link.connection.wants_credit_frame() {
                // If a client has yet to be notified of the shutdown and cannot be now, keep the
                // link.
                link.owes = link.connection.must_announce_shutdown();
                return link.owes;
            }
            match transport.reserve(link.id, HEADER_LEN) {
                Ok(mut buf) => {
                    let header = link.connection.next_header(FrameKind::Credit, CallId(0), 0);
                    header.encode(buf.as_mut());
                    self.counters.credits.frames_sent.add(1);
                    // If the connection has ended, its credits no longer matter.
                    let _ = transport.send(link.id, buf);
                    *unflushed = true;
                }
                Err(ReserveError::NoSlot) => link.owes = true,
                Err(_) => {}
            }
            link.owes
        });
    }
}
