//! [`Unread`]: responses of which only the arrival counts.

use prost_reflect::prost::EncodeError;
use verbline::message::bytes::{BufMut, Bytes};
use verbline::message::{Codec, DecodeError, Decoded, LengthChanged};

/// The codec of messages that nobody reads: any bytes decode to `()`, and are neither copied nor kept. As
/// bytes, `()` is the empty message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread;

impl Codec<()> for Unread {
    #[inline]
    fn encoded_len((): &()) -> usize {
        0
    }

    #[inline]
    fn encode((): &(), out: &mut [u8]) -> Result<(), LengthChanged> {
        out.is_empty().then_some(()).ok_or(LengthChanged)
    }

    fn encode_to((): &(), _: &mut impl BufMut) -> Result<(), EncodeError> {
        Ok(())
    }

    #[inline]
    fn decode(_: &[u8]) -> Result<(), DecodeError> {
        Ok(())
    }

    fn decode_shared(_: &Bytes, _: usize) -> Result<Decoded<()>, DecodeError> {
        Ok(Decoded {
            message: (),
            copied_len: 0,
        })
    }
}
