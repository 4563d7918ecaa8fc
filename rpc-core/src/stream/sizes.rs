//! [`StreamSizes`]: the sizes of a stream.

/// The sizes of a stream that the handshake has determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamSizes {
    /// Most bytes of metadata and messages in one frame.
    pub(crate) frame_room: usize,
    /// Bytes of messages that the peer may send before this side grants more.
    pub(crate) inbound_window: u32,
    /// Bytes of messages that this side may send before the peer grants more.
    pub(crate) outbound_window: u32,
    /// Whether messages that wait together share a frame.
    pub(crate) coalesces: bool,
}
