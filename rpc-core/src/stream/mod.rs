//! Streams: calls with any number of messages in one direction or both.
//!
//! The application holds one end of each direction, and the driver the other:
//! [`StreamCore`](self::core::StreamCore) (`core.rs`) lies between them.
//!
//! ```text
//!  application ── encode ──▶ batch ── push ──▶ chunks ── next_frame ──▶ message frame
//!   a Stream    (pump.rs)          outbound.rs │  ▲                          │
//!   Sender      (sender.rs)        sent while  │  │ grants            one receive of
//!   Responses   (responses.rs)     the window  ▼  │                   the connection's window
//!                                  of the stream allows                      ▼
//!  application ◀─ decode ── batch ◀── take ── arrived batches ◀── receive ── message frame
//!   Streaming   (streaming.rs)       inbound.rs
//! ```
//!
//! - A *batch* is a sequence of encoded messages with a length before each (`batch.rs`). Both ends of
//!   the application encode and decode without the lock of the core, and take it once per batch. A
//!   linked [`Sender`](sender::Sender) takes it once per message, because nothing polls it between
//!   two messages. A message that is probably alone passes neither a batch nor a chunk (`alone.rs`).
//! - A *chunk* becomes the body of one frame. Messages that wait together share a chunk, and a
//!   message that is alone leaves alone. Nothing waits for a timer.
//!
//! A `Streaming` may have another source than a connection (`source.rs`): a channel over another
//! protocol, or a mock.
//!
//! # Windows
//!
//! Two windows apply, and both count what the receiver has promised:
//!
//! - the connection's, in receives: every message frame takes one, and it is owed again as soon as
//!   the frame's messages are in [`Inbound`](inbound::Inbound);
//! - the stream's, in bytes of batches: a chunk waits while the window is smaller. It is owed again
//!   when the reader takes the batch, so a reader that does not read stops its own stream only.
//!
//! At the other end, at most four frames wait in the core, and then the application waits. A server's end also
//! waits while its host leaves long messages unread (`unread.rs`).
//!
//! # Ends
//!
//! | what happens | what it ends |
//! | --- | --- |
//! | the client's stream ends, or its `Sender` is dropped | half-close: the handler's `Streaming` returns `None` |
//! | the handler returns | the call: the client's `Streaming` returns `None` or the status; the client's stream is dropped |
//! | the client's `Streaming` or call is dropped | the call, which is cancelled; the client's stream is dropped with it |
//! | the handler's `Streaming` is dropped | nothing: the client's messages are discarded as they arrive |
//! | a message is longer than its receiver permits | the call, with `RESOURCE_EXHAUSTED` |
//! | a message cannot be decoded | on a client the call, which is cancelled; in a handler only what it reads |

pub(crate) mod alone;
pub(crate) mod batch;
pub(crate) mod core;
pub(crate) mod end;
pub(crate) mod from_fn;
pub(crate) mod inbound;
pub(crate) mod intercepted;
pub(crate) mod kept;
pub(crate) mod long;
pub(crate) mod outbound;
pub(crate) mod pump;
pub(crate) mod reader;
pub(crate) mod request;
pub(crate) mod responses;
pub(crate) mod sender;
pub(crate) mod source;
pub(crate) mod streaming;
mod traffic;
pub(crate) mod turns;
mod unread;
pub(crate) mod wakers;
pub(crate) mod window;

#[cfg(test)]
mod tests;
