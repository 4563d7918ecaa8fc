//! Adds the client's side of a connection: the session's parameters, and the promise of its receives.

use prost::Message;

use super::Driver;
use super::handle::ConnectedLink;
use crate::protocol::connection::Connection;
use crate::protocol::credit::UNCREDITED_RECEIVES;
use crate::protocol::session::{ClientSession, ServerSession, clamp_in_flight, stated_message_len};
use crate::transport::{ConnectError, Connected, Transport};

impl<T: Transport> Driver<T> {
    /// Encodes this side's session parameters for a handshake.
    pub(crate) fn client_session(&self) -> Vec<u8> {
        let state = self.state.borrow();
        let limits = state.links.transport.limits();
        let stream_window = limits.stream_window();
        let max_in_flight = clamp_in_flight(limits.max_in_flight);
        ClientSession::new(max_in_flight, stream_window, stated_message_len(limits)).encode_to_vec()
    }

    /// Adds a connection. `connect` performs its handshake, or has already performed it.
    pub(crate) fn establish(
        &self,
        address: &str,
        connect: impl FnOnce(&mut T) -> Result<Connected, ConnectError>,
    ) -> Result<ConnectedLink, ConnectError> {
        let state = &mut *self.state.borrow_mut();
        // The receives for the server's frames without a credit.
        if !state.links.promise_receives(UNCREDITED_RECEIVES) {
            return Err(no_receive_left(address));
        }
        let connected = match connect(&mut state.links.transport) {
            Ok(connected) => connected,
            Err(error) => {
                state.links.budget.release(UNCREDITED_RECEIVES);
                return Err(error);
            }
        };
        let session = match ServerSession::accept(&connected.session) {
            Ok(session) => session,
            Err(reason) => {
                // The close event will find no link for this connection, so the promise is released
                // here.
                state.links.budget.release(UNCREDITED_RECEIVES);
                state.links.transport.close(connected.connection);
                return Err(ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason,
                });
            }
        };
        let max_in_flight = clamp_in_flight(state.links.transport.limits().max_in_flight);
        let mut agreed = session.agreed();
        agreed.max_in_flight = agreed.max_in_flight.min(max_in_flight);
        let connection = Connection::client(&agreed);
        let link = state
            .links
            .add_client(connected.connection, connection, &session);
        let lengths = state.links.send_limits(link);
        Ok(ConnectedLink {
            link,
            session,
            lengths,
        })
    }
}

fn no_receive_left(address: &str) -> ConnectError {
    ConnectError::Refused {
        address: address.to_owned(),
        reason: "no receive is left on this side, all are promised to other connections: raise `connections`"
            .to_owned(),
    }
}
