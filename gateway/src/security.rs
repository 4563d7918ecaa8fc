//! [`Security`]: whether the clients of a gateway come with TLS, and the handshake with one of them.

#[cfg(feature = "tls")]
pub(crate) use self::with_tls::accept;

/// How connections are secured.
#[derive(Clone, Debug, Default)]
pub(crate) enum Security {
    /// HTTP/2 in plain text.
    #[default]
    Plain,
    /// HTTP/2 over TLS.
    #[cfg(feature = "tls")]
    Tls(verbline::tls::ServerTls),
}

#[cfg(feature = "tls")]
mod with_tls {
    use std::io;

    use tokio::net::TcpStream;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls;
    use tokio_rustls::server::TlsStream;
    use verbline::server::Forwarded;
    use verbline::tls::ServerTls;
    use verbline_tls::{HandshakeError, Role, http2_peer};

    use crate::preface::{FIRST_OF_TLS, NotHttp2, refuse};

    /// The alert `unexpected_message` (RFC 8446, 6): it tells a client without TLS that this is TLS.
    const ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 10];

    /// Makes the handshake with a client, and adds its certificate to what is said of it. A message of
    /// the handshake may have 64 KiB, by rustls' own limit.
    ///
    /// # Errors
    ///
    /// Returns an error if the client does not speak TLS, is refused, or refuses the gateway.
    pub(crate) async fn accept(
        stream: TcpStream,
        tls: &ServerTls,
        client: Forwarded,
    ) -> Result<(TlsStream<TcpStream>, Forwarded), NotHttp2> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(NotHttp2::Ended);
        }
        if first[0] != FIRST_OF_TLS {
            refuse(stream, &ALERT).await;
            return Err(NotHttp2::PlainAtTlsPort);
        }
        // The configuration of now: the files of the identity may have changed.
        let handshake = TlsAcceptor::from(tls.http2_config()).accept(stream);
        let stream = match handshake.into_fallible().await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                refuse(stream, &[]).await;
                return Err(of_accept(error));
            }
        };
        match name(&stream, client) {
            Ok(client) => Ok((stream, client)),
            Err(error) => {
                refuse(stream, &[]).await;
                Err(error)
            }
        }
    }

    fn name(stream: &TlsStream<TcpStream>, client: Forwarded) -> Result<Forwarded, NotHttp2> {
        let certificate = http2_peer(Role::Server, stream.get_ref().1)?;
        Ok(match certificate {
            Some(certificate) => client.with_certificate(&certificate)?,
            None => client,
        })
    }

    fn of_accept(error: io::Error) -> NotHttp2 {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return HandshakeError::Closed.into();
        }
        let of_tls = error.get_ref().and_then(|error| error.downcast_ref());
        match of_tls.cloned() {
            Some(error) => of_rustls(error).into(),
            None => error.into(),
        }
    }

    fn of_rustls(error: rustls::Error) -> HandshakeError {
        HandshakeError::of_http2(Role::Server, error)
    }
}
