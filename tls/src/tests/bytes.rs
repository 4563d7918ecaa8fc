//! Both sides of a handshake over bytes, in memory.

use tls_testing::Authority;

use super::{AsIdentity, AsRoots};
use crate::{
    ClientAuth, ClientTls, Handshake, HandshakeError, Progress, RecordError, Records, Secured,
    ServerTls,
};

/// The TLS of a server named `localhost` and of a client, which know each other.
pub(super) fn both() -> (ClientTls, ServerTls) {
    let authority = Authority::new("root");
    let server = ServerTls::new(authority.issue_to("localhost").identity())
        .clients(authority.roots(), ClientAuth::Required);
    let client =
        ClientTls::new(authority.roots()).identity(authority.issue_to("client.example").identity());
    (client, server)
}

/// One side of a handshake in memory.
pub(super) enum Side {
    Begins(Handshake),
    Done(Box<Secured>),
}

impl Side {
    /// Hands it bytes, in pieces. Returns what it says.
    pub(super) fn take(
        self,
        bytes: &[u8],
        piece: usize,
        waiting: &mut Vec<u8>,
    ) -> Result<(Self, Vec<u8>), (HandshakeError, Vec<u8>)> {
        let mut said = Vec::new();
        let mut side = self;
        for piece in bytes.chunks(piece).chain([&[][..]]) {
            waiting.extend_from_slice(piece);
            side = match side {
                Self::Begins(handshake) => match handshake.advance(waiting, &mut said) {
                    Ok(Progress::Waits(handshake)) => Self::Begins(handshake),
                    Ok(Progress::Done(secured)) => Self::Done(secured),
                    Err(error) => return Err((error, said)),
                },
                done => done,
            };
        }
        Ok((side, said))
    }
}

/// Shakes hands. Returns both sides, or the error of the one that refuses and what it said.
pub(super) fn shake(
    client: &ClientTls,
    server: &ServerTls,
    piece: usize,
) -> (Box<Secured>, Box<Secured>) {
    let mut client = Side::Begins(Handshake::of_client(client, "localhost").unwrap());
    let mut server = Side::Begins(Handshake::of_server(server).unwrap());
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    let mut to_client = Vec::new();
    loop {
        let (next, said) = client.take(&to_client, piece, &mut at_client).unwrap();
        client = next;
        let (next, answer) = server.take(&said, piece, &mut at_server).unwrap();
        server = next;
        to_client = answer;
        if let (Side::Done(_), Side::Done(_)) = (&client, &server) {
            break;
        }
    }
    let (Side::Done(client), Side::Done(server)) = (client, server) else {
        unreachable!("both are done");
    };
    assert!(at_client.is_empty() && at_server.is_empty());
    (client, server)
}

pub(super) fn open_all(
    records: &mut Records,
    sealed: &mut Vec<u8>,
) -> Result<Vec<u8>, RecordError> {
    let mut plain = Vec::new();
    while let Some(opened) = records.open(sealed)? {
        plain.extend_from_slice(&sealed[opened.plain]);
        sealed.drain(..opened.len);
    }
    Ok(plain)
}
