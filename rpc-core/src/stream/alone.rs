//! [`send`]: a message goes straight to a frame, on the thread of its stream's poller.
//!
//! ```text
//!  several in a row:  encode ─▶ batch ─ push ▶ chunks ─ signal, the next turn ─▶ message frame
//!  alone:             encode ─▶ message frame
//! ```
//!
//! Messages in a row share frames, and a sender does not know what the application sends next. But an
//! application that has got a message since it sent the last one probably waits for the next one, too.
//! So the first message after each that has arrived goes alone, and those behind it wait as always. A
//! `Stream` knows more than a sender: its message goes alone if the stream is pending behind it.

use super::core::StreamCore;
use super::outbound::FrameRoom;
use crate::codec::Codec;

/// Sends a message at once, if it may go alone. Returns true if it was sent. If not, nothing has changed.
#[inline]
pub(super) fn send<Q: Codec<M>, M>(core: &StreamCore, room: FrameRoom, message: &M) -> bool {
    if !core.expects_lone_message() {
        return false;
    }
    let len = Q::encoded_len(message);
    if len > room.bytes || len > room.longest_message.bytes() {
        return false;
    }
    core.send_alone(len, &mut |out| Q::encode(message, out).is_ok())
}
