//! [`MessageBuf`]: memory to fill for a message, which is then sent without a copy.

use std::fmt;
use std::io::{self, Read, Write};
use std::ops::{Deref, DerefMut};

use bytes::Bytes;

use super::MessageMemory;

/// Memory to fill for a field of type `Bytes`, from `allocate` of a poller or a channel.
///
/// It grows like a `BytesMut`, but only up to its capacity: it derefs to the bytes that have been
/// written. When it is frozen, it becomes `Bytes`. A field of a message may be those bytes, or a
/// slice of them. The poller that allocated them sends them from where they lie; other pollers copy
/// them once. The memory goes back to its pool when the last reference is dropped, on any thread.
///
/// If the poller has no registered memory of this length to spare, the memory is the heap's, and is
/// copied once when it is sent: [`is_registered`](Self::is_registered) tells.
///
/// ```
/// use bytes::{BufMut, Bytes};
///
/// // `LocalPoller::allocate` and `Channel::allocate` return the same type. Outside of a poller,
/// // the memory is the heap's.
/// let mut buf = rpc_core::allocate(64);
/// // Nothing has been written, so the slice is empty. Append slices,
/// buf.put_slice(b"head");
/// // what an encoder writes to a `BufMut`,
/// buf.put_with(|out| out.put_u32(7));
/// // and what a reader has.
/// buf.read_from(&mut &b"and a file"[..])?;
/// assert_eq!(buf.len(), 18);
/// // Or choose a length, and fill the slice.
/// buf.resize(20, b'.');
/// buf[18..].copy_from_slice(b"!?");
/// assert!(buf.ends_with(b"file!?"));
/// let bytes: Bytes = buf.freeze();
/// assert_eq!(bytes, "head\0\0\0\x07and a file!?");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// It does not implement [`BufMut`](bytes::BufMut), an unsafe trait, because this crate has no
/// unsafe code: [`put_with`](Self::put_with) passes one to an encoder.
pub struct MessageBuf {
    memory: Memory,
    /// Bytes that may be written.
    capacity: usize,
    /// Bytes that have been written.
    len: usize,
}

enum Memory {
    Registered(Box<dyn MessageMemory>),
    /// As long as the capacity.
    Heap(Vec<u8>),
}

impl MessageBuf {
    /// Creates a buffer over registered memory of at least `capacity` bytes.
    pub(crate) fn registered(mut memory: Box<dyn MessageMemory>, capacity: usize) -> Self {
        let capacity = capacity.min((*memory).as_mut().len());
        Self {
            memory: Memory::Registered(memory),
            capacity,
            len: 0,
        }
    }

    /// Creates a buffer over memory of the heap.
    pub(crate) fn heap(capacity: usize) -> Self {
        Self {
            memory: Memory::Heap(vec![0; capacity]),
            capacity,
            len: 0,
        }
    }

