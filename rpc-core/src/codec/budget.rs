//! The budget of decoding: how much memory a message may take that was sent in fewer bytes; and how much
//! work, on a poller's thread (`beside.rs`).
//!
//! Two bytes of an encoded message can be an element of a repeated field, which takes the size of
//! its Rust type. A peer could thus make this process allocate far more memory than it sends. What
//! counts is what fields place on the heap: the elements of repeated fields, the entries of maps,
//! boxed messages, and the bytes of `string` and `bytes` fields. The space that a `HashMap` or a
//! `BTreeMap` keeps free does not count, nor what a vector that prost fills has to spare.
//!
//! # The limit
//!
//! A message may take 48 bytes for each of its bytes. A short one may take as much as one of 4 MiB,
//! which is the longest by default, but at most 512 bytes for each of its bytes. Each message may take
//! 256 KiB besides:
//!
//! | length | may take | reached by |
//! | --- | --- | --- |
//! | up to 4 KiB, a slot | 2.25 MiB | 900 elements of 2,600 bytes, of less than five bytes each |
//! | up to 384 KiB | 512 times its length | wide elements with a name each |
//! | up to 4 MiB | 192 MiB | |
//! | longer | 48 times its length | elements that are wide all the way down |
//!
//! No smaller limit leaves honest lists alone. prost places an optional message in the struct that
//! contains it, whether it is set or not, so a list is as large as its type is wide: an element of
//! `google.storage.v2.Object` takes 792 bytes, one of HDFS's file statuses 696, of Kubernetes' pods
//! 2,608, and of its volumes 3,400. Of such lists, elements with a name alone take 20 to 380 bytes for
//! each byte (pods 174, containers 293). Elements as servers return them take 3 to 37 (log records of
//! OpenTelemetry 3, pods 31 to 37), at any length: hence the two multiples. A hostile element can only
//! be told from an honest one with a name by its number, so the total is bounded, and not the share
//! of each element.
//!
//! # What a peer can still do
//!
//! - One call takes 192 MiB at most with the default limit of 4 MiB, instead of 5 GiB (4 MiB of empty
//!   pods, without a budget). What was decoded is freed when the handler drops it.
//! - The calls that a connection has in flight add up: 128 of 4 KiB each take 288 MiB while their
//!   handlers wait, and 128 of 384 KiB or more 24 GiB. Whoever serves strangers, with requests that
//!   have wide elements and handlers that wait, lowers one of the factors: the length of requests
//!   (`max_request_len`, if it can be less than 384 KiB), the number of calls
//!   (`max_concurrent_calls`), or the budget of the request (`decode_budget(".pkg.Request", 8)`: 32 MiB
//!   for 4 MiB, and 288 KiB for 4 KiB). Types with narrow elements are bounded by themselves: strings
//!   and scalars take no more than 12 bytes for each byte, in maps 28.
//! - The types of a message without generated code are not known, nor how wide they are. Of these, a
//!   message has 65,536 elements at most, or one for each ten bytes if it is longer than 600 KiB. prost
//!   before 0.14.6 decodes entries of maps that the estimate does not see, one for each four bytes.

use std::any::type_name;
use std::cell::Cell;

use bytes::Bytes;

use super::DecodeError;

/// What a decode takes of a processor, in picoseconds. The test `what_a_decode_takes` of `rpc-codegen` has
/// measured it: decodes took 0.1 to 0.9 times the sum of these, and up to 2.4 times if messages were wide and
/// prost decoded them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work(u64);

impl Work {
    /// A field, or an element of one that is not packed.
    pub(super) const FIELD: Self = Self(20_000);
    /// An allocation, of which most are short.
    pub(super) const ALLOCATED: Self = Self(30_000);
    /// A byte that is placed on the heap.
    pub(super) const PLACED: Self = Self(300);
    /// An entry of a map, besides its key and its value.
    pub(super) const HASHED: Self = Self(300_000);
    /// A byte of a nested message, which is moved several times.
    pub(super) const MOVED: Self = Self(800);
    /// A byte of packed values of fixed length.
    pub(super) const PACKED_FIXED: Self = Self(600);
    /// A byte of packed varints: one that is short.
    pub(super) const PACKED_VARINTS: Self = Self(6_000);
    /// A byte of text that is not ASCII, which is checked and copied.
    pub(super) const TEXT: Self = Self(1_200);
    /// A byte that is copied.
    pub(super) const COPIED: Self = Self(200);

    /// Returns the work for `count` of these.
    pub(super) const fn of(self, count: usize) -> u64 {
        self.0.saturating_mul(count as u64)
    }
}

