//! [`Chunks`]: an encoded message in parts, some of which may be the application's own bytes.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

/// An encoded message in parts. The parts are taken from the front.
///
/// A part is either encoded bytes, or a reference: bytes that the message shares with the
/// application, because a field of type `Bytes` was encoded without a copy.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    /// None of them is empty.
    parts: VecDeque<Part>,
    len: usize,
    by_reference_len: usize,
}

#[derive(Clone, Debug)]
struct Part {
    bytes: Bytes,
    by_reference: bool,
}

impl Chunks {
    /// Creates an encoded message of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the length of the parts that are left, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many of the bytes that are left are references.
    #[must_use]
    pub fn by_reference_len(&self) -> usize {
        self.by_reference_len
    }

    /// Appends encoded bytes.
    pub fn push(&mut self, bytes: Bytes) {
        self.push_part(bytes, false);
    }

    /// Appends bytes that the message shares with the application.
    pub fn push_reference(&mut self, bytes: Bytes) {
        self.push_part(bytes, true);
    }

    fn push_part(&mut self, bytes: Bytes, by_reference: bool) {
        if bytes.is_empty() {
            return;
        }
        self.len += bytes.len();
        if by_reference {
            self.by_reference_len += bytes.len();
        }
        self.parts.push_back(Part {
            bytes,
            by_reference,
        });
    }

    /// Returns the first part, which is not empty.
    #[must_use]
    pub fn front(&self) -> Option<&Bytes> {
        self.parts.front().map(|part| &part.bytes)
    }

    /// Returns the parts that have the first `len` bytes, and the first part in any case.
    pub(crate) fn fronts(&self, len: usize) -> impl Iterator<Item = &Bytes> {
        let mut before = 0;
        self.parts.iter().map_while(move |part| {
            let is_wanted = before < len.max(1);
            before += part.bytes.len();
            is_wanted.then_some(&part.bytes)
        })
    }

    /// Returns true if the first part is a reference.
    #[must_use]
    pub fn front_is_reference(&self) -> bool {
        self.parts.front().is_some_and(|part| part.by_reference)
    }

    /// Takes the first part, or its first `most` bytes if it is longer. Returns `None` if no bytes are
    /// left.
    pub fn take_front(&mut self, most: usize) -> Option<Bytes> {
        let len = self.front()?.len().min(most);
        Some(self.split_to(len))
    }

    /// Takes the first `len` bytes as one `Bytes`. They are not copied if they are all in the first
    /// part.
    ///
    /// # Panics
    ///
    /// Panics if fewer bytes are left.
    pub fn split_to(&mut self, len: usize) -> Bytes {
        self.copy_to_bytes(len)
    }
}

impl From<Bytes> for Chunks {
    fn from(part: Bytes) -> Self {
        let mut chunks = Self::new();
        chunks.push(part);
        chunks
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.front().map_or(&[], |front| front)
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "{count} bytes of {}", self.len);
        self.len -= count;
        while count > 0 {
            let Some(front) = self.parts.front_mut() else {
                return;
            };
            let taken = count.min(front.bytes.len());
            count -= taken;
            if front.by_reference {
                self.by_reference_len -= taken;
            }
            front.bytes.advance(taken);
            if front.bytes.is_empty() {
                self.parts.pop_front();
            }
        }
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        assert!(len <= self.len, "{len} bytes of {}", self.len);
        match self.front() {
            Some(front) if len <= front.len() => {
                let taken = front.slice(..len);
                self.advance(len);
                taken
            }
            _ => {
                let mut taken = Vec::with_capacity(len);
                while taken.len() < len {
                    let wanted = len - taken.len();
                    let chunk = self.chunk();
                    let part = chunk.len().min(wanted);
                    taken.extend_from_slice(&chunk[..part]);
                    self.advance(part);
                }
                taken.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks() -> Chunks {
        let mut chunks = Chunks::new();
        chunks.push(Bytes::from_static(b"ab"));
        chunks.push(Bytes::new());
        chunks.push_reference(Bytes::from_static(b"cde"));
        chunks.push_reference(Bytes::new());
        chunks.push(Bytes::from_static(b"f"));
        chunks
    }

    #[test]
    fn parts_are_taken_from_the_front() {
        let mut chunks = chunks();
        assert_eq!((chunks.len(), chunks.by_reference_len()), (6, 3));
        assert!(!chunks.front_is_reference());
        let first = chunks.front().unwrap().as_ptr();
        assert_eq!(chunks.split_to(1).as_ptr(), first);
        chunks.advance(1);
        assert!(chunks.front_is_reference());
        chunks.advance(1);
        assert_eq!((chunks.len(), chunks.by_reference_len()), (3, 2));
        assert_eq!(chunks.front(), Some(&Bytes::from_static(b"de")));
        assert_eq!(chunks.split_to(3), "def");
        assert!(chunks.is_empty() && chunks.front().is_none());
        assert_eq!(chunks.by_reference_len(), 0);
        assert_eq!(chunks.split_to(0), "");
    }

    #[test]
    fn the_first_bytes_are_in_the_first_parts() {
        let chunks = chunks();
        for (len, count) in [(0, 1), (1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (9, 3)] {
            assert_eq!(chunks.fronts(len).count(), count, "{len} bytes");
        }
        assert_eq!(Chunks::new().fronts(1).count(), 0);
    }

    #[test]
    fn a_buf_yields_all_parts() {
        let mut chunks = chunks();
        let mut all = [0; 6];
        chunks.copy_to_slice(&mut all);
        assert_eq!(&all, b"abcdef");
        assert_eq!(chunks.chunk(), b"");
    }

    #[test]
    #[should_panic = "7 bytes of 6"]
    fn no_more_than_all_bytes_are_taken() {
        chunks().advance(7);
    }
}