    /// Returns the number of bytes that have been written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing has been written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes that may be written in total: those that were asked for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of bytes that may still be written.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.capacity - self.len
    }

    /// Returns true if the memory is registered with a poller, which sends it without a copy.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(self.memory, Memory::Registered(_))
    }

    /// Appends bytes. Long slices are copied past the caches where that is faster.
    ///
    /// # Panics
    ///
    /// Panics if they exceed the remaining capacity.
    #[track_caller]
    pub fn put_slice(&mut self, bytes: &[u8]) {
        self.check_remaining(bytes.len());
        match &mut self.memory {
            Memory::Registered(memory) => memory.write(self.len, bytes),
            Memory::Heap(memory) => memory[self.len..][..bytes.len()].copy_from_slice(bytes),
        }
        self.len += bytes.len();
    }

    /// Appends what `write` writes to its argument: the memory behind the bytes that have been
    /// written, as a [`BufMut`](bytes::BufMut). Returns what `write` returns. An encoder that fails
    /// may have appended a part.
    ///
    /// ```
    /// use prost::Message;
    ///
    /// let mut buf = rpc_core::allocate(16);
    /// buf.put_with(|out| "text".to_owned().encode(out))?;
    /// assert_eq!(buf.freeze(), "\x0a\x04text");
    /// # Ok::<(), prost::EncodeError>(())
    /// ```
    pub fn put_with<T>(&mut self, write: impl FnOnce(&mut &mut [u8]) -> T) -> T {
        let remaining = self.remaining();
        let mut spare = self.spare_capacity_mut();
        let result = write(&mut spare);
        // Nothing was written if `write` has put a longer slice in its place.
        let written = remaining.saturating_sub(spare.len());
        self.advance_mut(written);
        result
    }

    /// Returns the memory behind the bytes that have been written. [`advance_mut`](Self::advance_mut)
    /// follows. It may contain bytes of earlier messages.
    pub fn spare_capacity_mut(&mut self) -> &mut [u8] {
        let (from, to) = (self.len, self.capacity);
        &mut self.all_mut()[from..to]
    }

    /// Appends the first `count` bytes of [`spare_capacity_mut`](Self::spare_capacity_mut), which the
    /// caller has written.
    ///
    /// # Panics
    ///
    /// Panics if they exceed the remaining capacity.
    #[track_caller]
    pub fn advance_mut(&mut self, count: usize) {
        self.check_remaining(count);
        self.len += count;
    }

    /// Appends what a reader returns, up to its end or until the buffer is full. Returns the number of
    /// bytes read.
    ///
    /// # Errors
    ///
    /// Returns the reader's error. What was read before it has been appended.
    pub fn read_from(&mut self, reader: &mut impl Read) -> io::Result<usize> {
        let begin = self.len;
        while self.remaining() > 0 {
            match reader.read(self.spare_capacity_mut()) {
                Ok(0) => break,
                Ok(count) => self.advance_mut(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.len - begin)
    }

    /// Changes the number of bytes written. New ones are `value`.
    ///
    /// # Panics
    ///
    /// Panics if they exceed the capacity.
    #[track_caller]
    pub fn resize(&mut self, len: usize, value: u8) {
        if let Some(added) = len.checked_sub(self.len) {
            self.check_remaining(added);
            self.spare_capacity_mut()[..added].fill(value);
        }
        self.len = len;
    }

    /// Keeps the first `len` bytes that have been written. Does nothing if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Removes all that has been written.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Ends writing, and returns the bytes that have been written.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        match self.memory {
            Memory::Registered(memory) => memory.freeze(self.len),
            Memory::Heap(mut memory) => {
                memory.truncate(self.len);
                memory.into()
            }
        }
    }

    #[track_caller]
    fn check_remaining(&self, count: usize) {
        let (len, capacity) = (self.len, self.capacity);
        assert!(
            count <= capacity - len,
            "{count} bytes do not fit: {len} of the {capacity} bytes of this `MessageBuf` are written, and \
             it does not grow"
        );
    }

    fn all(&self) -> &[u8] {
        match &self.memory {
            Memory::Registered(memory) => (**memory).as_ref(),
            Memory::Heap(memory) => memory,
        }
    }

    fn all_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Registered(memory) => (**memory).as_mut(),
            Memory::Heap(memory) => memory,
        }
    }
}

impl Write for MessageBuf {
    /// Appends as many of the bytes as fit.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.remaining());
        self.put_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the bytes that have been written.
impl Deref for MessageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all()[..self.len]
    }
}

impl DerefMut for MessageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.all_mut()[..len]
    }
}

impl AsRef<[u8]> for MessageBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for MessageBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<MessageBuf> for Bytes {
    fn from(buf: MessageBuf) -> Self {
        buf.freeze()
    }
}

