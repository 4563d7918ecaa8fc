//! Copies from and to memory that another party may read or write at the same time: the
//! application, through the cells of exposed memory, or a peer. Every such copy of the device is one
//! of these functions. They take raw pointers, and what is checked or used afterwards is the copy:
//! the memory itself is read once for each use.

mod access;

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use self::access::{WORD, load_byte, load_word, store_byte, store_word};
use crate::provider::work::Sge;

/// Copies `len` bytes, word by word where the target is aligned: a word of the target is written in
/// one store. The final bytes (up to eight) are written last: a reader that polls the last byte then
/// sees all the others, as with most network cards.
///
/// # Safety
///
/// Until this returns, `from` is readable and `to` is writable for `len` bytes, and no reference to
/// plain bytes (`&[u8]`, `&mut [u8]`) to the target, nor `&mut [u8]` to the source, is in use. The
/// ranges may overlap: the target then holds a mix of old and new bytes.
pub(crate) unsafe fn copy_shared(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    let head = to.as_ptr().align_offset(WORD).min(len);
    let words = (len - head) / WORD;
    let tail = head + words * WORD;
    // SAFETY: each offset below is less than `len`, so it lies within both ranges, which the caller
    // guarantees to be mapped.
    let byte = |offset: usize| unsafe { store_byte(to.add(offset), load_byte(from.add(offset))) };
    let word = |index: usize| {
        let offset = head + index * WORD;
        // SAFETY: the eight bytes lie within both ranges, as above.
        unsafe { store_word(to.add(offset), load_word(from.add(offset))) };
    };
    for offset in 0..head {
        byte(offset);
    }
    let last_word = if tail == len {
        words.saturating_sub(1)
    } else {
        words
    };
    for index in 0..last_word {
        word(index);
    }
    // A reader that sees one of the last bytes sees all bytes before it.
    fence(Ordering::Release);
    if last_word < words {
        word(last_word);
    }
    for offset in tail..len {
        byte(offset);
    }
}

/// Copies bytes between a buffer of the device and memory that the application may access at the same
/// time, in any order: faster than [`copy_shared`], which writes the final bytes last.
///
/// # Safety
///
/// Until this returns, `from` is readable and `to` is writable for `len` bytes, the two do not overlap,
/// and no reference to plain bytes (`&[u8]`, `&mut [u8]`) to the target, nor `&mut [u8]` to the source,
/// is in use.
#[inline]
pub(crate) unsafe fn copy_buffered(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    // SAFETY: the caller guarantees that both ranges are accessible and do not overlap until this
    // returns.
    unsafe { access::copy(from, to, len) };
}

/// Copies the bytes of a message into a ring or out of one, or out of a peer's arena: the way of
/// every plain message.
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
    // SAFETY: the caller guarantees that both ranges are accessible and do not overlap until this
    // returns.
    unsafe { access::copy(from, to, len) };
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::LocalKey;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 16 } else { 256 }))]

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
    fn every_length_of_a_message_is_copied_whole_and_nothing_else() {
        let longest = if cfg!(miri) { 80 } else { 2300 };
        let source: Vec<u8> = (0..longest + 8).map(|at| (at % 251) as u8).collect();
        for len in 0..longest {
            let (from, to) = (len % 5, len % 7);
            let mut target = vec![0xa5; longest + 16];
            let bytes = NonNull::from(&*source).cast::<u8>();
            let start = NonNull::from(&mut *target).cast::<u8>();
            // SAFETY: both buffers are longer than the offset and the length together, and only
            // this test uses them.
            unsafe { copy_message(bytes.add(from), start.add(to), len) };
            assert_eq!(target[to..to + len], source[from..from + len]);
            let mut others = target[..to].iter().chain(&target[to + len..]);
            assert!(others.all(|byte| *byte == 0xa5));
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
        // SAFETY: all elements lie inside the array, which lives until the end of this test.
        let gathered = unsafe { gather(&list) }.unwrap();
        assert_eq!(gathered, b"\0abcdefg");
        assert_eq!(memory[20..23], *b"\0ab");
        assert_eq!(memory[4..9], *b"cdefg");
    }
}
