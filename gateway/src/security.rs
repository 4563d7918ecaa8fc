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
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls;
    use tokio_rustls::server::TlsStream;
    use verbline::server::PeerCertificate;
    use verbline::tls::ServerTls;
    use verbline_tls::{HandshakeError, Role, http2_peer};

    use crate::preface::{FIRST_OF_TLS, NotHttp2};

    /// The alert `unexpected_message` (RFC 8446, 6): it tells a client without TLS that this is TLS.
    const ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 10];

    /// How long, and how many bytes, a refused client is heard. The system resets a connection that has
    /// unread bytes at its end, and a client may then not find the alert that tells it why.
    const LINGER_TIME: Duration = Duration::from_secs(1);
    const LINGER_BYTES: usize = 64 << 10;

    /// Makes the handshake with a client. A message of it may have 64 KiB, by rustls' own limit. Returns
    /// the certificate that the client has shown.
    ///
    /// # Errors
    ///
    /// Returns an error if the client does not speak TLS, is refused, or refuses the gateway.
    pub(crate) async fn accept(
        stream: TcpStream,
        tls: &ServerTls,
    ) -> Result<(TlsStream<TcpStream>, Option<Arc<PeerCertificate>>), NotHttp2> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(NotHttp2::Ended);
        }
        if first[0] != FIRST_OF_TLS {
            linger(stream, &ALERT).await;
            return Err(NotHttp2::PlainAtTlsPort);
        }
        // The configuration of now: the files of the identity may have changed.
        let handshake = TlsAcceptor::from(tls.http2_config()).accept(stream);
        match handshake.into_fallible().await {
            Ok(secured) => {
                let peer = http2_peer(Role::Server, secured.get_ref().1)?;
                Ok((secured, peer))
            }
            Err((error, stream)) => {
                linger(stream, &[]).await;
                Err(of_accept(error))
            }
        }
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

    /// Says the last words, and hears what the client has said before it knew.
    async fn linger(mut stream: TcpStream, last_words: &[u8]) {
        let lingering = async {
            stream.write_all(last_words).await?;
            stream.shutdown().await?;
            let mut heard = [0; 4096];
            for _ in 0..LINGER_BYTES / heard.len() {
                if stream.read(&mut heard).await? == 0 {
                    break;
                }
            }
            io::Result::Ok(())
        };
        // The client is refused in any case.
        let _ = timeout(LINGER_TIME, lingering).await;
    }
}
