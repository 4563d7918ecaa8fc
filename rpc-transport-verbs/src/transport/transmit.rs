//! The send path: reserve, send, flush.

use std::sync::Arc;

use rpc_core::transport::{CloseReason, ConnectionId, ReserveError, SendError};
use verbline_verbs::PostError;
use verbline_verbs::for_transport::InlineError;

use super::buf::SendBuf;
use crate::transport::buffer_pool::BufferPool;
use crate::transport::connection::Connection;
use crate::transport::failure::PostFailure;
use crate::transport::lane::Lane;

impl Lane {
    /// Posts a copy of `frame`, when `complete` has written what is missing. A peer that polls may
    /// receive it before the next flush.
    #[inline]
    pub(crate) fn send_inline<R>(
        &mut self,
        id: ConnectionId,
        frame: &mut [u8],
        complete: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>, ReserveError> {
        let are_several = self.connections.len() > 1;
        let connection = self.connections.get(id).ok_or(ReserveError::Closed)?;
        let is_inline = frame.len() < connection.inline_end;
        if !is_inline {
            check_slot(connection, &self.pool, are_several, frame.len())?;
        } else if !connection.has_entry() {
            return Err(ReserveError::NoSlot);
        }
        let Some(completed) = complete(frame) else {
            return Ok(None);
        };
        if !is_inline {
            // If the connection ends meanwhile, an event reports it.
            let sent = self.send_complete(id, frame);
            debug_assert!(
                sent.is_ok()
                    || !self
                        .connections
                        .get(id)
                        .is_some_and(|connection| connection.is_open()),
                "{id:?} has no room for a frame after it was checked"
            );
            return Ok(Some(completed));
        }
        let signaled = connection.sends.count_request();
        if let Err(error) = connection.queue_pair.try_post_inline(frame, signaled) {
            connection.sends.rejected(1);
            self.inline_failed(id.index, error);
            return Ok(Some(completed));
        }
        if signaled {
            self.counters.signaled.add(1);
        }
        let is_full = connection.sends.inline_posted();
        if !self.dirty.insert(&mut connection.listed, id.index) && is_full {
            self.ring(id.index);
        }
        Ok(Some(completed))
    }

    /// Sends a copy of a frame in which nothing is missing. It may follow a chain, or be longer than this
    /// device sends inline.
    #[cold]
    #[inline(never)]
    fn send_complete(&mut self, id: ConnectionId, frame: &mut [u8]) -> Result<(), SendError> {
        let is_inline = |connection: &mut Connection| frame.len() < connection.inline_end;
        if !self.connections.get(id).is_some_and(is_inline) {
            // The frames before it are posted first.
            self.post_chain(id.index);
        }
        if self.connections.get(id).is_some_and(is_inline) {
            let sent = self.send_inline(id, frame, |_| Some(()));
            return sent.map(drop).map_err(|_| SendError);
        }
        let mut buf = self.reserve_slot(id, frame.len()).map_err(|_| SendError)?;
        buf.as_mut().copy_from_slice(frame);
        self.send_slot(buf)
    }

    /// Returns the length of the longest frame that both sides' slots can hold; 0 if the connection
    /// has ended.
    pub(crate) fn longest_frame(&self, id: ConnectionId) -> usize {
        let connection = self.connections.get_ref(id);
        let open = connection.filter(|connection| connection.is_open());
        open.map_or(0, |connection| connection.frame_limit)
    }

    #[inline]
    pub(crate) fn reserve_slot(
        &mut self,
        id: ConnectionId,
        len: usize,
    ) -> Result<SendBuf, ReserveError> {
        let are_several = self.connections.len() > 1;
        let connection = self.connections.get(id).ok_or(ReserveError::Closed)?;
        check_slot(connection, &self.pool, are_several, len)?;
        let slot = self.pool.take_send().ok_or(ReserveError::NoSlot)?;
        connection.sends.reserve();
        // The caller writes the frame next.
        slot.prefetch_for_write(len);
        Ok(SendBuf {
            slot,
            // Fits in 32 bits, as a slot's length does.
            len: len as u32,
            connection: id,
        })
    }

    pub(crate) fn send_slot(&mut self, buf: SendBuf) -> Result<(), SendError> {
        let SendBuf {
            mut slot,
            len,
            connection: id,
        } = buf;
        let len = len as usize;
        let Some(connection) = self.connections.get(id) else {
            self.pool.return_send(slot);
            return Err(SendError);
        };
        if !connection.is_open() || len <= self.plan.limits.max_inline_len {
            connection.sends.cancel();
            let sent = self.send_complete(id, &mut slot[..len]);
            self.pool.return_send(slot);
            return sent;
        }
        self.pool.queue_send();
        let is_full = connection.push(slot, len);
        self.dirty.insert(&mut connection.listed, id.index);
        if is_full {
            self.post_chain(id.index);
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
            let Some((_, connection)) = self.connections.at(index) else {
                continue;
            };
            self.dirty.taken(&mut connection.listed);
            if !connection.sends.is_empty() {
                self.post_chain(index);
                continue;
            }
            if let Err(error) = connection.queue_pair.try_ring_doorbell() {
                // The connection is closed, which the driver sees later.
                self.inline_failed(index, error);
                continue;
            }
            self.counters
                .count_doorbell(connection.sends.take_waiting() as usize);
        }
        self.refill();
        if cfg!(debug_assertions) {
            self.assert_all_sums();
        }
    }

    /// Rings a connection's doorbell for its inline requests.
    #[inline(never)]
    fn ring(&mut self, index: u32) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        if let Err(error) = connection.queue_pair.try_ring_doorbell() {
            self.inline_failed(index, error);
            return;
        }
        self.counters
            .count_doorbell(connection.sends.take_waiting() as usize);
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
        let signals = chain.iter().filter(|request| request.signaled).count();
        let (pool, mut returned) = (&mut self.pool, 0);
        let posted = connection.queue_pair.post_send(chain, &mut |slot| {
            pool.complete_send(slot);
            returned += 1;
        });
        let count = before - chain.len();
        connection.sends.slots_returned(returned);
        connection.chain_posted(count);
        self.counters.signaled.add(signals as u64);
        self.counters.count_doorbell(count);
        if let Err(error) = posted {
            // The requests that were not posted go back to the pool.
            self.post_failed(index, error);
        }
    }

