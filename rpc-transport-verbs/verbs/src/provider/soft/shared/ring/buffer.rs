//! The buffer of a ring: the bytes of inline messages that are longer than a slot.
//!
//! A message takes whole cache lines, behind those of the message before. Both sides count them, so no
//! offset is sent: the receiver knows it from the lengths that it has seen. A peer that counts
//! otherwise gets other bytes of its own ring delivered.

use std::collections::VecDeque;

use super::SLOT_COUNT;
use crate::prefetch::LINE_LEN;

/// Bytes of the buffer: room for one message of the longest kind for each slot.
pub(super) const BUFFER_LEN: usize = 32 << 10;

/// How much of the buffer messages have taken since the ring was created, with what was left out at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken(u64);

impl Taken {
    /// Takes a piece of `len` bytes, which are at most `MAX_BUFFERED`. Returns its offset in the buffer.
    pub(super) fn take(&mut self, len: usize) -> usize {
        let len = len.next_multiple_of(LINE_LEN);
        // The cast is lossless: the remainder is less than the buffer.
        let mut at = (self.0 % BUFFER_LEN as u64) as usize;
        if at + len > BUFFER_LEN {
            self.0 += (BUFFER_LEN - at) as u64;
            at = 0;
        }
        self.0 += len as u64;
        at
    }

    /// Returns the offset of a piece that would be taken now.
    pub(super) fn next(mut self, len: usize) -> usize {
        self.take(len)
    }
}

/// What the sender knows of the buffer.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    taken: Taken,
    /// What had been taken up to the end of the last piece that is free again.
    free: Taken,
    /// Where the pieces in use end, with the sequence numbers of their messages.
    in_use: VecDeque<(u64, Taken)>,
}

impl Pieces {
    /// Returns true if a piece of `len` bytes is free.
    pub(super) fn has_room(&self, len: usize) -> bool {
        let mut taken = self.taken;
        taken.take(len);
        taken.0 - self.free.0 <= BUFFER_LEN as u64
    }

    /// Takes a piece for a message. There is room for it. Returns its offset in the buffer.
    pub(super) fn take(&mut self, len: usize, sequence: u64) -> usize {
        debug_assert!(self.has_room(len));
        if self.in_use.capacity() == 0 {
            // Once: there are never more messages.
            self.in_use.reserve_exact(SLOT_COUNT as usize);
        }
        let at = self.taken.take(len);
        self.in_use.push_back((sequence, self.taken));
        at
    }

    /// Frees the pieces of all messages up to `acked`.
    #[inline]
    pub(super) fn free(&mut self, acked: u64) {
        while let Some(&(sequence, end)) = self.in_use.front()
            && sequence <= acked
        {
            self.free = end;
            self.in_use.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::super::MAX_BUFFERED;
    use super::*;

    proptest! {
        /// Pieces in use do not overlap, none crosses the end, and the receiver finds each.
        #[test]
        fn pieces_in_use_are_apart(
            steps in proptest::collection::vec((1..=MAX_BUFFERED, 0..3_u64), 1..300),
        ) {
            let (mut pieces, mut received) = (Pieces::default(), Taken::default());
            let mut in_use: VecDeque<(u64, usize, usize)> = VecDeque::new();
            let mut acked = 0;
            for ((len, acknowledged), sequence) in steps.into_iter().zip(1..) {
                acked = (acked + acknowledged).min(sequence - 1);
                pieces.free(acked);
                in_use.retain(|piece| piece.0 > acked);
                prop_assert_eq!(pieces.in_use.len(), in_use.len());
                if in_use.len() as u64 == SLOT_COUNT {
                    continue;
                }
                if !pieces.has_room(len) {
                    let used: usize = in_use.iter().map(|piece| piece.2).sum();
                    prop_assert!(used + 2 * MAX_BUFFERED > BUFFER_LEN);
                    continue;
                }
                let at = pieces.take(len, sequence);
                prop_assert_eq!(received.take(len), at);
                prop_assert!(at % LINE_LEN == 0 && at + len <= BUFFER_LEN);
                for &(_, start, other) in &in_use {
                    prop_assert!(at + len <= start || start + other <= at);
                }
                in_use.push_back((sequence, at, len.next_multiple_of(LINE_LEN)));
            }
        }
    }
}
