//! [`Codec`]: how a message becomes bytes, and bytes a message.
//!
//! Stubs name one codec for the request and one for the response of each call:
//!
//! - [`ProstCodec`] takes any prost message.
//! - [`GeneratedCodec`] takes the messages for which `rpc-codegen` wrote [`GeneratedMessage`]. Its
//!   bytes and values are prost's.
//! - [`BytesCodec`] takes messages that are encoded already.
//!
//! The generated code uses [`field`], [`Writer`] and [`Reader`]. What a message may take of memory is
//! bounded (`budget.rs`), and what it takes of a poller's time too (`beside.rs`).

mod beside;
mod budget;
mod bytes_codec;
mod chunk_writer;
mod chunks;
mod decode_error;
pub mod field;
mod long_message;
mod memory;
mod message_buf;
mod reader;
mod scan;
mod shared;
mod writer;

use std::error::Error;
use std::fmt;

use bytes::{BufMut, Bytes};
use prost::{EncodeError, Message};

pub(crate) use self::beside::enter_poller_thread;
pub use self::beside::{BegunDecode, DecodeFuture};
pub(crate) use self::budget::MOST_WORK;
use self::budget::{Allowance, Decoding, ESTIMATED, UNSCANNED_LEN};
pub use self::bytes_codec::BytesCodec;
use self::chunk_writer::{allocate_memory, encode_chunks, encode_prost_chunks};
pub use self::chunks::Chunks;
pub use self::decode_error::DecodeError;
pub(crate) use self::long_message::LongMessage;
pub use self::memory::{Allocate, MessageMemory};
pub use self::message_buf::MessageBuf;
pub use self::reader::Reader;
pub use self::scan::{Scan, Stop};
use self::scan::{is_over_budget, scan_any};
use self::shared::decode_sharing;
pub use self::writer::Writer;
use self::writer::{BufWriter, SliceWriter};

/// Encodes and decodes messages of type `M`.
///
/// A codec has no state. Stubs pass one by value only to name its type.
pub trait Codec<M>: Send + 'static {
    /// Returns the length of the encoded message in bytes.
    fn encoded_len(message: &M) -> usize;

    /// Encodes the message into `out`, which must have the length of the encoded message.
    ///
    /// # Errors
    ///
    /// May return an error if the encoded message is longer or shorter than `out`. What `out` then
    /// contains is unspecified.
    fn encode(message: &M, out: &mut [u8]) -> Result<(), LengthChanged>;

    /// Appends the encoded message to a buffer. A field of type `Bytes` is given to
    /// [`BufMut::put`] as it is, and the buffer may take it without a copy.
    ///
    /// # Errors
    ///
    /// Returns an error if the buffer has too little room.
    fn encode_to(message: &M, out: &mut impl BufMut) -> Result<(), EncodeError>;

    /// Encodes a message of `len` bytes, its [`encoded_len`](Self::encoded_len), in parts. A field
    /// of type `Bytes` with at least [`BY_REFERENCE_LEN`] bytes may become a part without a copy.
    /// The other bytes are written once, into memory from `allocate`, or into the heap's if that
    /// returns `None`.
    ///
    /// # Errors
    ///
    /// Returns an error if the encoded message is longer or shorter than `len`.
    fn encode_chunks(
        message: &M,
        len: usize,
        allocate: Allocate<'_>,
    ) -> Result<Chunks, LengthChanged> {
        let mut chunks = Chunks::new();
        match allocate_memory(len, allocate) {
            Some(mut memory) => {
                Self::encode(message, &mut (*memory).as_mut()[..len])?;
                chunks.push(memory.freeze(len));
            }
            None => {
                let mut bytes = vec![0; len];
                Self::encode(message, &mut bytes)?;
                chunks.push(bytes.into());
            }
        }
        Ok(chunks)
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not an encoded message, or if the message would take too
    /// much memory.
    fn decode(bytes: &[u8]) -> Result<M, DecodeError>;

    /// Decodes a message from memory that its fields may share: a field of type `Bytes` with at
    /// least `share_from` bytes may become a slice of `bytes`. Shorter fields are copied, so that
    /// they do not keep the memory of the whole message.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not an encoded message, or if the message would take too
    /// much memory.
    fn decode_shared(bytes: &Bytes, share_from: usize) -> Result<Decoded<M>, DecodeError> {
        let _ = share_from;
        Ok(Decoded {
            message: Self::decode(bytes)?,
            copied_len: bytes.len(),
        })
    }

    /// Begins to decode a message like [`decode_shared`](Self::decode_shared), perhaps on a poller's
    /// thread, which should not be kept for long. Returns its outcome, or a future if another thread
    /// decodes it: see [`BegunDecode::beside`], which a codec of one's own may call here if its messages
    /// are `Send`. The codecs of this crate estimate first how long a message takes. By default, it is
    /// decoded at once.
    fn begin_decode(bytes: &Bytes, share_from: usize) -> BegunDecode<M> {
        BegunDecode::Done(Self::decode_shared(bytes, share_from))
    }
}

