//! [`BytesCodec`]: messages that stay bytes.

use bytes::{BufMut, Bytes};
use prost::{EncodeError, Message};

use super::{Allocate, Chunks, Codec, DecodeError, Decoded, LengthChanged};

/// The codec of messages that are encoded already: a message is its bytes.
///
/// It is for programs that pass messages on, such as proxies, and for tools that do not have the types
/// of the messages. A message that does not fit a frame is sent from where it lies, like a long field
/// of type `Bytes`. A received one is a slice of the memory in which it arrived, if it is long, and a
/// copy otherwise.
///
/// ```
/// use rpc_core::bytes::Bytes;
/// use rpc_core::{BytesCodec, CallError, Channel, MethodSpec, Request, SendCaller};
///
/// /// Makes a call with an encoded message, and returns the encoded response.
/// async fn call(
///     channel: &Channel,
///     method: &'static MethodSpec,
///     message: Bytes,
/// ) -> Result<Bytes, CallError> {
///     let request = Request::new(message);
///     let response = channel.unary_with(method, request, BytesCodec, BytesCodec).await?;
///     Ok(response.into_inner())
/// }
/// # let _ = call;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BytesCodec;

impl Codec<Bytes> for BytesCodec {
    #[inline]
    fn encoded_len(message: &Bytes) -> usize {
        message.len()
    }

    #[inline]
    fn encode(message: &Bytes, out: &mut [u8]) -> Result<(), LengthChanged> {
        if out.len() != message.len() {
            return Err(LengthChanged);
        }
        out.copy_from_slice(message);
        Ok(())
    }

    fn encode_to(message: &Bytes, out: &mut impl BufMut) -> Result<(), EncodeError> {
        if message.len() > out.remaining_mut() {
            // This returns the error, which only prost can create. prost takes the bytes for a field,
            // which is longer still.
            return message.encode(out);
        }
        out.put(message.clone());
        Ok(())
    }

    fn encode_chunks(
        message: &Bytes,
        len: usize,
        _: Allocate<'_>,
    ) -> Result<Chunks, LengthChanged> {
        if len != message.len() {
            return Err(LengthChanged);
        }
        let mut chunks = Chunks::new();
        chunks.push_reference(message.clone());
        Ok(chunks)
    }

    #[inline]
    fn decode(bytes: &[u8]) -> Result<Bytes, DecodeError> {
        Ok(Bytes::copy_from_slice(bytes))
    }

    fn decode_shared(bytes: &Bytes, share_from: usize) -> Result<Decoded<Bytes>, DecodeError> {
        Ok(match bytes.len() >= share_from {
            true => Decoded {
                message: bytes.clone(),
                copied_len: 0,
            },
            false => Decoded {
                message: Bytes::copy_from_slice(bytes),
                copied_len: bytes.len(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_its_bytes() {
        for len in [0, 1, 5000] {
            let message = Bytes::from(vec![7; len]);
            assert_eq!(BytesCodec::encoded_len(&message), len);
            let mut out = vec![0; len];
            assert_eq!(BytesCodec::encode(&message, &mut out), Ok(()));
            assert_eq!(BytesCodec::decode(&out).unwrap(), message);
            let mut appended = vec![1];
            BytesCodec::encode_to(&message, &mut appended).unwrap();
            assert_eq!(appended[1..], message);
        }
    }

    #[test]
    fn another_length_is_an_error() {
        let message = Bytes::from_static(b"abc");
        for len in [2, 4] {
            let encoded = BytesCodec::encode(&message, &mut vec![0; len]);
            assert_eq!(encoded, Err(LengthChanged));
            let chunks = BytesCodec::encode_chunks(&message, len, &mut |_| None);
            assert_eq!(chunks.map(|chunks| chunks.len()), Err(LengthChanged));
        }
        let error = BytesCodec::encode_to(&message, &mut &mut [0; 2][..]).unwrap_err();
        assert_eq!(error.remaining(), 2);
    }

    #[test]
    fn a_long_message_is_not_copied() {
        let message = Bytes::from(vec![7; 5000]);
        let chunks = BytesCodec::encode_chunks(&message, 5000, &mut |_| None).unwrap();
        assert!(chunks.front_is_reference());
        assert_eq!(chunks.front().unwrap().as_ptr(), message.as_ptr());

        let shared = BytesCodec::decode_shared(&message, 5000).unwrap();
        assert_eq!(shared.message.as_ptr(), message.as_ptr());
        assert_eq!(shared.copied_len, 0);
        let copied = BytesCodec::decode_shared(&message, 5001).unwrap();
        assert_ne!(copied.message.as_ptr(), message.as_ptr());
        assert_eq!((copied.message, copied.copied_len), (message, 5000));
    }
}
