//! [`ServerTls`]: how a server does TLS.

use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage};

use crate::configs::{ALPN, Cached, Configs, Generations, HTTP2};
use crate::error::TlsError;
use crate::identity::{Identity, Pair};
use crate::roots::{Roots, Trust};

/// How a server does TLS: with which identity, and which clients it accepts.
///
/// A clone shares all of it.
#[derive(Clone)]
pub struct ServerTls {
    inner: Arc<Inner>,
}

struct Inner {
    identity: Identity,
    clients: Option<(Roots, ClientAuth)>,
    built: Cached<ServerConfig>,
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// A client without a certificate is refused. On a device that allows plaintext, too, this is so for
    /// clients with TLS only.
    Required,
    /// A client may connect without a certificate. One that it shows is verified all the same, and a
    /// client with a bad one is refused.
    Optional,
}

impl ServerTls {
    /// Creates a server's TLS, which asks clients for no certificate.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self::with(identity, None)
    }

    /// Asks clients for certificates of these authorities, and verifies them.
    #[must_use]
    pub fn clients(&self, roots: Roots, auth: ClientAuth) -> Self {
        Self::with(self.inner.identity.clone(), Some((roots, auth)))
    }

    fn with(identity: Identity, clients: Option<(Roots, ClientAuth)>) -> Self {
        Self {
            inner: Arc::new(Inner {
                identity,
                clients,
                built: Cached::new(),
            }),
        }
    }

    /// Reads the files of the identity and of the roots now, rather than some seconds later.
    ///
    /// # Errors
    ///
    /// Returns an error if either is bad. What is bad stays as it is, and the other one is taken.
    pub fn reload(&self) -> Result<(), TlsError> {
        let identity = self.inner.identity.reload();
        let clients = self.inner.clients.as_ref();
        let roots = clients.map_or(Ok(()), |(roots, _)| roots.reload());
        identity.and(roots)
    }

    /// Returns true if a client without a certificate is refused.
    #[must_use]
    pub fn demands_certificates(&self) -> bool {
        matches!(self.inner.clients, Some((_, ClientAuth::Required)))
    }

    /// Returns the server's identity.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// Returns the configuration of Verbline's protocol for the next connection. It is built again after
    /// a change of the files, and reads no file itself.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.configs().verbline
    }

    /// Returns the configuration of HTTP/2 for the next connection, as [`config`](Self::config) does.
    #[must_use]
    pub fn http2_config(&self) -> Arc<ServerConfig> {
        self.configs().http2
    }

    fn configs(&self) -> Configs<ServerConfig> {
        let identity = self.inner.identity.get();
        let clients = self.inner.clients.as_ref();
        let clients = clients.map(|(roots, auth)| (roots.get(), *auth));
        let generations = Generations {
            identity: identity.generation,
            roots: clients.as_ref().map_or(0, |(roots, _)| roots.generation),
        };
        self.inner.built.get(generations, || {
            let clients = clients.as_ref().map(|(roots, auth)| (&*roots.value, *auth));
            let verbline = build(&identity.value, clients);
            let mut http2 = verbline.clone();
            http2.alpn_protocols = vec![HTTP2.to_vec()];
            Configs {
                verbline: Arc::new(verbline),
                http2: Arc::new(http2),
            }
        })
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("identity", &self.inner.identity)
            .field("clients", &self.inner.clients)
            .finish()
    }
}

fn build(pair: &Pair, clients: Option<(&Trust, ClientAuth)>) -> ServerConfig {
    let verifier: Arc<dyn ClientCertVerifier> = match clients {
        None => Arc::new(NoClientAuth),
        Some((trust, auth)) => Arc::new(trust.clients(auth == ClientAuth::Required)),
    };
    let builder = pair.server.clone().with_client_cert_verifier(verifier);
    let mut config = builder.with_cert_resolver(Arc::clone(&pair.key) as _);
    // No session is resumed: each connection verifies the certificates of its time.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    // For the records, which this crate seals and opens itself.
    config.enable_secret_extraction = true;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config
}