/// The length from which a field of type `Bytes` is encoded as a reference rather than copied.
///
/// A reference costs a part of its own: a reference count, and an element of a work request.
pub const BY_REFERENCE_LEN: usize = 4096;

/// A message that was decoded from shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<M> {
    /// The message.
    pub message: M,
    /// How many bytes were copied out of the memory into `bytes` and `string` fields. The whole
    /// length if the codec cannot tell.
    pub copied_len: usize,
}

/// The error of [`Codec::encode`]: the encoded message does not have the length of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthChanged;

impl fmt::Display for LengthChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the encoded message does not have the length of the buffer")
    }
}

impl Error for LengthChanged {}

/// The codec of any prost message: prost encodes and decodes it.
#[derive(Clone, Copy, Debug)]
pub struct ProstCodec;

impl<M: Message + Default + 'static> Codec<M> for ProstCodec {
    fn encoded_len(message: &M) -> usize {
        message.encoded_len()
    }

    fn encode(message: &M, mut out: &mut [u8]) -> Result<(), LengthChanged> {
        if message.encode(&mut out).is_err() || !out.is_empty() {
            return Err(LengthChanged);
        }
        Ok(())
    }

    fn encode_to(message: &M, out: &mut impl BufMut) -> Result<(), EncodeError> {
        message.encode(out)
    }

    fn encode_chunks(
        message: &M,
        len: usize,
        allocate: Allocate<'_>,
    ) -> Result<Chunks, LengthChanged> {
        encode_prost_chunks(message, len, allocate)
    }

    fn decode(bytes: &[u8]) -> Result<M, DecodeError> {
        check_any::<M>(bytes)?;
        Ok(M::decode(bytes)?)
    }

    fn decode_shared(bytes: &Bytes, share_from: usize) -> Result<Decoded<M>, DecodeError> {
        check_any::<M>(bytes)?;
        decode_sharing(bytes, share_from)
    }

    fn begin_decode(bytes: &Bytes, share_from: usize) -> BegunDecode<M> {
        BegunDecode::estimated::<Self>(bytes, share_from, scan_any)
    }
}

/// Checks that a message without generated code is not over its budget.
#[inline]
fn check_any<M>(bytes: &[u8]) -> Result<(), DecodeError> {
    let len = bytes.len();
    match len > UNSCANNED_LEN && is_over_budget(bytes, ESTIMATED, scan_any) {
        true => Err(ESTIMATED.exceeded::<M>(len)),
        false => Ok(()),
    }
}

/// Checks that a message with generated code is not over its budget, before prost decodes it.
fn check<M: GeneratedMessage>(bytes: &[u8]) -> Result<(), DecodeError> {
    let allowance = const { Allowance::new(M::DECODED_PER_BYTE) };
    match is_over_budget(bytes, allowance, M::scan_field) {
        true => Err(allowance.exceeded::<M>(bytes.len())),
        false => Ok(()),
    }
}

/// Returns the budget of a message with generated code, which has `len` bytes.
#[inline]
fn budget<M: GeneratedMessage>(len: usize) -> usize {
    const { Allowance::new(M::DECODED_PER_BYTE) }.budget(len)
}

