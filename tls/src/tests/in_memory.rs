//! Handshakes in memory, by rustls' own buffers.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{
    ClientConfig, ClientConnection, Error, ProtocolVersion, ServerConfig, ServerConnection,
};

use crate::{ClientTls, ServerTls};

/// What a handshake has come to.
pub(super) struct Shaken {
    /// The first certificate that the client has shown.
    pub(super) client: Option<CertificateDer<'static>>,
    pub(super) protocol: Vec<u8>,
}

/// Makes a client dial `host`, and a server accept it. The error is that of the side that refuses.
pub(super) fn shake(client: &ClientTls, host: &str, server: &ServerTls) -> Result<Shaken, Error> {
    let name = client.server_name(host).unwrap();
    let client = ClientConnection::new(client.config(), name).unwrap();
    run(client, ServerConnection::new(server.config()).unwrap())
}

/// The same with other configurations, to a server named `localhost`.
pub(super) fn shake_configs(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
) -> Result<Shaken, Error> {
    let name = "localhost".try_into().unwrap();
    let client = ClientConnection::new(client, name).unwrap();
    run(client, ServerConnection::new(server).unwrap())
}

fn run(mut client: ClientConnection, mut server: ServerConnection) -> Result<Shaken, Error> {
    let mut bytes = Vec::new();
    while client.wants_write() || server.wants_write() {
        bytes.clear();
        client.write_tls(&mut bytes).unwrap();
        let mut unread = bytes.as_slice();
        while !unread.is_empty() {
            server.read_tls(&mut unread).unwrap();
            server.process_new_packets()?;
        }
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        let mut unread = bytes.as_slice();
        while !unread.is_empty() {
            client.read_tls(&mut unread).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    assert_eq!(client.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
    let shown = server.peer_certificates().and_then(<[_]>::first);
    let shaken = Shaken {
        client: shown.map(|certificate| certificate.clone().into_owned()),
        protocol: server.alpn_protocol().unwrap_or_default().to_vec(),
    };
    client.dangerous_extract_secrets().unwrap();
    server.dangerous_extract_secrets().unwrap();
    Ok(shaken)
}
