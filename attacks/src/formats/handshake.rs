//! Frames of the handshake, and requests of the core.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use prost::Message;
use rpc_core::frame::{CallId, Flags, FrameHeader, FrameKind, HEADER_LEN};
use rpc_core::session::{ClientSession, ServerSession};

use super::Gid;
use benches::Outcome;

/// An endpoint of a hello.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Endpoint {
    /// Kind of device.
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    /// Name of the device.
    #[prost(string, tag = "2")]
    pub(crate) device: String,
    /// GID of the port.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) gid: Vec<u8>,
    /// MTU in bytes.
    #[prost(uint32, tag = "4")]
    pub(crate) mtu: u32,
    /// Number of the queue pair.
    #[prost(uint32, tag = "5")]
    pub(crate) qp_number: u32,
    /// Packet sequence number of the sender's first packet.
    #[prost(uint32, tag = "6")]
    pub(crate) psn: u32,
}

/// The client's first message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClientHello {
    /// One endpoint for each device.
    #[prost(message, repeated, tag = "1")]
    pub(crate) endpoints: Vec<Endpoint>,
    /// Longest frame that the client can receive.
    #[prost(uint32, tag = "2")]
    pub(crate) max_frame_len: u32,
    /// The session message.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) session: Vec<u8>,
}

/// The server's response to an admitted client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ServerHello {
    /// The server's endpoint.
    #[prost(message, optional, tag = "1")]
    pub(crate) endpoint: Option<Endpoint>,
    /// The session message.
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) session: Vec<u8>,
    /// The secret that begins a TCP link.
    #[prost(bytes = "vec", tag = "7")]
    pub(crate) link_secret: Vec<u8>,
}

/// The client's last message.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Ready {}

/// The server's response to a rejected client.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Refusal {
    /// The reason.
    #[prost(string, tag = "1")]
    pub(crate) reason: String,
}

/// The server's demand that the client proves its GID.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Challenge {
    /// GID of the server's process.
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) gid: Vec<u8>,
    /// The bytes to send over a link.
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) nonce: Vec<u8>,
}

/// The body of a frame.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Handshake {
    /// The message.
    #[prost(oneof = "Body", tags = "1, 2, 3, 4, 5")]
    pub(crate) body: Option<Body>,
}

/// A message of the handshake.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Body {
    /// See [`ClientHello`].
    #[prost(message, tag = "1")]
    ClientHello(ClientHello),
    /// See [`ServerHello`].
    #[prost(message, tag = "2")]
    ServerHello(ServerHello),
    /// See [`Ready`].
    #[prost(message, tag = "3")]
    Ready(Ready),
    /// See [`Refusal`].
    #[prost(message, tag = "4")]
    Refusal(Refusal),
    /// See [`Challenge`].
    #[prost(message, tag = "5")]
    Challenge(Challenge),
}

const HANDSHAKE_VERSION: u16 = 2;
const PROLOGUE_LEN: usize = 14;

/// Returns the hello of a client whose only endpoint is of this kind, and has this GID, queue pair and
/// PSN.
#[must_use]
pub(crate) fn client_hello(kind: &str, gid: &Gid, qp_number: u32, psn: u32) -> Body {
    Body::ClientHello(ClientHello {
        endpoints: vec![Endpoint {
            kind: kind.to_owned(),
            device: kind.to_owned(),
            gid: gid.to_vec(),
            mtu: 4096,
            qp_number,
            psn,
        }],
        max_frame_len: 4200,
        session: ClientSession::new(16, 32 * 1024, 4096).encode_to_vec(),
    })
}

/// Sends a message of the handshake.
///
/// # Errors
///
/// Fails if the socket does.
pub(crate) fn send_frame(mut stream: &TcpStream, body: Body) -> io::Result<()> {
    let message = Handshake { body: Some(body) }.encode_to_vec();
    let mut frame = b"VBLN".to_vec();
    frame.extend(HANDSHAKE_VERSION.to_be_bytes());
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(HANDSHAKE_VERSION.to_be_bytes());
    frame.extend(HANDSHAKE_VERSION.to_be_bytes());
    frame.extend(message);
    stream.write_all(&frame)
}

/// Receives a message of the handshake.
///
/// # Errors
///
/// Fails if the socket does, or if the message is not one of this version.
pub(crate) fn receive_frame(mut stream: &TcpStream) -> Outcome<Body> {
    let mut prologue = [0; PROLOGUE_LEN];
    stream.read_exact(&mut prologue)?;
    let [.., a, b, c, d, _, _, _, _] = prologue;
    let mut message = vec![0; u32::from_be_bytes([a, b, c, d]).min(1 << 16) as usize];
    stream.read_exact(&mut message)?;
    let handshake = Handshake::decode(&message[..])?;
    handshake.body.ok_or_else(|| "an empty frame".into())
}

/// Returns the numbers of the server's methods from its session message.
///
/// # Errors
///
/// Fails if the session does not decode or has no such method.
pub(crate) fn method_number(session: &[u8], path: &str) -> Outcome<u16> {
    let session = ServerSession::decode(session)?;
    let mut methods = session.methods.iter();
    let found = methods.find(|method| method.path == path);
    let found = found.ok_or_else(|| format!("the server has no method {path}"))?;
    Ok(u16::try_from(found.number)?)
}

/// Returns the frame of a request.
#[must_use]
pub(crate) fn request(method: u16, generation: u32, message: &impl Message) -> Vec<u8> {
    let mut frame = vec![0; HEADER_LEN];
    let header = FrameHeader {
        kind: FrameKind::Request,
        flags: Flags::NONE,
        credits: 0,
        call: CallId::new(0, generation),
        selector: method,
        metadata_len: 0,
        time_us: 0,
    };
    header.encode(&mut frame);
    frame.extend(message.encode_to_vec());
    frame
}