/// A message with straight-line code for its known fields, written by `rpc-codegen`.
///
/// Encodes to the same bytes as prost. Decodes to the same value as prost, or not at all.
pub trait GeneratedMessage: Message + Default + 'static {
    /// The length of the encoded message with all fields set, if it is then always the same.
    const FULL_LEN: Option<usize> = None;

    /// How many bytes one encoded byte may become when this message is decoded as the outermost one,
    /// if that is set.
    const DECODED_PER_BYTE: Option<usize> = None;

    /// The length of the message in its `Box`, if it is in one.
    const BOXED_LEN: usize = 0;

    /// Returns the length of the encoded message in bytes.
    fn encoded_len(&self) -> usize;

    /// Writes the encoded message.
    ///
    /// # Errors
    ///
    /// Returns an error if `out` has too little room.
    fn encode<W: Writer>(&self, out: W) -> Result<W, W::Error>;

    /// Writes the encoded message, with all fields.
    ///
    /// # Errors
    ///
    /// Returns an error if `out` has too little room.
    fn encode_full<W: Writer>(&self, out: W) -> Result<W, W::Error> {
        GeneratedMessage::encode(self, out)
    }

    /// Decodes a message whose fields are all known, occur in the order in which prost encodes them
    /// and are well-formed. Messages may be nested up to `depth` levels.
    ///
    /// Returns `None` for all other messages, whether they are valid or not. Only prost can decode
    /// those, and it must begin at the first byte of the outermost message.
    ///
    /// An implementation has either this method or [`decode_fields`](Self::decode_fields), of which
    /// each calls the other one.
    fn decode(bytes: &[u8], depth: u32) -> Option<Self> {
        let decoding = Decoding::new(budget::<Self>(bytes.len()));
        Self::decode_fields(Reader::within(bytes, depth, &decoding))
    }

    /// Decodes a message like [`decode`](Self::decode), within the budget of the outermost message.
    fn decode_fields(fields: Reader<'_>) -> Option<Self> {
        GeneratedMessage::decode(fields.bytes(), fields.depth())
    }

    /// Decodes a message like [`decode`](Self::decode) if all fields occur.
    fn decode_full(fields: Reader<'_>) -> Option<Self> {
        let _ = fields;
        None
    }

    /// Passes the field with this number, before prost decodes it.
    ///
    /// # Errors
    ///
    /// Returns an error if the field is malformed, or would take more than the message's budget.
    fn scan_field(number: u32, fields: &mut Scan<'_>) -> Result<(), Stop> {
        scan_any(number, fields)
    }
}

/// Encodes a message into a slice of its length.
#[inline]
fn encode_exactly<M: GeneratedMessage>(message: &M, out: &mut [u8]) -> Result<(), LengthChanged> {
    let full = M::FULL_LEN == Some(out.len());
    let out = SliceWriter::new(out);
    match full {
        true => message.encode_full(out)?.finish(),
        false => GeneratedMessage::encode(message, out)?.finish(),
    }
}

/// Decodes a message if the generated code covers it.
#[inline]
fn decode_known<M: GeneratedMessage>(fields: Reader<'_>) -> Option<M> {
    if M::FULL_LEN == Some(fields.len())
        && let Some(message) = M::decode_full(fields)
    {
        return Some(message);
    }
    M::decode_fields(fields)
}

impl<M: GeneratedMessage> GeneratedMessage for Box<M> {
    const FULL_LEN: Option<usize> = M::FULL_LEN;
    const DECODED_PER_BYTE: Option<usize> = M::DECODED_PER_BYTE;
    const BOXED_LEN: usize = size_of::<M>();

    #[inline]
    fn encoded_len(&self) -> usize {
        GeneratedMessage::encoded_len(&**self)
    }

    #[inline]
    fn encode<W: Writer>(&self, out: W) -> Result<W, W::Error> {
        GeneratedMessage::encode(&**self, out)
    }

    #[inline]
    fn encode_full<W: Writer>(&self, out: W) -> Result<W, W::Error> {
        (**self).encode_full(out)
    }

