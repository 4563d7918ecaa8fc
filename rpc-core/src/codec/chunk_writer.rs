//! [`ChunkWriter`]: writes an encoded message into [`Chunks`].

use std::convert::Infallible;

use bytes::Bytes;
use prost::Message;

use super::writer::{Writer, encode_prost};
use super::{Allocate, BY_REFERENCE_LEN, Chunks, GeneratedMessage, LengthChanged, MessageMemory};

/// The length from which [`MessageMemory::write`] copies a slice.
const LONG: usize = 256;

/// Encodes a message of `len` bytes whose fields of type `Bytes` become references if they are long.
pub(super) fn encode_chunks<M: GeneratedMessage>(
    message: &M,
    len: usize,
    allocate: Allocate<'_>,
) -> Result<Chunks, LengthChanged> {
    let mut referenced = 0;
    if len >= BY_REFERENCE_LEN {
        let Ok(_) = GeneratedMessage::encode(message, ReferenceCounter(&mut referenced));
    }
    let written = len.checked_sub(referenced).ok_or(LengthChanged)?;
    let mut parts = Parts {
        memory: Memory::new(written, allocate),
        written: 0,
        len: written,
        references: Vec::new(),
    };
    GeneratedMessage::encode(message, ChunkWriter(&mut parts))?;
    let chunks = parts.finish()?;
    match chunks.len() == len {
        true => Ok(chunks),
        false => Err(LengthChanged),
    }
}

/// Encodes a message of `len` bytes with prost, into one part.
pub(super) fn encode_prost_chunks(
    message: &impl Message,
    len: usize,
    allocate: Allocate<'_>,
) -> Result<Chunks, LengthChanged> {
    let mut parts = Parts {
        memory: Memory::new(len, allocate),
        written: 0,
        len,
        references: Vec::new(),
    };
    ChunkWriter(&mut parts).put_prost(message, len)?;
    parts.finish()
}

/// Returns memory of at least `len` bytes from `allocate`, if there is some.
pub(super) fn allocate_memory(
    len: usize,
    allocate: Allocate<'_>,
) -> Option<Box<dyn MessageMemory>> {
    let mut memory = if len == 0 { None } else { allocate(len) }?;
    let enough = (*memory).as_mut().len() >= len;
    enough.then_some(memory)
}

/// The memory of the bytes that are written.
enum Memory {
    Allocated(Box<dyn MessageMemory>),
    Heap(Vec<u8>),
}

impl Memory {
    fn new(len: usize, allocate: Allocate<'_>) -> Self {
        match allocate_memory(len, allocate) {
            Some(memory) => Self::Allocated(memory),
            None => Self::Heap(Vec::with_capacity(len)),
        }
    }
}

/// The parts of a message that is being encoded.
struct Parts {
    memory: Memory,
    /// How many bytes of the memory have been written, and how many will be.
    written: usize,
    len: usize,
    /// The references, each with the number of bytes written before it.
    references: Vec<(usize, Bytes)>,
}

impl Parts {
    /// Counts the next `len` bytes as written, and returns where they begin.
    fn take(&mut self, len: usize) -> Result<usize, LengthChanged> {
        let at = self.written;
        let end = at.checked_add(len).ok_or(LengthChanged)?;
        if end > self.len {
            return Err(LengthChanged);
        }
        self.written = end;
        Ok(at)
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), LengthChanged> {
        let at = self.take(bytes.len())?;
        match &mut self.memory {
            Memory::Allocated(memory) if bytes.len() >= LONG => memory.write(at, bytes),
            Memory::Allocated(memory) => {
                (**memory).as_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Memory::Heap(out) => out.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finish(self) -> Result<Chunks, LengthChanged> {
        if self.written != self.len {
            return Err(LengthChanged);
        }
        let written = match self.memory {
            Memory::Allocated(memory) => memory.freeze(self.len),
            Memory::Heap(bytes) => bytes.into(),
        };
        let mut chunks = Chunks::new();
        let mut at = 0;
        for (before, reference) in self.references {
            chunks.push(written.slice(at..before));
            chunks.push_reference(reference);
            at = before;
        }
        chunks.push(written.slice(at..));
        Ok(chunks)
    }
}

/// Writes into [`Parts`].
struct ChunkWriter<'a>(&'a mut Parts);

impl Writer for ChunkWriter<'_> {
    type Error = LengthChanged;

    fn put_fixed<const T: usize, const N: usize>(
        &mut self,
        tag: [u8; T],
        value: [u8; N],
    ) -> Result<(), LengthChanged> {
        self.0.put(&tag)?;
        self.0.put(&value)
    }

    fn put_varint<const T: usize>(
        &mut self,
        tag: [u8; T],
        mut value: u64,
    ) -> Result<(), LengthChanged> {
        let mut encoded = [0; 10];
        let mut len = 0;
        while value >= 0x80 {
            encoded[len] = value as u8 | 0x80;
            value >>= 7;
            len += 1;
        }
        encoded[len] = value as u8;
        self.0.put(&tag)?;
        self.0.put(&encoded[..=len])
    }

    fn put_slice(&mut self, bytes: &[u8]) -> Result<(), LengthChanged> {
        self.0.put(bytes)
    }

    fn put_bytes(&mut self, bytes: &Bytes) -> Result<(), LengthChanged> {
        if bytes.len() < BY_REFERENCE_LEN {
            return self.0.put(bytes);
        }
        self.0.references.push((self.0.written, bytes.clone()));
        Ok(())
    }

    fn put_message(
        &mut self,
        message: &impl GeneratedMessage,
        _: usize,
    ) -> Result<(), LengthChanged> {
        GeneratedMessage::encode(message, ChunkWriter(self.0)).map(drop)
    }

    fn put_prost(&mut self, message: &impl Message, len: usize) -> Result<(), LengthChanged> {
        let at = self.0.take(len)?;
        match &mut self.0.memory {
            Memory::Allocated(memory) => {
                encode_prost(message, &mut (**memory).as_mut()[at..at + len])
            }
            Memory::Heap(out) => {
                message.encode_raw(out);
                match out.len() == at + len {
                    true => Ok(()),
                    false => Err(LengthChanged),
                }
            }
        }
    }
}

/// Counts the bytes that become references.
struct ReferenceCounter<'a>(&'a mut usize);

