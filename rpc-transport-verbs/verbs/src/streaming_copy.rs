//! Copies into registered memory that a peer reads next.
//!
//! A plain store takes the cache line into the writer's cache first. If another core has read the
//! line before, as the reader of a reused buffer has, each line costs the writer one transfer
//! between the cores, and costs the reader another one. A store *past the caches* (a non-temporal
//! store) writes the line to memory without reading it, and the reader fetches it from there. Which
//! is faster depends on the processor and on the length: [`CopyRule`] decides.
//!
//! Only the sender's copy into its registered memory goes past the caches. A reader's copy into
//! memory that it reads next must not: it would fetch the bytes from memory again.
//!
//! Stores past the caches are not ordered with later stores. A fence orders them before the store
//! that announces the message. Here, the copy itself ends with the fence, so no caller can omit it.

use std::fmt;
use std::sync::OnceLock;

use bytes::BufMut;
use bytes::buf::UninitSlice;

#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::prefetch::LINE_LEN;

/// Copies `from` into `to` with stores past the caches. They are visible to every other core before
/// any store that follows this call. On processors other than x86-64, this is a plain copy.
///
/// # Panics
///
/// Panics if the two slices have different lengths.
pub fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy has one length");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        // Only whole lines are streamed: a line that is stored in part costs two transfers.
        let head = to.as_ptr().align_offset(LINE_LEN).min(to.len());
        let lines = (to.len() - head) / LINE_LEN * LINE_LEN;
        let (to_head, to) = to.split_at_mut(head);
        let (to_lines, to_tail) = to.split_at_mut(lines);
        let (from_head, from) = from.split_at(head);
        let (from_lines, from_tail) = from.split_at(lines);
        to_head.copy_from_slice(from_head);
        stream_lines(to_lines, from_lines);
        to_tail.copy_from_slice(from_tail);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    to.copy_from_slice(from);
}

/// Streams whole cache lines. The fence at the end makes them visible before any later store.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream_lines(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    for (to, from) in to
        .chunks_exact_mut(LINE_LEN)
        .zip(from.chunks_exact(LINE_LEN))
    {
        let to = to.as_mut_ptr().cast::<__m128i>();
        let from = from.as_ptr().cast::<__m128i>();
        debug_assert!(to.is_aligned(), "the caller passes whole lines");
        for quarter in 0..LINE_LEN / size_of::<__m128i>() {
            // SAFETY: both chunks have the length of a line, so this quarter lies in both. `to` is
            // aligned to a line, as `copy_past_caches` computed it. The two do not overlap, because
            // one of them is borrowed mutably. Every x86-64 processor has these instructions, and
            // the fence below comes before any other access to the stored bytes.
            unsafe { _mm_stream_si128(to.add(quarter), _mm_loadu_si128(from.add(quarter))) };
        }
    }
    // SAFETY: a fence touches no memory, and every x86-64 processor has it.
    unsafe { _mm_sfence() };
}

/// Decides which copies into registered memory go past the caches. `Display` states the rule with its
/// reason.
///
/// Measured with `cargo run --release -p benches -- copies`: one core writes a reused
/// buffer, and another one copies it out and reads a byte of each line.
///
/// | processor | cores | past the caches is |
/// | --- | --- | --- |
/// | AMD EPYC (Genoa) | far, with different last-level caches | faster from 4 KiB (1.2 instead of 2.2 µs); 7 times as fast from 64 KiB |
/// | | near | slower at 4 KiB (0.9 instead of 0.5 µs), 1.5 times as fast from 64 KiB to 1 MiB |
/// | Intel Xeon with one last-level cache | near | slower: 1.3 times at 1 KiB and at 64 KiB (1.1 in pieces of 16 KiB), 1.5 to 1.7 at 1 MiB, whole and in pieces, 1.25 at 8 MiB; equal at 4 to 16 KiB |
///
/// On a processor whose cores share one last-level cache, the reader finds plain stores in that cache,
/// and stores past the caches only in memory. The vendor stands for that distinction, since virtual
/// machines hide how caches are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRule {
    /// Copies of at least this many bytes go past the caches; `None` if none do.
    pub past_caches_from: Option<usize>,
    /// Length in bytes of the pieces in which a longer message is best written and announced, so that
    /// the reader copies one piece while the next is written.
    pub piece_len: usize,
}

impl CopyRule {
    /// The shortest copy that goes past the caches on processors with several last-level caches. It
    /// is longer than a slot, because near cores lose at 4 KiB. Both near and far cores gain from
    /// 64 KiB.
    const SEVERAL_CACHES: usize = 16 << 10;

    /// Returns the rule for this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        static RULE: OnceLock<CopyRule> = OnceLock::new();
        *RULE.get_or_init(|| Self::of_processor(has_several_last_level_caches()))
    }

    fn of_processor(has_several_last_level_caches: bool) -> Self {
        Self {
            past_caches_from: has_several_last_level_caches.then_some(Self::SEVERAL_CACHES),
            piece_len: 64 << 10,
        }
    }

    /// Returns the bytes to copy between two looks for other work: about as many as take a
    /// microsecond, and at least as many as go past the caches.
    #[must_use]
    pub fn step_len(self) -> usize {
        self.past_caches_from.unwrap_or(0).max(8 << 10)
    }

    /// Copies `from` into `to`, which a peer reads next: past the caches if this rule says so.
    ///
    /// # Panics
    ///
    /// Panics if the two slices have different lengths.
    #[inline]
    pub fn copy(self, to: &mut [u8], from: &[u8]) {
        match self.past_caches_from {
            Some(shortest) if from.len() >= shortest => copy_past_caches(to, from),
            _ => to.copy_from_slice(from),
        }
    }
}