impl fmt::Debug for MessageBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageBuf")
            .field("len", &self.len)
            .field("capacity", &self.capacity)
            .field("is_registered", &self.is_registered())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use prost::Message;

    use super::*;

    /// Memory that a transport might have registered.
    struct Block([u8; 64]);

    impl AsRef<[u8]> for Block {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl AsMut<[u8]> for Block {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl MessageMemory for Block {
        fn write(&mut self, at: usize, bytes: &[u8]) {
            self.0[at..][..bytes.len()].copy_from_slice(bytes);
        }

        fn freeze(self: Box<Self>, len: usize) -> Bytes {
            Bytes::copy_from_slice(&self.0[..len])
        }
    }

    fn bufs() -> [MessageBuf; 2] {
        let longer = Box::new(Block([9; 64]));
        [MessageBuf::heap(10), MessageBuf::registered(longer, 10)]
    }

    #[test]
    fn a_buffer_has_what_was_written() {
        for mut buf in bufs() {
            assert_eq!((buf.len(), buf.capacity(), buf.remaining()), (0, 10, 10));
            buf.put_slice(b"abc");
            buf.spare_capacity_mut()[0] = b'd';
            buf.advance_mut(1);
            assert_eq!(buf.read_from(&mut &b"ef"[..]).unwrap(), 2);
            buf.as_mut()[0] = b'A';
            buf.resize(7, b'x');
            assert_eq!(buf.write(b"12345").unwrap(), 3);
            assert_eq!(buf.remaining(), 0);
            assert_eq!(buf.read_from(&mut &b"more"[..]).unwrap(), 0);
            assert_eq!(buf.as_mut(), b"Abcdefx123");
            buf.resize(6, 0);
            assert_eq!(buf.freeze(), "Abcdef");
        }
    }

    #[test]
    fn a_buffer_is_a_slice_of_what_was_written() {
        for mut buf in bufs() {
            assert_eq!(&buf[..], b"");
            buf.resize(4, b'x');
            buf[1..3].copy_from_slice(b"ab");
            assert_eq!((&buf[..], buf.as_ref()), (&b"xabx"[..], &b"xabx"[..]));
            buf.truncate(9);
            buf.truncate(3);
            assert_eq!(buf.iter().rev().copied().collect::<Vec<_>>(), b"bax");
            buf.clear();
            assert!(buf.is_empty());
            buf.put_slice(b"z");
            assert_eq!(Bytes::from(buf), "z");
        }
    }

    #[test]
    fn an_encoder_appends_what_it_writes() {
        for mut buf in bufs() {
            buf.put_slice(b"ab");
            buf.put_with(|out| out.put_u16(0x6364));
            assert_eq!(&buf[..], b"abcd");
            let too_long =
                buf.put_with(|out| 1u64.encode(out).and("1234567".to_owned().encode(out)));
            assert!(too_long.is_err());
            // What was written before the error.
            assert_eq!(&buf[..], b"abcd\x08\x01");
            // A closure may replace its argument, which appends nothing but what it could have
            // written.
            buf.put_with(|out| *out = Box::leak(Box::new([0; 20])));
            assert_eq!(buf.len(), 6);
            buf.put_with(|out| *out = &mut []);
            assert_eq!(buf.len(), buf.capacity());
        }
    }

    #[test]
    fn nothing_is_written_past_the_capacity() {
        for buf in bufs() {
            let mut buf = std::panic::AssertUnwindSafe(buf);
            let result = std::panic::catch_unwind(move || buf.put_slice(&[0; 11]));
            assert!(result.is_err());
        }
    }

    #[test]
    fn a_buffer_that_overflows_says_what_was_written() {
        let overflows: [fn(&mut MessageBuf); 3] = [
            |buf| buf.put_slice(&[0; 7]),
            |buf| buf.advance_mut(7),
            |buf| buf.resize(11, 0),
        ];
        for overflow in overflows {
            let panic = std::panic::catch_unwind(|| {
                let mut buf = MessageBuf::heap(10);
                buf.put_slice(b"abcd");
                overflow(&mut buf);
            });
            let text = *panic.unwrap_err().downcast::<String>().unwrap();
            let expected = "7 bytes do not fit: 4 of the 10 bytes";
            assert!(text.starts_with(expected), "{text}");
        }
    }

    #[test]
    fn only_registered_memory_says_that_it_is() {
        let registered = bufs().map(|buf| buf.is_registered());
        assert_eq!(registered, [false, true]);
    }
}
