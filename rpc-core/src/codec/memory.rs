//! [`MessageMemory`]: where the codec writes the parts of an encoded message that it copies.

use bytes::Bytes;

/// Memory for an encoded message: registered memory of a transport, which the device can read.
///
/// The slices have the requested length or are longer.
pub trait MessageMemory: AsRef<[u8]> + AsMut<[u8]> + Send + 'static {
    /// Copies `bytes` to offset `at`. Goes past the caches where that is faster, so it suits long
    /// slices; short ones are written to [`AsMut::as_mut`].
    ///
    /// # Panics
    ///
    /// Panics if the bytes extend past the end of the memory.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Ends writing, and returns the first `len` bytes. The memory is given back when the last
    /// reference to it is dropped.
    ///
    /// # Panics
    ///
    /// Panics if the memory is shorter.
    fn freeze(self: Box<Self>, len: usize) -> Bytes;
}

/// A function that returns memory of at least the given number of bytes, or `None` if the heap serves
/// as well.
pub type Allocate<'a> = &'a mut dyn FnMut(usize) -> Option<Box<dyn MessageMemory>>;
