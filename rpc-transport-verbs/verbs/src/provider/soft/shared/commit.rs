//! The two words that advance a ring: the sender's commit word, one per slot, and the receiver's
//! acknowledgement.

use super::sync::{AtomicU64, Ordering};

/// First word of a ring slot. The sender stores it last, after everything else in the slot.
///
/// ```text
///  63             48 47             32 31                             0
/// ┌─────────────────┬─────────────────┬────────────────────────────────┐
/// │ flags           │ len             │ sequence (lower 32 bits)       │
/// └─────────────────┴─────────────────┴────────────────────────────────┘
/// ```
///
/// A slot is never cleared: the receiver waits for exactly the next sequence number, and the slot's
/// previous content has a sequence number smaller by the ring's length. Sequence numbers start at
/// 1, so that fresh, zeroed memory commits nothing.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct CommitWord(AtomicU64);

/// The content of a commit word. It comes from a peer: neither `len` nor `flags` can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Payload bytes in the slot, or in the ring's buffer.
    pub(crate) len: u16,
    pub(crate) flags: Flags,
}

/// Flags of a commit word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u16);

impl Flags {
    /// The slot holds a [`Descriptor`](super::descriptor::Descriptor), not the message.
    pub(crate) const DESCRIPTOR: u16 = 1;
    /// The sender requested a solicited event.
    pub(crate) const SOLICITED: u16 = 2;
    /// A request other than a plain message: see `request_message`.
    pub(crate) const REQUEST: u16 = 4;
    /// The payload is in the ring's buffer.
    pub(crate) const BUFFERED: u16 = 8;

    pub(crate) fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }
}

impl CommitWord {
    #[cfg(loom)]
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Commits a message: the sender's last step for a slot.
    #[inline]
    pub(crate) fn publish(&self, sequence: u64, commit: Commit) {
        let word = u64::from(commit.flags.0) << 48 | u64::from(commit.len) << 32 | lower(sequence);
        // Release: the payload is written before the word that announces it.
        self.0.store(word, Ordering::Release);
    }

    /// Returns the commit of the message with this sequence number, if the sender has committed it.
    #[inline]
    pub(crate) fn peek(&self, sequence: u64) -> Option<Commit> {
        // Acquire: pairs with `publish`, so that the payload is read after the word.
        let word = self.0.load(Ordering::Acquire);
        (word & LOWER == lower(sequence)).then_some(Commit {
            len: (word >> 32) as u16,
            flags: Flags((word >> 48) as u16),
        })
    }
}

/// The receiver's acknowledgement: every message up to this sequence number has been taken out of
/// its slot.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct AckWord(AtomicU64);

impl AckWord {
    #[cfg(loom)]
    fn new(sequence: u64) -> Self {
        Self(AtomicU64::new(sequence))
    }

    /// Publishes an acknowledgement: the receiver's last step for a batch of slots.
    #[inline]
    pub(crate) fn publish(&self, sequence: u64) {
        // Release: the receiver reads the slots before the sender may write them again.
        self.0.store(sequence, Ordering::Release);
    }

    /// Returns the latest acknowledgement; called by the sender.
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        // Acquire: pairs with `publish`.
        self.0.load(Ordering::Acquire)
    }
}

const LOWER: u64 = 0xffff_ffff;

fn lower(sequence: u64) -> u64 {
    sequence & LOWER
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_sequence_number_commits() {
        let word = CommitWord(AtomicU64::new(0));
        assert_eq!(word.peek(1), None, "fresh memory");
        let commit = Commit {
            len: 240,
            flags: Flags(Flags::SOLICITED),
        };
        word.publish(5, commit);
        assert_eq!(word.peek(4), None);
        assert_eq!(word.peek(5), Some(commit));
        assert_eq!(word.peek(5 + 128), None, "the next round of the ring");
    }

    #[test]
    fn a_sequence_number_beyond_32_bits_is_compared_in_its_lower_half() {
        let word = CommitWord(AtomicU64::new(0));
        let sequence = (1 << 32) + 9;
        word.publish(
            sequence,
            Commit {
                len: 1,
                flags: Flags::default(),
            },
        );
        assert!(word.peek(sequence).is_some());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const SLOTS: u64 = 2;
    const MESSAGES: u64 = 3;

    /// A ring of two slots carries three messages, so that one slot is reused. Loom's cells fail
    /// the model if a payload is ever read before it is committed or overwritten before it is
    /// acknowledged.
    #[test]
    fn loom_ring_commits_payloads_and_acks_slots() {
        loom::model(|| {
            let slots: Arc<Vec<_>> = Arc::new(
                (0..SLOTS)
                    .map(|_| (CommitWord::new(), UnsafeCell::new(0_u64)))
                    .collect(),
            );
            let ack = Arc::new(AckWord::new(0));
            let sender = {
                let (slots, ack) = (Arc::clone(&slots), Arc::clone(&ack));
                thread::spawn(move || {
                    for sequence in 1..=MESSAGES {
                        while sequence - ack.peek() > SLOTS {
                            thread::yield_now();
                        }
                        let slot = &slots[(sequence % SLOTS) as usize];
                        // SAFETY: the slot's last message was acknowledged, so the receiver no
                        // longer reads it; loom checks this.
                        slot.1
                            .with_mut(|payload| unsafe { *payload = sequence * 10 });
                        slot.0.publish(
                            sequence,
                            Commit {
                                len: 8,
                                flags: Flags::default(),
                            },
                        );
                    }
                })
            };
            for sequence in 1..=MESSAGES {
                let slot = &slots[(sequence % SLOTS) as usize];
                while slot.0.peek(sequence).is_none() {
                    thread::yield_now();
                }
                // SAFETY: the message is committed and not yet acknowledged, so the sender does not
                // write it; loom checks this.
                assert_eq!(slot.1.with(|payload| unsafe { *payload }), sequence * 10);
                ack.publish(sequence);
            }
            sender.join().unwrap();
        });
    }
}