/// The most work of a decode on a poller's thread: 1 ms, so that one which takes more than was estimated, on a
/// slow core, ends within 5 ms.
pub(crate) const MOST_WORK: u64 = 1_000_000_000;

/// The size that is assumed for a message without generated code, as far as it is work. Its type may be
/// wide, and prost moves it.
pub(super) const MOVED_LEN: usize = 1024;

/// How much memory messages may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    /// How many bytes each encoded byte may become, however long the message is.
    per_byte: usize,
    /// How many bytes each encoded byte of a short message may become.
    short_per_byte: usize,
    /// How many bytes a short message may become.
    short_at_most: usize,
}

/// What messages with generated code may take by default.
const GENERATED: Allowance = Allowance {
    per_byte: 48,
    short_per_byte: 512,
    // What a message of 4 MiB may take, the longest by default.
    short_at_most: 192 << 20,
};

/// What messages without generated code may take, by the estimate of a [`Scan`](super::Scan).
pub(super) const ESTIMATED: Allowance = Allowance {
    per_byte: 28,
    // Whatever a short message consists of.
    short_per_byte: ELEMENT_LEN / 2,
    short_at_most: ELEMENT_LEN * SHORT_ELEMENTS,
};

/// The size that is assumed for an element without generated code, which is more than that of most.
pub(super) const ELEMENT_LEN: usize = 256;

/// How many elements a message without generated code may have, however short they are.
const SHORT_ELEMENTS: usize = 1 << 16;

/// The length up to which a message without generated code cannot have more: an element takes two
/// bytes.
pub(super) const UNSCANNED_LEN: usize = 2 * SHORT_ELEMENTS;

/// How many bytes any message may become: 100 levels of a wide message, as deep as prost decodes.
pub(super) const AT_LEAST: usize = 256 << 10;

impl Allowance {
    /// Returns what a message with generated code may take. `per_byte` is what each of its bytes may
    /// become, if the build script says so.
    #[inline]
    pub(super) const fn new(per_byte: Option<usize>) -> Self {
        match per_byte {
            None => GENERATED,
            Some(per_byte) => Self {
                per_byte,
                short_per_byte: per_byte,
                short_at_most: 0,
            },
        }
    }

    /// Returns the most bytes that a message of `len` bytes may take.
    fn limit(self, len: usize) -> usize {
        let short = len.saturating_mul(self.short_per_byte);
        len.saturating_mul(self.per_byte)
            .max(short.min(self.short_at_most))
            .saturating_add(AT_LEAST)
    }

    /// Returns the bytes that a message of `len` bytes may take besides one byte for each encoded
    /// byte. The latter are for the contents of `string` and `bytes` fields, which then need not be
    /// counted.
    #[inline]
    pub(super) fn budget(self, len: usize) -> usize {
        self.limit(len).saturating_sub(len)
    }

    /// Returns the error of a message of type `M` with `len` bytes that is over its budget.
    #[cold]
    #[inline(never)]
    pub(super) fn exceeded<M>(self, len: usize) -> DecodeError {
        DecodeError::OverBudget {
            message: type_name::<M>(),
            len,
            limit: self.limit(len),
            is_estimate: self == ESTIMATED,
        }
    }
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
    fn a_short_message_may_take_what_a_full_one_takes() {
        for (len, expected) in [
            (0, 0),
            (1000, 512 * 1000),
            (384 << 10, 192 << 20),
            (1 << 20, 192 << 20),
            (4 << 20, 192 << 20),
            (10 << 20, 480 << 20),
        ] {
            assert_eq!(GENERATED.limit(len), expected + AT_LEAST);
            assert_eq!(GENERATED.budget(len), expected + AT_LEAST - len);
        }
        // Nothing overflows.
        assert_eq!(GENERATED.limit(usize::MAX), usize::MAX);
    }

    #[test]
    fn the_setting_is_the_whole_limit() {
        let limit = |len, per_byte| Allowance::new(Some(per_byte)).limit(len);
        assert_eq!(limit(1000, 8), 8 * 1000 + AT_LEAST);
        assert_eq!(limit(10 << 20, 100), (1000 << 20) + AT_LEAST);
        assert_eq!(limit(usize::MAX, 8), usize::MAX);
    }

    #[test]
    fn the_error_says_which_setting_is_more_than_the_limit() {
        for (per_byte, expected) in [(None, 512), (Some(8), 8)] {
            let error = Allowance::new(per_byte).exceeded::<u64>(1000).to_string();
            assert!(error.ends_with(&format!("more than {expected}")), "{error}");
        }
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
