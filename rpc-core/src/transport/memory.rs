//! [`HeapMemory`]: memory for a message, of a transport that registers none.

use bytes::Bytes;

use crate::codec::MessageMemory;

/// Memory of the heap, for transports that register none.
#[derive(Debug)]
pub struct HeapMemory(Vec<u8>);

impl HeapMemory {
    /// Allocates `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self(vec![0; len])
    }
}

impl AsRef<[u8]> for HeapMemory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for HeapMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl MessageMemory for HeapMemory {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn freeze(self: Box<Self>, len: usize) -> Bytes {
        assert!(len <= self.0.len(), "fewer than {len} bytes");
        let mut bytes = Bytes::from(self.0);
        bytes.truncate(len);
        bytes
    }
}
