//! [`Parts`]: the ranges of memory that one read fills, or one write sends.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// A range of memory, as the kernel takes it (`struct iovec`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
}

/// Ranges of memory, in order. None is accessed here.
#[derive(Debug)]
pub(crate) struct Parts<const N: usize> {
    /// The first `count` are initialized.
    parts: [MaybeUninit<Part>; N],
    count: usize,
    pub(crate) bytes: usize,
}

impl<const N: usize> Parts<N> {
    pub(crate) fn new() -> Self {
        Self {
            parts: [const { MaybeUninit::uninit() }; N],
            count: 0,
            bytes: 0,
        }
    }

    pub(crate) fn push(&mut self, start: NonNull<u8>, len: usize) {
        self.parts[self.count].write(Part { start, len });
        self.count += 1;
        self.bytes += len;
    }

    pub(crate) fn as_slice(&self) -> &[Part] {
        // SAFETY: the first `count` parts are initialized.
        unsafe { std::slice::from_raw_parts(self.parts.as_ptr().cast(), self.count) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Part] {
        // SAFETY: the first `count` parts are initialized.
        unsafe { std::slice::from_raw_parts_mut(self.parts.as_mut_ptr().cast(), self.count) }
    }
}

/// The bytes of parts, in order, in pieces that are as long as whoever takes them wants.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    parts: &'a [Part],
    /// Bytes of the first part that were taken.
    taken: usize,
}

impl<'a> Pieces<'a> {
    pub(crate) fn of(parts: &'a [Part]) -> Self {
        Self { parts, taken: 0 }
    }

    /// Returns the next bytes, at most `most` and not beyond their part; `None` if that is none.
    pub(crate) fn next(&mut self, most: usize) -> Option<Part> {
        while let [part, after @ ..] = self.parts {
            let len = most.min(part.len - self.taken);
            if len > 0 {
                // SAFETY: fewer bytes were taken than the part has, so the pointer stays inside it.
                let start = unsafe { part.start.add(self.taken) };
                self.taken += len;
                return Some(Part { start, len });
            }
            if most == 0 {
                return None;
            }
            (self.parts, self.taken) = (after, 0);
        }
        None
    }
}
