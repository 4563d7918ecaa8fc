//! The client's half of a connection's set-up: blocking, on the poller's own thread.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_core::transport::{ConnectError, Connected};

use crate::control::{self, Line};
use crate::handshake::client::{self, Answer, ClientHandshake};
use crate::handshake::{HandshakeError, Offer, VERSION};
use crate::mailbox::LineKey;
use crate::transport::VerbsTransport;

pub(crate) fn connect(
    transport: &mut VerbsTransport,
    address: &str,
    session: &[u8],
    timeout: Duration,
) -> Result<Connected, ConnectError> {
    let deadline = Deadline::after(timeout);
    let device_error = |source: Box<dyn std::error::Error + Send + Sync>| ConnectError::Device {
        address: address.to_owned(),
        source,
    };
    let (mut stream, remote) = dial(address, &deadline)?;

    let queue_pairs = Arc::clone(&transport.queue_pairs);
    let nascent = queue_pairs.create().map_err(|e| device_error(e.into()))?;
    let slot_len = queue_pairs.plan().limits.slot_len;
    let hello = client::hello(Offer {
        endpoints: vec![queue_pairs.endpoint(&nascent)],
        max_frame_len: u32::try_from(slot_len).unwrap_or(u32::MAX),
        session: session.to_vec(),
    })
    .map_err(|e| device_error(e.into()))?;

    let talk = |error| talk_error(address, timeout, error);
    deadline.write(&mut stream, &hello).map_err(talk)?;
    let welcome = match read_answer(&mut stream, &deadline).map_err(talk)? {
        Answer::Welcome(offer) => offer,
        Answer::Refused(reason) => {
            return Err(ConnectError::Refused {
                address: address.to_owned(),
                reason,
            });
        }
    };
    let Some(endpoint) = welcome.endpoint(queue_pairs.kind()) else {
        return Err(ConnectError::NotVerbline {
            address: address.to_owned(),
            reason: format!(
                "it chose a device of kind {}, which was not offered",
                welcome.kinds()
            ),
        });
    };
    let ready = queue_pairs
        .connect(nascent, endpoint)
        .map_err(|e| device_error(e.into()))?;
    let frame = client::ready().map_err(|e| device_error(e.into()))?;
    deadline.write(&mut stream, &frame).map_err(talk)?;

    let stream = Arc::new(stream);
    let key = LineKey::next();
    let remote_frame_len = welcome.max_frame_len as usize;
    control::control()
        .and_then(|control| {
            control.watch(Line {
                stream: Arc::clone(&stream),
                key,
                mailbox: transport.mailbox.clone(),
            })
        })
        .map_err(|e| device_error(e.into()))?;
    let connection = transport.add_connected(ready, stream, key, remote_frame_len);
    Ok(Connected {
        connection,
        session: welcome.session,
        remote,
    })
}

/// One TCP connection to the first of the address's hosts that answers.
fn dial(address: &str, deadline: &Deadline) -> Result<(TcpStream, SocketAddr), ConnectError> {
    let wrong = |source| ConnectError::Address {
        address: address.to_owned(),
        source,
    };
    let unreachable = |source| ConnectError::Unreachable {
        address: address.to_owned(),
        source,
    };
    let mut last = None;
    for remote in address.to_socket_addrs().map_err(wrong)? {
        let left = deadline.left().map_err(unreachable)?;
        match TcpStream::connect_timeout(&remote, left) {
            Ok(stream) => {
                stream.set_nodelay(true).map_err(unreachable)?;
                return Ok((stream, remote));
            }
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) => unreachable(error),
        None => wrong(io::Error::other("it resolves to no address")),
    })
}

fn read_answer(stream: &mut TcpStream, deadline: &Deadline) -> Result<Answer, TalkError> {
    let mut handshake = ClientHandshake::default();
    let mut bytes = [0; 4096];
    loop {
        let len = deadline.read(stream, &mut bytes)?;
        if len == 0 {
            return Err(TalkError::Closed);
        }
        if let Some(answer) = handshake.handle(&bytes[..len])? {
            return Ok(answer);
        }
    }
}

/// What can go wrong once the socket is there.
#[derive(Debug, thiserror::Error)]
enum TalkError {
    #[error("it closed the socket in the middle of the handshake")]
    Closed,
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

fn talk_error(address: &str, timeout: Duration, error: TalkError) -> ConnectError {
    let address = address.to_owned();
    match error {
        TalkError::Handshake(HandshakeError::Version { remote }) => ConnectError::Version {
            address,
            local: VERSION.into(),
            remote: remote.into(),
        },
        TalkError::Socket(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            ConnectError::TimedOut { address, timeout }
        }
        other => ConnectError::NotVerbline {
            address,
            reason: other.to_string(),
        },
    }
}

/// When the whole of it is to be done.
struct Deadline(Option<Instant>);

impl Deadline {
    fn after(timeout: Duration) -> Self {
        // A timeout beyond the clock's end is none.
        Self(Instant::now().checked_add(timeout))
    }

    fn left(&self) -> io::Result<Duration> {
        let Some(deadline) = self.0 else {
            return Ok(Duration::MAX);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }

    fn read(&self, stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            stream.set_read_timeout(Some(self.left()?))?;
            match stream.read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn write(&self, stream: &mut TcpStream, bytes: &[u8]) -> Result<(), TalkError> {
        stream.set_write_timeout(Some(self.left()?))?;
        Ok(stream.write_all(bytes)?)
    }
}
