//! TLS to a gRPC server.

use std::io;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use verbline::tls::ClientTls;
use verbline_tls::{HandshakeError, Role, http2_peer};

use super::first_frame::CLOSED;

/// Makes the handshake, and checks that the server speaks HTTP/2.
pub(super) async fn secure(
    stream: TcpStream,
    tls: &ClientTls,
    name: ServerName<'static>,
) -> io::Result<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(tls.http2_config());
    let stream = connector.connect(name, stream).await;
    let stream = stream.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), HandshakeError::Closed),
        _ => explained(error),
    })?;
    http2_peer(Role::Client, stream.get_ref().1).map_err(io::Error::other)?;
    Ok(stream)
}

/// Says in a sentence what an error of TLS means, and leaves others as they are. A server that refuses
/// the client's certificate says so when the handshake is complete at the client.
pub(super) fn explained(error: io::Error) -> io::Error {
    // An end without the last word of TLS.
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return io::Error::new(error.kind(), CLOSED);
    }
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref());
    let Some(of_tls) = of_tls.cloned() else {
        return error;
    };
    io::Error::new(error.kind(), HandshakeError::of_http2(Role::Client, of_tls))
}