    #[inline]
    fn decode_fields(fields: Reader<'_>) -> Option<Self> {
        fields.charge(1, Self::BOXED_LEN)?;
        M::decode_fields(fields).map(Box::new)
    }

    #[inline]
    fn decode_full(fields: Reader<'_>) -> Option<Self> {
        fields.charge(1, Self::BOXED_LEN)?;
        M::decode_full(fields).map(Box::new)
    }

    fn scan_field(number: u32, fields: &mut Scan<'_>) -> Result<(), Stop> {
        M::scan_field(number, fields)
    }
}

/// The codec of messages with generated code.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedCodec;

/// The number of levels of nested messages that generated code decodes. A wide message is several
/// levels: see [`levels`].
///
/// prost's limit is 100. Deeper messages than these are rare and go to prost, so its limit and its
/// error apply.
const MAX_DEPTH: u32 = 32;

/// Returns for how many levels a message of `size` bytes counts.
///
/// While a message is decoded, each level has its value on the stack, about four times: as fields, as
/// the message, as the result and as the caller's option. prost has none of it there, because it
/// merges fields into a message that is on the heap already. So the sizes of all levels are bounded:
/// 32 levels have 16 KiB, for which an optimized build takes 60 KiB of stack.
const fn levels(size: usize) -> u32 {
    1 + (size / 512) as u32
}

impl<M: GeneratedMessage> Codec<M> for GeneratedCodec {
    #[inline]
    fn encoded_len(message: &M) -> usize {
        GeneratedMessage::encoded_len(message)
    }

    #[inline]
    fn encode(message: &M, out: &mut [u8]) -> Result<(), LengthChanged> {
        encode_exactly(message, out)
    }

    fn encode_to(message: &M, out: &mut impl BufMut) -> Result<(), EncodeError> {
        if GeneratedMessage::encoded_len(message) > out.remaining_mut() {
            // This returns the error, which only prost can create.
            return Message::encode(message, out);
        }
        let Ok(_) = GeneratedMessage::encode(message, BufWriter::new(out));
        Ok(())
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<M, DecodeError> {
        if M::FULL_LEN == Some(bytes.len())
            && let Some(message) = M::decode_full(Reader::new(bytes, MAX_DEPTH))
        {
            return Ok(message);
        }
        decode_each(bytes)
    }

    fn encode_chunks(
        message: &M,
        len: usize,
        allocate: Allocate<'_>,
    ) -> Result<Chunks, LengthChanged> {
        encode_chunks(message, len, allocate)
    }

    fn decode_shared(bytes: &Bytes, share_from: usize) -> Result<Decoded<M>, DecodeError> {
        let budget = budget::<M>(bytes.len());
        let decoding = Decoding::sharing(budget, bytes, share_from);
        if let Some(message) = decode_known(Reader::within(bytes, MAX_DEPTH, &decoding)) {
            return Ok(Decoded {
                message,
                copied_len: bytes.len() - decoding.shared_len(),
            });
        }
        check::<M>(bytes)?;
        decode_sharing(bytes, share_from)
    }

    fn begin_decode(bytes: &Bytes, share_from: usize) -> BegunDecode<M> {
        BegunDecode::estimated::<Self>(bytes, share_from, M::scan_field)
    }
}

/// Decodes a message field by field. Not part of [`Codec::decode`], so that a message with all
/// fields is not moved.
#[inline(never)]
fn decode_each<M: GeneratedMessage>(bytes: &[u8]) -> Result<M, DecodeError> {
    let decoding = Decoding::new(budget::<M>(bytes.len()));
    match M::decode_fields(Reader::within(bytes, MAX_DEPTH, &decoding)) {
        Some(message) => Ok(message),
        None => decode_with_prost(bytes),
    }
}

/// Decodes a message that the generated code does not cover, from its first byte. Recursion limit,
/// unknown fields, merging and errors are then prost's.
#[cold]
#[inline(never)]
fn decode_with_prost<M: GeneratedMessage>(bytes: &[u8]) -> Result<M, DecodeError> {
    check::<M>(bytes)?;
    Ok(Message::decode(bytes)?)
}