impl fmt::Display for CopyRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.past_caches_from {
            Some(shortest) => write!(
                f,
                "copies into registered memory go past the caches from {shortest} bytes: processors \
                 of this vendor have several last-level caches, and lines move slowly between them"
            ),
            None => f.write_str(
                "copies into registered memory stay in the caches: the cores of this processor are \
                 assumed to share a last-level cache, where a reader finds them sooner than in memory",
            ),
        }
    }
}

/// Returns true for processors whose cores are divided among several last-level caches.
fn has_several_last_level_caches() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        #[allow(
            unused_unsafe,
            reason = "the function is unsafe in Rust 1.88, and safe later"
        )]
        // SAFETY: the instruction changes nothing, and every x86-64 processor has it.
        let id = unsafe { std::arch::x86_64::__cpuid(0) };
        let vendor = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
        matches!(vendor.as_flattened(), b"AuthenticAMD" | b"HygonGenuine")
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
}

/// Writes a message into registered memory that a peer reads next, with the copies of a
/// [`CopyRule`].
#[derive(Debug)]
pub struct RegisteredWriter<'a> {
    memory: &'a mut [u8],
    written: usize,
    rule: CopyRule,
}

impl<'a> RegisteredWriter<'a> {
    /// Writes into `memory`, from its first byte.
    pub fn new(memory: &'a mut [u8], rule: CopyRule) -> Self {
        Self {
            memory,
            written: 0,
            rule,
        }
    }

    /// Returns the number of bytes written.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written
    }
}

// SAFETY: `chunk_mut` always returns the bytes that were not written yet, and `advance_mut` moves by
// at most their number. The memory is initialized from the start.
unsafe impl BufMut for RegisteredWriter<'_> {
    fn remaining_mut(&self) -> usize {
        self.memory.len() - self.written
    }

    // SAFETY: the bytes need no initialization by the caller, and more than are left are rejected,
    // so any `count` is sound.
    unsafe fn advance_mut(&mut self, count: usize) {
        assert!(count <= self.remaining_mut(), "there is less memory left");
        self.written += count;
    }

    fn chunk_mut(&mut self) -> &mut UninitSlice {
        UninitSlice::new(&mut self.memory[self.written..])
    }

    fn put_slice(&mut self, from: &[u8]) {
        let rest = &mut self.memory[self.written..];
        self.rule.copy(&mut rest[..from.len()], from);
        self.written += from.len();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use proptest::prelude::*;

    use super::*;

    fn source(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    /// Copies and checks that the target has the bytes, and nothing else has changed.
    fn check(from: usize, to: usize, len: usize) {
        let source = source(from + len);
        let mut target = vec![0xa5; to + len + 64];
        copy_past_caches(&mut target[to..to + len], &source[from..]);
        assert_eq!(target[to..to + len], source[from..], "{from} {to} {len}");
        let mut others = target[..to].iter().chain(&target[to + len..]);
        assert!(others.all(|byte| *byte == 0xa5), "{from} {to} {len}");
    }

    #[test]
    fn every_length_is_copied_whole_and_nothing_else() {
        let longest = if cfg!(miri) { 20 } else { 300 };
        for len in 0..longest {
            for to in [0, 1, 15, 16, 63] {
                check(len % 17, to, len);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 256 }))]

        #[test]
        fn a_copy_is_that_of_copy_from_slice(from in 0_usize..130, to in 0_usize..130, len in 0_usize..9000) {
            check(from, to, len);
        }

        #[test]
        fn a_writer_appends_what_it_is_given(
            parts in proptest::collection::vec(0_usize..400, 0..12),
            past_caches_from in proptest::option::of(0_usize..400),
        ) {
            let whole = source(parts.iter().sum());
            let mut memory = vec![0; whole.len() + 3];
            let rule = CopyRule { past_caches_from, piece_len: 1 };
            let mut writer = RegisteredWriter::new(&mut memory, rule);
            let mut rest = &whole[..];
            for len in parts {
                if len % 3 == 0 {
                    writer.put(&mut (&mut rest).take(len));
                } else {
                    writer.put_slice(&rest[..len]);
                    rest.advance(len);
                }
            }
            prop_assert_eq!((writer.written(), writer.remaining_mut()), (whole.len(), 3));
            prop_assert_eq!(&memory[..whole.len()], &whole[..]);
            prop_assert_eq!(&memory[whole.len()..], &[0; 3]);
        }
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_writer_does_not_write_past_the_memory() {
        let mut memory = [0; 4];
        RegisteredWriter::new(&mut memory, CopyRule::of_this_machine()).put_slice(&[1; 5]);
    }

    #[test]
    fn the_rule_is_a_sentence_with_its_reason() {
        let several = CopyRule::of_processor(true);
        assert!(
            several.to_string().contains("from 16384 bytes"),
            "{several}"
        );
        let one = CopyRule::of_processor(false);
        assert!(
            one.to_string().contains("to share a last-level cache"),
            "{one}"
        );
    }
}
