//! The handshake that secures a connection, on the client's side: within a time limit, on any thread.

use std::io;
use std::time::Duration;

use rpc_core::transport::ConnectError;

use super::address::host_of;
use super::control_stream::{Arrived, ControlStream, StreamError};
use super::exchange::Deadline;
use super::handshake::MAGIC;
use super::handshake::client::{ClientHandshake, ServerResponse};
use crate::transport::security::{
    ClientSecurity, MAX_WAITING, Secured, SecurityError, SecurityProgress,
};

/// Secures the connection to a server that was dialed at `address`.
pub(super) fn secure(
    mut stream: ControlStream,
    security: &dyn ClientSecurity,
    address: &str,
    deadline: &Deadline,
) -> Result<ControlStream, SecureError> {
    let mut handshake = security.begin(host_of(address))?;
    let (mut arrived, mut to_send) = (Vec::new(), Vec::new());
    loop {
        // A server without the layer says so in the clear, and nothing else of its is believed.
        if arrived.starts_with(&MAGIC) {
            return Err(SecureError::InTheClear(refusal(&arrived)));
        }
        let progress = handshake.advance(&mut arrived, &mut to_send);
        // The server learns why, too.
        let sent = deadline.write(&mut stream, &std::mem::take(&mut to_send));
        match progress? {
            SecurityProgress::Done(Secured { layer, .. }) => {
                sent?;
                stream.secure(layer, arrived);
                return Ok(stream);
            }
            SecurityProgress::Waits(waiting) => handshake = waiting,
        }
        // If it could not be sent, the server may have said why before it closed the connection.
        if deadline.read(&mut stream, &mut arrived)? == Arrived::End {
            return Err(SecureError::Closed);
        }
        if arrived.len() > MAX_WAITING + READ_LEN {
            return Err(SecureError::TooLong);
        }
    }
}

/// The most bytes that one read may have brought more than are needed.
const READ_LEN: usize = 4096;

/// Returns what a server says in the clear, if that is the reason of a refusal.
fn refusal(bytes: &[u8]) -> String {
    match ClientHandshake::default().handle(bytes) {
        Ok(Some(ServerResponse::Refused(reason))) => reason.to_string(),
        _ => "it gave no reason".to_owned(),
    }
}

/// Why a connection was not secured.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecureError {
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(
        "it answered in the clear, and this side's device has `with_client_tls`, so it goes no further. The answer, which anybody may have given: {0}"
    )]
    InTheClear(String),
    #[error("it sent more than a handshake of TLS needs")]
    TooLong,
    #[error(
        "it closed the connection in the middle of the handshake of TLS: it may be ending, or too busy; try again, and see its log"
    )]
    Closed,
    #[error(
        "{0}, in the middle of the handshake of TLS: the server may be ending, or too busy; try again, and see its log"
    )]
    Stream(#[from] StreamError),
}

impl SecureError {
    pub(super) fn into_connect_error(self, address: &str, timeout: Duration) -> ConnectError {
        let address = address.to_owned();
        match self {
            Self::Stream(StreamError::Socket(error))
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                ConnectError::TimedOut {
                    address,
                    timeout,
                    reached: "the handshake of TLS was not complete".to_owned(),
                }
            }
            Self::Security(source) => ConnectError::Security { address, source },
            other => ConnectError::Security {
                address,
                source: other.into(),
            },
        }
    }
}
