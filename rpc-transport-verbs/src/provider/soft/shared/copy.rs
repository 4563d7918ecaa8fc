//! Copies from and to memory that somebody else may be reading or writing at the same moment: this
//! process's users, through the cells of exposed memory, or a peer.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::provider::Sge;

/// Copies `len` bytes, word by word where the target is aligned, and its last up to eight bytes last, after
/// all others: who waits for the last byte to change sees the rest then, as most network cards have it.
///
/// # Safety
///
/// Both ranges are mapped, the target writable, until this returns; neither is reached through references
/// to plain bytes meanwhile. They may overlap: then the target has bytes of before and after.
pub(crate) unsafe fn copy_shared(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    const WORD: usize = 8;
    let head = to.as_ptr().align_offset(WORD).min(len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: each offset below is less than `len`, so within both ranges (the caller's promise).
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
        // SAFETY: as above, for eight bytes; `to` is aligned at `head`.
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
        // Release: all before it are seen by who sees it.
        word(last_word, Ordering::Release);
    }
    for offset in tail..len {
        byte(offset, Ordering::Release);
    }
}

/// The bytes of the elements, one after another; `None` if there is no memory for them.
///
/// # Safety
///
/// As for [`copy_shared`], of every element that has bytes.
pub(crate) unsafe fn gather(elements: &[Sge]) -> Option<Vec<u8>> {
    let len = elements.iter().map(|element| element.len as usize).sum();
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    let mut to = NonNull::from(&mut *bytes).cast::<u8>();
    for element in elements {
        let len = element.len as usize;
        // SAFETY: the caller's promise for the element; the lengths of all add up to the vector's.
        unsafe {
            copy_shared(element.addr, to, len);
            to = to.add(len);
        }
    }
    Some(bytes)
}

/// Fills one element after another with `bytes`, from `start` bytes after the first byte of the first on.
///
/// # Safety
///
/// As for [`copy_shared`], of every element that has bytes.
pub(crate) unsafe fn scatter(mut bytes: &[u8], elements: &[Sge], start: usize) {
    let mut skipped = start;
    for element in elements {
        let len = element.len as usize;
        let from = skipped.min(len);
        skipped -= from;
        let (now, later) = bytes.split_at(bytes.len().min(len - from));
        // SAFETY: inside the element, of which the caller promised all.
        unsafe { copy_shared(NonNull::from(now).cast(), element.addr.add(from), now.len()) };
        bytes = later;
    }
}

/// # Safety
///
/// The byte is mapped, and reached by nobody through a reference to a plain byte that writes.
unsafe fn from_byte(from: NonNull<u8>) -> u8 {
    // SAFETY: the caller's promise; any byte is a value.
    unsafe { from.cast::<AtomicU8>().as_ref().load(Ordering::Relaxed) }
}

/// # Safety
///
/// As for `from_byte`, of eight bytes.
unsafe fn from_word(from: NonNull<u8>) -> u64 {
    if from.cast::<AtomicU64>().is_aligned() {
        // SAFETY: aligned; the caller's promise for the rest.
        return unsafe { from.cast::<AtomicU64>().as_ref().load(Ordering::Relaxed) };
    }
    let mut bytes = [0; 8];
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: one of the eight.
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
            // SAFETY: both have 64 bytes, and 16 + 48 is the most that is touched; both are this test's.
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
            // SAFETY: inside the array.
            addr: unsafe { start.add(offset) },
            len,
            local_key: LocalKey(0),
        };
        let list = [element(20, 3), element(0, 0), element(4, 5)];
        // SAFETY: all elements are of the array.
        unsafe { scatter(b"abcdefg", &list, 1) };
        // SAFETY: as above.
        let gathered = unsafe { gather(&list) }.unwrap();
        assert_eq!(gathered, b"\0abcdefg");
        assert_eq!(memory[20..23], *b"\0ab");
        assert_eq!(memory[4..9], *b"cdefg");
    }
}
