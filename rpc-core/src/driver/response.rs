//! [`Response`]: the response to a call, until its caller takes it.

use bytes::Bytes;

use crate::protocol::frame::{HEADER_LEN, ResponseHead};

/// The response to a call.
#[derive(Debug)]
pub(crate) struct Response<B> {
    pub(crate) head: ResponseHead,
    pub(crate) frame: ResponseFrame<B>,
}

/// The frame that holds the response to a call.
#[derive(Debug)]
pub(crate) enum ResponseFrame<B> {
    /// The frame is still in its receive slot.
    Slot(B),
    /// The frame was copied out, because the slot was needed and the response had not been taken
    /// yet.
    Copied(Vec<u8>),
    /// The message did not fit a frame.
    Long(Box<LongResponse>),
}

/// A response whose message did not fit a frame.
#[derive(Clone, Debug)]
pub(crate) struct LongResponse {
    pub(crate) metadata: Box<[u8]>,
    pub(crate) message: Bytes,
    /// Length from which fields share the message's memory.
    pub(crate) share_from: usize,
}

/// The metadata and the message of a response.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResponseBody<'a> {
    /// The body of a frame.
    Frame(&'a [u8]),
    Long(&'a LongResponse),
}

impl<B: AsRef<[u8]>> Response<B> {
    /// Returns the metadata and the message.
    pub(crate) fn body(&self) -> ResponseBody<'_> {
        let frame = match &self.frame {
            ResponseFrame::Long(long) => return ResponseBody::Long(long),
            ResponseFrame::Slot(frame) => frame.as_ref(),
            ResponseFrame::Copied(frame) => frame,
        };
        // The frame's header has been parsed.
        ResponseBody::Frame(&frame[HEADER_LEN..])
    }

    /// Returns metadata and message if they are in a frame and have at most `longest` bytes.
    #[inline]
    pub(crate) fn short_body(&self, longest: usize) -> Option<&[u8]> {
        match self.body() {
            ResponseBody::Frame(body) if body.len() <= longest => Some(body),
            _ => None,
        }
    }
}
