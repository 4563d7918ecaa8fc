//! Adds the client's side of a connection: the session's parameters, and the promise of its receives.

use prost::Message;

use super::Driver;
use super::handle::ConnectedLink;
use crate::protocol::connection::Connection;
use crate::protocol::session::{ClientSession, ServerSession, clamp_in_flight};
use crate::transport::{ConnectError, Connected, Transport};

impl<T: Transport> Driver<T> {
    /// Encodes this side's session parameters for a handshake.
    pub(crate) fn client_session(&self) -> Vec<u8> {
        let max_in_flight = self.state.borrow().transport.limits().max_in_flight;
        ClientSession::new(clamp_in_flight(max_in_flight)).encode_to_vec()
    }

    /// Adds a connection. `connect` performs its handshake, or has already performed it.
    pub(crate) fn establish(
        &self,
        address: &str,
        connect: impl FnOnce(&mut T) -> Result<Connected, ConnectError>,
    ) -> Result<ConnectedLink, ConnectError> {
        let state = &mut *self.state.borrow_mut();
        // The receive for the server's credit frame.
        if !state.promise_receive() {
            return Err(no_receive_left(address));
        }
        let connected = match connect(&mut state.transport) {
            Ok(connected) => connected,
            Err(error) => {
                state.budget.release(1);
                return Err(error);
            }
        };
        let session = match ServerSession::accept(&connected.session) {
            Ok(session) => session,
            Err(reason) => {
                // The close event will find no link for this connection, so the promise is released
                // here.
                state.budget.release(1);
                state.transport.close(connected.connection);
                return Err(ConnectError::NotVerbline {
                    address: address.to_owned(),
                    reason,
                });
            }
        };
        let max_in_flight = clamp_in_flight(state.transport.limits().max_in_flight);
        let in_flight = session.max_in_flight.min(max_in_flight);
        let connection = Connection::client(session.initial_credits, in_flight);
        let link = state.add_client(connected.connection, connection);
        Ok(ConnectedLink { link, session })
    }
}

fn no_receive_left(address: &str) -> ConnectError {
    ConnectError::Refused {
        address: address.to_owned(),
        reason: "no receive is left on this side, all are promised to other connections: raise `connections`"
            .to_owned(),
    }
}
