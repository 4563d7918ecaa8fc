//! [`Writer`]: where generated code puts the parts of an encoded message.

use std::convert::Infallible;
use std::mem;

use bytes::{BufMut, Bytes};
use prost::Message;

use super::{GeneratedMessage, LengthChanged, encode_exactly};

/// Takes the parts of an encoded message in order.
#[expect(
    clippy::missing_errors_doc,
    reason = "the error is the same for all methods, and its type states it"
)]
pub trait Writer: Sized {
    /// The error if there is too little room.
    type Error;

    /// Writes a tag and a value of fixed length.
    fn put_fixed<const T: usize, const N: usize>(
        &mut self,
        tag: [u8; T],
        value: [u8; N],
    ) -> Result<(), Self::Error>;

    /// Writes a tag and a varint.
    fn put_varint<const T: usize>(&mut self, tag: [u8; T], value: u64) -> Result<(), Self::Error>;

    /// Writes bytes.
    fn put_slice(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Writes bytes that the buffer may share.
    fn put_bytes(&mut self, bytes: &Bytes) -> Result<(), Self::Error>;

    /// Writes a message of `len` bytes.
    fn put_message(
        &mut self,
        message: &impl GeneratedMessage,
        len: usize,
    ) -> Result<(), Self::Error>;

    /// Writes a message of `len` bytes, which prost encodes.
    fn put_prost(&mut self, message: &impl Message, len: usize) -> Result<(), Self::Error>;
}

/// Encodes a message with prost into a slice of its length. Does not panic if the code of the
/// message, which may be the user's, returns a wrong length.
pub(super) fn encode_prost(message: &impl Message, out: &mut [u8]) -> Result<(), LengthChanged> {
    let mut excess = Vec::new();
    let mut out = out.chain_mut(&mut excess);
    message.encode_raw(&mut out);
    let (rest, excess) = out.into_inner();
    match rest.is_empty() && excess.is_empty() {
        true => Ok(()),
        false => Err(LengthChanged),
    }
}

/// Writes into a slice, which the message must fill.
#[derive(Debug)]
pub(super) struct SliceWriter<'a>(&'a mut [u8]);

impl<'a> SliceWriter<'a> {
    #[inline]
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self(out)
    }

    /// Checks that the slice is full.
    #[inline]
    pub(super) fn finish(self) -> Result<(), LengthChanged> {
        match self.0 {
            [] => Ok(()),
            _ => Err(LengthChanged),
        }
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a mut [u8], LengthChanged> {
        let Some((taken, rest)) = mem::take(&mut self.0).split_at_mut_checked(len) else {
            return Err(LengthChanged);
        };
        self.0 = rest;
        Ok(taken)
    }
}

impl Writer for SliceWriter<'_> {
    type Error = LengthChanged;

    #[inline]
    fn put_fixed<const T: usize, const N: usize>(
        &mut self,
        tag: [u8; T],
        value: [u8; N],
    ) -> Result<(), LengthChanged> {
        // One check for both parts.
        let (tag_out, value_out) = self.take(T + N)?.split_at_mut(T);
        tag_out.copy_from_slice(&tag);
        value_out.copy_from_slice(&value);
        Ok(())
    }

    #[inline]
    fn put_varint<const T: usize>(
        &mut self,
        tag: [u8; T],
        mut value: u64,
    ) -> Result<(), LengthChanged> {
        if value < 0x80 {
            return self.put_fixed(tag, [value as u8]);
        }
        if value < 0x4000 {
            return self.put_fixed(tag, [value as u8 | 0x80, (value >> 7) as u8]);
        }
        self.take(T)?.copy_from_slice(&tag);
        while value >= 0x80 {
            self.take(1)?[0] = value as u8 | 0x80;
            value >>= 7;
        }
        self.take(1)?[0] = value as u8;
        Ok(())
    }

    #[inline]
    fn put_slice(&mut self, bytes: &[u8]) -> Result<(), LengthChanged> {
        self.take(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    #[inline]
    fn put_bytes(&mut self, bytes: &Bytes) -> Result<(), LengthChanged> {
        self.put_slice(bytes)
    }

    #[inline]
    fn put_message(
        &mut self,
        message: &impl GeneratedMessage,
        len: usize,
    ) -> Result<(), LengthChanged> {
        encode_exactly(message, self.take(len)?)
    }

    fn put_prost(&mut self, message: &impl Message, len: usize) -> Result<(), LengthChanged> {
        encode_prost(message, self.take(len)?)
    }
}

/// Appends to a buffer, which has room for the whole message.
#[derive(Debug)]
pub(super) struct BufWriter<'a, B>(&'a mut B);

impl<'a, B: BufMut> BufWriter<'a, B> {
    pub(super) fn new(out: &'a mut B) -> Self {
        Self(out)
    }
}

impl<B: BufMut> Writer for BufWriter<'_, B> {
    type Error = Infallible;

    fn put_fixed<const T: usize, const N: usize>(
        &mut self,
        tag: [u8; T],
        value: [u8; N],
    ) -> Result<(), Infallible> {
        self.0.put_slice(&tag);
        self.0.put_slice(&value);
        Ok(())
    }

    fn put_varint<const T: usize>(
        &mut self,
        tag: [u8; T],
        mut value: u64,
    ) -> Result<(), Infallible> {
        self.0.put_slice(&tag);
        while value >= 0x80 {
            self.0.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.put_u8(value as u8);
        Ok(())
    }

    fn put_slice(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.put_slice(bytes);
        Ok(())
    }

    fn put_bytes(&mut self, bytes: &Bytes) -> Result<(), Infallible> {
        self.0.put(bytes.clone());
        Ok(())
    }

    fn put_message(&mut self, message: &impl GeneratedMessage, _: usize) -> Result<(), Infallible> {
        GeneratedMessage::encode(message, BufWriter(self.0)).map(|_| ())
    }

    fn put_prost(&mut self, message: &impl Message, _: usize) -> Result<(), Infallible> {
        message.encode_raw(self.0);
        Ok(())
    }
}
