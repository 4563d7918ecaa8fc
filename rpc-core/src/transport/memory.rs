//! [`MessageMemory`]: memory for one message, which its transport has registered.

use bytes::Bytes;

/// Exclusive memory for one message. Dropping it gives it back, on whatever thread.
pub trait MessageMemory: AsMut<[u8]> + Send + 'static {
    /// Copies `bytes` to offset `at`, past the caches where that is faster: the sender does not read
    /// them again.
    ///
    /// # Panics
    ///
    /// Panics if they do not fit.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Ends writing. The first `len` bytes can be shared; the memory goes back when the last of their
    /// slices is dropped, on whatever thread.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer than `len` bytes.
    fn freeze(self: Box<Self>, len: usize) -> Bytes;
}

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
