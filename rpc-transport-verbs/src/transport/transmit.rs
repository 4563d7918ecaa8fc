//! The send path: reserve, send, flush.

use std::sync::Arc;

use rpc_core::transport::{CloseReason, ConnectionId, ReserveError, SendError};

use super::buf::SendBuf;
use crate::transport::failure::PostFailure;
use crate::transport::lane::Lane;

impl Lane {
    #[inline]
    pub(crate) fn reserve_slot(
        &mut self,
        id: ConnectionId,
        len: usize,
    ) -> Result<SendBuf, ReserveError> {
        let connection = self.connections.get(id).ok_or(ReserveError::Closed)?;
        if !connection.is_open() {
            return Err(ReserveError::Closed);
        }
        let limit = connection.frame_limit;
        if len > limit {
            return Err(ReserveError::TooLong { len, limit });
        }
        // Reserve the entry first: if the queue is full, no slot has to be put back.
        let free = connection.queue_pair.send_slots_free();
        if !connection.sends.reserve(free) {
            return Err(ReserveError::NoSlot);
        }
        match self.pool.take_send() {
            Some(slot) => Ok(SendBuf {
                slot,
                // Fits in 32 bits, as a slot's length does.
                len: len as u32,
                connection: id,
            }),
            None => {
                connection.sends.cancel();
                Err(ReserveError::NoSlot)
            }
        }
    }

    #[inline]
    pub(crate) fn send_slot(&mut self, buf: SendBuf) -> Result<(), SendError> {
        let id = buf.connection;
        let Some(connection) = self.connections.get(id) else {
            self.pool.cancel_send(buf.slot);
            return Err(SendError);
        };
        if !connection.is_open() {
            connection.sends.cancel();
            self.pool.cancel_send(buf.slot);
            return Err(SendError);
        }
        self.pool.queue_send();
        let len = buf.len as usize;
        let inline = len <= self.plan.limits.max_inline_len;
        let is_full = connection.sends.push(buf.slot, len, inline);
        if is_full {
            self.post_chain(id.index);
        } else if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(id.index);
        }
        Ok(())
    }

    pub(crate) fn cancel_slot(&mut self, buf: SendBuf) {
        self.pool.cancel_send(buf.slot);
        if let Some(connection) = self.connections.get(buf.connection) {
            connection.sends.cancel();
        }
    }

    /// Posts the chain of each connection that has one, with one doorbell per connection.
    #[inline]
    pub(crate) fn flush_chains(&mut self) {
        while let Some(index) = self.dirty.pop() {
            if let Some((_, connection)) = self.connections.at(index) {
                connection.is_dirty = false;
                self.post_chain(index);
            }
        }
    }

    /// Posts a connection's chain to the device.
    pub(crate) fn post_chain(&mut self, index: u32) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        // A full chain has already been posted, before this flush.
        if connection.sends.is_empty() {
            return;
        }
        let chain = connection.sends.seal();
        let before = chain.len();
        let pool = &mut self.pool;
        let posted = connection
            .queue_pair
            .post_send(chain, &mut |slot| pool.complete_send(slot));
        let count = before - chain.len();
        let signaled = connection.sends.posted(count);
        self.counters.signaled.add(signaled.into());
        self.counters.sends.add(count as u64);
        self.counters.doorbells.add(1);
        if let Err(error) = posted {
            // Frames after the rejected one would leave a gap that the peer cannot detect, so close
            // the connection. The requests that were not posted go back to the pool.
            let failure = PostFailure {
                qp_num: connection.queue_pair.qp_num(),
                source: error,
            };
            self.fail(index, CloseReason::Failed(Arc::new(failure)));
        }
    }
}