impl Writer for ReferenceCounter<'_> {
    type Error = Infallible;

    #[inline]
    fn put_fixed<const T: usize, const N: usize>(
        &mut self,
        _: [u8; T],
        _: [u8; N],
    ) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline]
    fn put_varint<const T: usize>(&mut self, _: [u8; T], _: u64) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline]
    fn put_slice(&mut self, _: &[u8]) -> Result<(), Infallible> {
        Ok(())
    }

    fn put_bytes(&mut self, bytes: &Bytes) -> Result<(), Infallible> {
        if bytes.len() >= BY_REFERENCE_LEN {
            *self.0 += bytes.len();
        }
        Ok(())
    }

    fn put_message(
        &mut self,
        message: &impl GeneratedMessage,
        len: usize,
    ) -> Result<(), Infallible> {
        if len >= BY_REFERENCE_LEN {
            GeneratedMessage::encode(message, ReferenceCounter(self.0)).map(drop)?;
        }
        Ok(())
    }

    fn put_prost(&mut self, _: &impl Message, _: usize) -> Result<(), Infallible> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use prost::DecodeError;
    use prost::encoding::{DecodeContext, WireType};

    use bytes::BufMut;

    use super::*;
    use crate::codec::field::{self, Field};
    use crate::codec::{Codec, GeneratedCodec, ProstCodec};

    /// A message that the user implemented: its length is wrong.
    #[derive(Debug, Default)]
    struct Wrong {
        stated: usize,
        encoded: usize,
    }

    impl Message for Wrong {
        fn encode_raw(&self, buf: &mut impl BufMut) {
            buf.put_bytes(7, self.encoded);
        }

        fn merge_field(
            &mut self,
            _: u32,
            _: WireType,
            _: &mut impl Buf,
            _: DecodeContext,
        ) -> Result<(), DecodeError> {
            Ok(())
        }

        fn encoded_len(&self) -> usize {
            self.stated
        }

        fn clear(&mut self) {}
    }

    /// A message with generated code that contains it.
    #[derive(Debug, Default)]
    struct Outer(Wrong);

    impl Message for Outer {
        fn encode_raw(&self, _: &mut impl BufMut) {}

        fn merge_field(
            &mut self,
            _: u32,
            _: WireType,
            _: &mut impl Buf,
            _: DecodeContext,
        ) -> Result<(), DecodeError> {
            Ok(())
        }

        fn encoded_len(&self) -> usize {
            0
        }

        fn clear(&mut self) {}
    }

    impl GeneratedMessage for Outer {
        fn encoded_len(&self) -> usize {
            1 + field::Extern::len(&self.0)
        }

        fn encode<W: Writer>(&self, mut out: W) -> Result<W, W::Error> {
            field::Extern::encode([0x0a], &self.0, &mut out)?;
            Ok(out)
        }
    }

    struct Block(Vec<u8>);

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
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn freeze(self: Box<Self>, len: usize) -> Bytes {
            Bytes::from(self.0).slice(..len)
        }
    }

    #[test]
    fn a_wrong_length_in_user_code_is_an_error() {
        for (stated, encoded) in [(10, 9), (10, 11), (10, 1000), (0, 1), (5000, 10)] {
            for memory in [true, false] {
                let mut allocate = |len: usize| {
                    let block = || Box::new(Block(vec![0; len])) as Box<dyn MessageMemory>;
                    memory.then(block)
                };
                let wrong = || Wrong { stated, encoded };
                let len = <ProstCodec as Codec<Wrong>>::encoded_len(&wrong());
                let alone = ProstCodec::encode_chunks(&wrong(), len, &mut allocate);
                assert_eq!(alone.map(|chunks| chunks.len()), Err(LengthChanged));
                let outer = Outer(wrong());
                let len = <GeneratedCodec as Codec<Outer>>::encoded_len(&outer);
                let nested = GeneratedCodec::encode_chunks(&outer, len, &mut allocate);
                assert_eq!(nested.map(|chunks| chunks.len()), Err(LengthChanged));
                let mut out = vec![0; len];
                assert_eq!(GeneratedCodec::encode(&outer, &mut out), Err(LengthChanged));
            }
        }
    }

    #[test]
    fn memory_that_is_too_short_is_not_used() {
        let right = Wrong {
            stated: 10,
            encoded: 10,
        };
        let chunks = ProstCodec::encode_chunks(&right, 10, &mut |_| Some(Box::new(Block(vec![0]))));
        assert_eq!(chunks.map(|chunks| chunks.len()), Ok(10));
    }
}
