//! Copies from and to memory that another party may read or write at the same time: the
//! application, through the cells of exposed memory, or a peer.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, compiler_fence};

use crate::provider::work::Sge;

/// Copies `len` bytes, word by word where the target is aligned. The final bytes (up to eight) are
/// written last: a reader that polls the last byte then sees all the others, as with most network
/// cards.
///
/// # Safety
///
/// Until this returns, both ranges are mapped, the target is writable, and no reference to plain
/// bytes (`&[u8]`, `&mut [u8]`) covers either range. The ranges may overlap: the target then holds
/// a mix of old and new bytes.
pub(crate) unsafe fn copy_shared(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    const WORD: usize = 8;
    let head = to.as_ptr().align_offset(WORD).min(len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: each offset below is less than `len`, so it lies within both ranges, which the caller
    // guarantees to be mapped.
    let byte = |offset: usize, order| unsafe {
        let value = from_byte(from.add(offset));
        to.add(offset)
            .cast::<AtomicU8>()
            .as_ref()
            .store(value, order);
    };
    for offset in 0..head {
        byte(offset, Ordering::Relaxed);
    }
    let last_word = if tail == len {
        words.saturating_sub(1)
    } else {
        words
    };
    let word = |index: usize, order| {
        let offset = head + index * WORD;
        // SAFETY: the eight bytes lie within both ranges, as above; `to` is aligned at `head`.
        unsafe {
            let value = from_word(from.add(offset));
            to.add(offset)
                .cast::<AtomicU64>()
                .as_ref()
                .store(value, order);
        }
    };
    for index in 0..last_word {
        word(index, Ordering::Relaxed);
    }
    if last_word < words {
        // Release: a reader that sees this word sees all words before it.
        word(last_word, Ordering::Release);
    }
    for offset in tail..len {
        byte(offset, Ordering::Release);
    }
}

/// Copies the bytes of a message into a ring or out of one, or out of a peer's arena: the way of
/// every plain message. The peer may write the memory at any time, so it is reached through raw
/// pointers only, and read once: what is checked or used afterwards is the copy.
///
/// # Safety
///
/// `from` is readable and `to` is writable for `len` bytes, and the two do not overlap. The memory
/// that is not shared with the peer belongs to the caller; to the shared memory there is no
/// reference to plain bytes (`&[u8]`, `&mut [u8]`). By the protocol of the ring, the peer leaves the
/// shared bytes alone until the next store to the ring's commit word or acknowledgement; if it does
/// not, the bytes of the copy are arbitrary, as everything from a peer may be.
#[inline]
pub(crate) unsafe fn copy_message(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: the caller guarantees it.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), len) };
    // Keeps the compiler from reading the source again in place of the copy.
    compiler_fence(Ordering::SeqCst);
}

/// Returns the bytes of the elements in order; `None` if memory for them cannot be allocated.
///
/// # Safety
///
/// The conditions of [`copy_shared`] hold for every element that is not empty.
pub(crate) unsafe fn gather(elements: &[Sge]) -> Option<Vec<u8>> {
    let len = elements.iter().map(|element| element.len as usize).sum();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    let mut to = NonNull::from(&mut *bytes).cast::<u8>();
    for element in elements {
        let len = element.len as usize;
        // SAFETY: the caller guarantees the conditions of `copy_shared` for the element; the
        // lengths of all elements add up to the vector's length.
        unsafe {
            copy_shared(element.addr, to, len);
            to = to.add(len);
        }
    }
    Some(bytes)
}

/// Fills one element after another with `bytes`, starting `start` bytes after the beginning of the
/// first element.
///
/// # Safety
///
/// The conditions of [`copy_shared`] hold for every element that is not empty.
pub(crate) unsafe fn scatter(mut bytes: &[u8], elements: &[Sge], start: usize) {
    let mut skipped = start;
    for element in elements {
        let len = element.len as usize;
        let from = skipped.min(len);
        skipped -= from;
        let (now, later) = bytes.split_at(bytes.len().min(len - from));
        // SAFETY: the range is inside the element, and the caller guarantees the conditions of
        // `copy_shared` for the whole element.
        unsafe { copy_shared(NonNull::from(now).cast(), element.addr.add(from), now.len()) };
        bytes = later;
    }
}

/// Reads a byte with a relaxed atomic load.
///
/// # Safety
///
/// The byte is mapped, and nothing writes it through a reference to a plain byte meanwhile.
unsafe fn from_byte(from: NonNull<u8>) -> u8 {
    // SAFETY: the caller guarantees that the byte is mapped and not written through plain
    // references; every byte value is valid.
    unsafe { from.cast::<AtomicU8>().as_ref().load(Ordering::Relaxed) }
}

/// Reads eight bytes: in one atomic load if they are aligned, otherwise byte by byte.
///
/// # Safety
///
/// As for `from_byte`, for all eight bytes.
unsafe fn from_word(from: NonNull<u8>) -> u64 {
    if from.cast::<AtomicU64>().is_aligned() {
        // SAFETY: the pointer is aligned, as just checked; the caller guarantees the rest.
        return unsafe { from.cast::<AtomicU64>().as_ref().load(Ordering::Relaxed) };
    }
    let mut bytes = [0; 8];
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: the offset is less than eight, and the caller guarantees eight bytes.
        *byte = unsafe { from_byte(from.add(offset)) };
    }
    u64::from_ne_bytes(bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verbs::types::LocalKey;

    proptest! {
        #[test]
        fn every_length_and_alignment_is_copied_whole_and_nothing_else(
            source in proptest::collection::vec(any::<u8>(), 64),
            from in 0_usize..16,
            to in 0_usize..16,
            len in 0_usize..48,
        ) {
            let mut target = vec![0xa5; 64];
            let start = NonNull::new(target.as_mut_ptr()).unwrap();
            let bytes = NonNull::from(&*source).cast::<u8>();
            // SAFETY: both buffers have 64 bytes, at most 16 + 48 of them are touched, and only
            // this test uses them.
            unsafe { copy_shared(bytes.add(from), start.add(to), len) };
            prop_assert_eq!(&target[to..to + len], &source[from..from + len]);
            prop_assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xa5));
        }
    }

    #[test]
    fn a_list_is_filled_and_read_in_its_order() {
        let mut memory = [0_u8; 32];
        let start = NonNull::from(&mut memory).cast::<u8>();
        let element = |offset: usize, len| Sge {
            // SAFETY: the offsets used below are all inside the array.
            addr: unsafe { start.add(offset) },
            len,
            local_key: LocalKey(0),
        };
        let list = [element(20, 3), element(0, 0), element(4, 5)];
        // SAFETY: all elements lie inside the array, which only this test uses.
        unsafe { scatter(b"abcdefg", &list, 1) };
        // SAFETY: all elements lie inside the array, as above.
        let gathered = unsafe { gather(&list) }.unwrap();
        assert_eq!(gathered, b"\0abcdefg");
        assert_eq!(memory[20..23], *b"\0ab");
        assert_eq!(memory[4..9], *b"cdefg");
    }
}