    /// Closes a connection whose inline requests were rejected, when one was posted or at the
    /// doorbell.
    #[cold]
    #[inline(never)]
    fn inline_failed(&mut self, index: u32, error: InlineError) {
        let InlineError { rejected, reason } = error;
        if let Some((_, connection)) = self.connections.at(index) {
            connection.sends.waiting_rejected(rejected);
            self.counters
                .count_doorbell(connection.sends.take_waiting() as usize);
            self.post_failed(index, PostError { taken: 0, reason });
        }
    }

    /// Closes a connection of which the device rejected a request: frames after it would leave a
    /// gap that the peer cannot detect.
    #[cold]
    pub(crate) fn post_failed(&mut self, index: u32, source: PostError) {
        let Some((_, connection)) = self.connections.at(index) else {
            return;
        };
        let qp_num = connection.queue_pair.qp_num();
        let failure = PostFailure { qp_num, source };
        self.fail(index, CloseReason::Failed(Arc::new(failure)));
    }
}

/// Checks that a connection, one of several or the only one, can have a slot for a frame of `len` bytes now.
fn check_slot(
    connection: &Connection,
    pool: &BufferPool,
    is_one_of_several: bool,
    len: usize,
) -> Result<(), ReserveError> {
    let limit = connection.frame_limit;
    if !connection.is_open() {
        Err(ReserveError::Closed)
    } else if len > limit {
        Err(ReserveError::TooLong { len, limit })
    } else if !connection.has_entry()
        || (is_one_of_several && !pool.has_share_for(connection.sends.slots()))
        || !pool.has_send()
    {
        Err(ReserveError::NoSlot)
    } else {
        Ok(())
    }
}
