//! The budget of decoding: how much memory a message may take that was sent in fewer bytes.
//!
//! Two bytes of an encoded message can be an element of a repeated field, which takes the size of
//! its Rust type. A peer could thus make this process allocate far more memory than it sends. What
//! counts is what fields place on the heap: the elements of repeated fields, the entries of maps,
//! boxed messages, and the bytes of `string` and `bytes` fields. The space that a `HashMap` or a
//! `BTreeMap` keeps free does not count.

use std::cell::Cell;

use bytes::Bytes;

use super::DecodeError;

/// How many bytes one encoded byte may become, unless the generated code says otherwise.
pub(super) const DECODED_PER_BYTE: usize = 8;

/// How many bytes any message may become.
const DECODED_AT_LEAST: usize = 64 << 10;

/// The most bytes that a message of `len` bytes may take, if each byte may become `per_byte`.
fn limit(len: usize, per_byte: usize) -> usize {
    len.saturating_mul(per_byte)
        .saturating_add(DECODED_AT_LEAST)
}

/// Returns the bytes that the message may take besides one byte for each encoded byte. The latter are
/// for the contents of `string` and `bytes` fields, which then need not be counted.
pub(super) fn budget(len: usize, per_byte: usize) -> usize {
    limit(len, per_byte).saturating_sub(len)
}

/// Returns the error of a message that is over its budget.
#[cold]
#[inline(never)]
pub(super) fn over_budget(len: usize, per_byte: usize) -> DecodeError {
    let limit = limit(len, per_byte);
    DecodeError::OverBudget { len, limit }
}

/// The state of decoding one message, which all messages nested in it share.
#[derive(Debug)]
pub(super) struct Decoding<'a> {
    /// Bytes that may still be placed on the heap.
    budget: Cell<usize>,
    /// The whole message, if fields may share it.
    shared: Option<&'a Bytes>,
    /// The length from which fields share it.
    share_from: usize,
    /// The length of the fields that share it.
    shared_len: Cell<usize>,
}

impl<'a> Decoding<'a> {
    #[inline]
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget: Cell::new(budget),
            shared: None,
            share_from: usize::MAX,
            shared_len: Cell::new(0),
        }
    }

    /// Decodes `bytes`, which fields of at least `share_from` bytes share.
    pub(super) fn sharing(budget: usize, bytes: &'a Bytes, share_from: usize) -> Self {
        Self {
            shared: Some(bytes),
            share_from,
            ..Self::new(budget)
        }
    }

    /// Takes `count` times `size` bytes from the budget. `None` if that is more than is left.
    pub(super) fn charge(&self, count: usize, size: usize) -> Option<()> {
        let left = self.budget.get().checked_sub(count.checked_mul(size)?)?;
        self.budget.set(left);
        Some(())
    }

    /// Returns a part of the message as a field of its own: a slice, or a copy.
    #[inline]
    pub(super) fn field(&self, part: &[u8]) -> Bytes {
        if part.len() >= self.share_from
            && let Some(shared) = self.shared
        {
            self.shared_len.set(self.shared_len.get() + part.len());
            return shared.slice_ref(part);
        }
        Bytes::copy_from_slice(part)
    }

    pub(super) fn shared_len(&self) -> usize {
        self.shared_len.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_eight_times_the_length_and_64_kib() {
        assert_eq!(limit(1000, DECODED_PER_BYTE), 8 * 1000 + 65536);
        assert_eq!(budget(1000, DECODED_PER_BYTE), 7 * 1000 + 65536);
        // Nothing overflows.
        assert_eq!(limit(usize::MAX, DECODED_PER_BYTE), usize::MAX);
        assert_eq!(budget(0, 1), 65536);
    }

    #[test]
    fn charges_end_with_the_budget() {
        let decoding = Decoding::new(10);
        assert_eq!(decoding.charge(2, 5), Some(()));
        assert_eq!(decoding.charge(1, 1), None);
        assert_eq!(decoding.charge(usize::MAX, 2), None);
        assert_eq!(decoding.charge(usize::MAX, 0), Some(()));
    }
}
