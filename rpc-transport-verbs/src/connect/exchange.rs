//! The messages of a handshake on the client's side: written and read within a time limit, and errors
//! that say how far the handshake had come.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use rpc_core::transport::ConnectError;
use verbline_verbs::for_transport::BadRecord;

use super::control_stream::{Arrived, ControlStream, StreamError};
use super::handshake::client::{ClientHandshake, ServerResponse};
use super::handshake::{HandshakeError, Received};

/// Sends the hello and reads the response. An error comes with the stage that was reached.
pub(super) fn exchange(
    stream: &mut ControlStream,
    handshake: &mut ClientHandshake,
    hello: &[u8],
    deadline: &Deadline,
) -> Result<ServerResponse, (Reached, ExchangeError)> {
    match deadline.write(stream, hello) {
        Ok(()) => read_response(stream, handshake, deadline)
            .map_err(|error| (Reached::HelloSent(handshake.received()), error)),
        // A server may reject a client before it has read the hello, and close the socket. Then the
        // hello cannot be sent, but the reason can be read.
        Err(error) => match read_response(stream, handshake, deadline) {
            // TLS says why it ends.
            Err(ended @ ExchangeError::Record(_)) => Err((Reached::Connected, ended)),
            Ok(refused @ ServerResponse::Refused(_)) => Ok(refused),
            Ok(ServerResponse::Welcome(_) | ServerResponse::Challenge(_)) | Err(_) => {
                Err((Reached::Connected, error.into()))
            }
        },
    }
}

pub(super) fn read_response(
    stream: &mut ControlStream,
    handshake: &mut ClientHandshake,
    deadline: &Deadline,
) -> Result<ServerResponse, ExchangeError> {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if deadline.read(stream, &mut bytes)? == Arrived::End {
            return Err(ExchangeError::Closed);
        }
        if let Some(response) = handshake.handle(&bytes)? {
            return Ok(response);
        }
    }
}

/// An error after the TCP connection was established.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    #[error("it closed the socket during the handshake")]
    Closed,
    #[error(
        "it admitted this side, and closed the connection for the calls: a load balancer between the two sides may have led it to another process"
    )]
    LinkClosed,
    #[error("the socket failed: {0}")]
    Socket(io::Error),
    /// The records of the connection end.
    #[error(transparent)]
    Record(BadRecord),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl From<io::Error> for ExchangeError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl From<StreamError> for ExchangeError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Socket(error) => Self::Socket(error),
            StreamError::Record(error) => Self::Record(error),
        }
    }
}

/// The stage that a client's handshake has reached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reached {
    Connected,
    /// How much of the response has arrived.
    HelloSent(Received),
    /// The server demands a proof of this side's GID.
    Challenged,
    /// This side has proven its GID, and this much of the response has arrived.
    Claimed(Received),
    /// The server waits for the connection for the calls.
    Admitted,
    Welcomed,
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("this side's hello could not be sent in that time"),
            Self::HelloSent(received) => {
                write!(
                    f,
                    "this side's hello was sent, and {received} of the response arrived"
                )
            }
            Self::Challenged => f.write_str(
                "the server's process did not answer, to which this side has to prove its GID",
            ),
            Self::Claimed(received) => {
                write!(
                    f,
                    "this side's hello was sent and its GID was proven, and {received} of the response arrived"
                )
            }
            Self::Admitted => f.write_str(
                "the server admitted this side, and did not answer on the connection for the calls",
            ),
            Self::Welcomed => f.write_str("the server's welcome arrived too late to answer it"),
        }
    }
}

pub(super) fn exchange_error(
    address: &str,
    timeout: Duration,
    reached: Reached,
    error: ExchangeError,
) -> ConnectError {
    let address = address.to_owned();
    match error {
        ExchangeError::Handshake(HandshakeError::Version { client, server }) => {
            ConnectError::Version {
                address,
                local: client,
                remote: server,
            }
        }
        ExchangeError::Socket(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            ConnectError::TimedOut {
                address,
                timeout,
                reached: reached.to_string(),
            }
        }
        ExchangeError::Record(error) => ConnectError::Security {
            address,
            source: error.into(),
        },
        other => ConnectError::NotVerbline {
            address,
            reason: other.to_string(),
        },
    }
}

/// The time limit of the whole handshake.
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        // A timeout beyond the range of the clock means no timeout.
        Self(Instant::now().checked_add(timeout))
    }

    /// Returns the time limit of a step that may take this long at most.
    pub(super) fn within(&self, time: Duration) -> Self {
        let step = Self::after(time);
        Self(self.0.into_iter().chain(step.0).min())
    }

    pub(super) fn left(&self) -> io::Result<Duration> {
        let Some(deadline) = self.0 else {
            return Ok(Duration::MAX);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }

    pub(super) fn read(
        &self,
        stream: &mut ControlStream,
        bytes: &mut Vec<u8>,
    ) -> Result<Arrived, StreamError> {
        loop {
            stream.socket().set_read_timeout(Some(self.left()?))?;
            match stream.read(READ_LEN, bytes) {
                Err(StreamError::Socket(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    pub(super) fn peek(
        &self,
        stream: &mut ControlStream,
        bytes: &mut [u8],
    ) -> Result<Option<usize>, StreamError> {
        loop {
            stream.socket().set_read_timeout(Some(self.left()?))?;
            match stream.peek(bytes) {
                Err(StreamError::Socket(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// Writes all of it.
    pub(super) fn write(
        &self,
        stream: &mut ControlStream,
        bytes: &[u8],
    ) -> Result<(), StreamError> {
        stream.socket().set_write_timeout(Some(self.left()?))?;
        stream.write(bytes)?;
        match stream.is_writing() {
            true => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            false => Ok(()),
        }
    }
}

/// Maximum number of bytes that are read at a time.
const READ_LEN: usize = 4096;
