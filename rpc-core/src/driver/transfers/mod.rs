//! Long messages: those that do not fit a slot.

use super::Driver;
use super::link::LinkKey;
use crate::protocol::connection::ProtocolError;
use crate::protocol::frame::{FrameHeader, TransferId};
use crate::transport::{ConnectionId, FetchKey, Transport};

impl<T: Transport> Driver<T> {
    /// Handles a frame of a long message, whose header has been checked and accounted.
    #[cold]
    pub(super) fn receive_long(&self, link: LinkKey, header: &FrameHeader, buf: T::RecvBuf) {
        let transfer = TransferId(header.call.0);
        let error = ProtocolError::UnknownTransfer { transfer };
        let state = &mut *self.state.borrow_mut();
        state.close_for_violation(link, buf, error);
    }

    #[cold]
    pub(super) fn fetched(&self, connection: ConnectionId, fetch: FetchKey, len: u32) {
        let _ = (connection, fetch, len);
    }

    #[cold]
    pub(super) fn fetch_cancelled(&self, connection: ConnectionId, fetch: FetchKey) {
        let _ = (connection, fetch);
    }
}
