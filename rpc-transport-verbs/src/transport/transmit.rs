//! The send path: reserve, send, flush.

use std::sync::Arc;

use rpc_core::transport::{CloseReason, ConnectionId, ReserveError, SendError};

use super::buf::SendBuf;
use crate::transport::failure::PostFailure;
use crate::transport::lane::Lane;
use crate::transport::send_queue::CHAIN_LEN;
use crate::verbs::{PostError, PostErrorReason, Slot};

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
        let SendBuf {
            slot,
            len,
            connection: id,
        } = buf;
        let len = len as usize;
        let Some(connection) = self.connections.get(id) else {
            self.pool.return_send(slot);
            return Err(SendError);
        };
        if len > self.plan.limits.max_inline_len
            || !connection.sends.is_empty()
            || !connection.is_open()
        {
            return self.send_rarely(id, slot, len);
        }
        let signaled = connection.sends.begin_inline();
        let posted = connection.queue_pair.post_inline(&slot[..len], signaled);
        self.pool.return_send(slot);
        if let Err(reason) = posted {
            self.inline_failed(id.index, reason);
            return Err(SendError);
        }
        let posted = connection.queue_pair.sends_posted();
        if connection.sends.since_doorbell(posted) >= CHAIN_LEN as u64 {
            self.ring(id.index);
        } else if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(id.index);
        }
        Ok(())
    }

    /// Sends a frame that is long or follows a long one.
    #[inline(never)]
    fn send_rarely(&mut self, id: ConnectionId, slot: Slot, len: usize) -> Result<(), SendError> {
        let inline = len <= self.plan.limits.max_inline_len;
        if inline {
            // The frames before it are posted first.
            self.post_chain(id.index);
        }
        let Some(connection) = self.connections.get(id) else {
            self.pool.return_send(slot);
            return Err(SendError);
        };
        if !connection.is_open() {
            connection.sends.cancel();
            self.pool.return_send(slot);
            return Err(SendError);
        }
        if inline {
            let connection = id;
            let len = len as u32;
            return self.send_slot(SendBuf {
                slot,
                len,
                connection,
            });
        }
        self.pool.queue_send();
        let is_full = connection.sends.push(slot, len);
        if is_full {
            self.post_chain(id.index);
        } else if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(id.index);
        }
        Ok(())
    }

    pub(crate) fn cancel_slot(&mut self, buf: SendBuf) {
        self.pool.return_send(buf.slot);
        if let Some(connection) = self.connections.get(buf.connection) {
            connection.sends.cancel();
        }
    }

    /// Rings the doorbell of each connection that has sent, and posts free receives after that.
    #[inline]
    pub(crate) fn flush(&mut self) {
        while let Some(index) = self.dirty.pop() {
            if let Some((_, connection)) = self.connections.at(index) {
                connection.is_dirty = false;
                if connection.sends.is_empty() {
                    self.ring(index);
                } else {
                    self.post_chain(index);
                }
            }
        }
        self.refill();
    }

    /// Rings a connection's doorbell for its inline requests.
    #[inline]
    fn ring(&mut self, index: u32) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        let rung = connection.queue_pair.ring_doorbell();
        if let Err(reason) = rung {
            return self.inline_failed(index, reason);
        }
        let posted = connection.queue_pair.sends_posted();
        self.counters.count_sends(&mut connection.sends, posted);
    }

    /// Posts what a connection has sent: its chain, after its inline requests.
    #[inline(never)]
    pub(crate) fn post_chain(&mut self, index: u32) {
        self.ring(index);
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
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
        connection.sends.chain_posted(count);
        self.counters
            .count_sends(&mut connection.sends, connection.queue_pair.sends_posted());
        if let Err(error) = posted {
            // The requests that were not posted go back to the pool.
            self.post_failed(index, error);
        }
    }

    /// Closes a connection whose inline request was rejected, when it was posted or at the doorbell.
    #[cold]
    #[inline(never)]
    fn inline_failed(&mut self, index: u32, reason: PostErrorReason) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        let posted = connection.queue_pair.sends_posted();
        self.counters.count_sends(&mut connection.sends, posted);
        // At least those that were rejected: no more than this wait for one doorbell.
        connection.sends.rejected(CHAIN_LEN);
        self.post_failed(index, PostError { taken: 0, reason });
    }

    /// Closes a connection of which the device rejected a request: frames after it would leave a
    /// gap that the peer cannot detect.
    #[cold]
    fn post_failed(&mut self, index: u32, source: PostError) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        let qp_num = connection.queue_pair.qp_num();
        let failure = PostFailure { qp_num, source };
        self.fail(index, CloseReason::Failed(Arc::new(failure)));
    }
}
