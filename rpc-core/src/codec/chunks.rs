//! [`Chunks`]: an encoded message in parts.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

/// An encoded message in parts, each of which is shared memory. Reading it takes bytes from its
/// front.
#[derive(Clone, Debug, Default)]
pub struct Chunks {
    parts: VecDeque<Bytes>,
    len: usize,
}

impl Chunks {
    /// Creates an empty message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a part.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.len += part.len();
            self.parts.push_back(part);
        }
    }

    /// Returns the number of bytes left.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first part.
    #[must_use]
    pub fn front(&self) -> Option<&Bytes> {
        self.parts.front()
    }

    /// Takes at most `most` bytes of the first part. Returns `None` if no bytes are left.
    pub fn take_front(&mut self, most: usize) -> Option<Bytes> {
        let front = self.parts.front_mut()?;
        let taken = front.split_to(most.min(front.len()));
        self.len -= taken.len();
        if front.is_empty() {
            self.parts.pop_front();
        }
        Some(taken)
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
        self.parts.front().map_or(&[], |part| part)
    }

    /// # Panics
    ///
    /// Panics if fewer than `count` bytes are left.
    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "fewer than {count} bytes are left");
        while count > 0 {
            let Some(taken) = self.take_front(count) else {
                return;
            };
            count -= taken.len();
        }
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        assert!(len <= self.len, "fewer than {len} bytes are left");
        if let Some(front) = self.front()
            && front.len() >= len
        {
            return self.take_front(len).unwrap_or_default();
        }
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let Some(taken) = self.take_front(len - bytes.len()) else {
                break;
            };
            bytes.extend_from_slice(&taken);
        }
        bytes.into()
    }
}
