//! [`ClientTls`]: how a client does TLS.

use std::fmt;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;

use crate::configs::{ALPN, Cached, Configs, Generations, HTTP2};
use crate::error::TlsError;
use crate::expect::{Expect, Expected, parse_host, unnamed};
use crate::identity::{Identity, Pair};
use crate::roots::{Roots, Trust};

/// How a client does TLS: whose servers it believes, which server it expects, and who it is itself.
///
/// A clone shares all of it.
#[derive(Clone)]
pub struct ClientTls {
    inner: Arc<Inner>,
}

struct Inner {
    roots: Roots,
    identity: Option<Identity>,
    expected: Option<Expected>,
    built: Cached<ClientConfig>,
}

impl ClientTls {
    /// Creates a client's TLS. The client shows no certificate, and expects the server whose name or
    /// address it dials.
    #[must_use]
    pub fn new(roots: Roots) -> Self {
        Self::with(roots, None, None)
    }

    /// Shows this certificate to servers that ask for one.
    #[must_use]
    pub fn identity(&self, identity: Identity) -> Self {
        let expected = self.inner.expected.clone();
        Self::with(self.inner.roots.clone(), Some(identity), expected)
    }

    /// Expects this server, whatever address is dialed.
    ///
    /// # Errors
    ///
    /// Returns an error if the name or the SPIFFE id is malformed.
    pub fn server(&self, expect: Expect) -> Result<Self, TlsError> {
        let expected = Expected::try_from(expect)?;
        let identity = self.inner.identity.clone();
        Ok(Self::with(
            self.inner.roots.clone(),
            identity,
            Some(expected),
        ))
    }

    fn with(roots: Roots, identity: Option<Identity>, expected: Option<Expected>) -> Self {
        Self {
            inner: Arc::new(Inner {
                roots,
                identity,
                expected,
                built: Cached::new(),
            }),
        }
    }

    /// Reads the files of the roots and of the identity now, rather than some seconds later.
    ///
    /// # Errors
    ///
    /// Returns an error if either is bad. What is bad stays as it is, and the other one is taken.
    pub fn reload(&self) -> Result<(), TlsError> {
        let roots = self.inner.roots.reload();
        let identity = self.inner.identity.as_ref();
        roots.and(identity.map_or(Ok(()), Identity::reload))
    }

    /// Returns the name to begin a handshake with, for a connection to `host`: a DNS name or an IP
    /// address, without the port. An IPv6 address may be in brackets.
    ///
    /// If a name is expected, it is that one. If a SPIFFE id is expected, the name is not compared with
    /// the certificate.
    ///
    /// # Errors
    ///
    /// Returns an error if `host` is neither a DNS name nor an IP address, and no server is expected
    /// whatever the address.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        match &self.inner.expected {
            Some(Expected::Name(name)) => Ok(name.clone()),
            // A proxy may choose the server by this name.
            Some(Expected::Spiffe(_)) => Ok(parse_host(host).unwrap_or_else(|_| unnamed())),
            None => parse_host(host),
        }
    }

    /// Returns the configuration of Verbline's protocol for the next connection. It is built again after
    /// a change of the files, and reads no file itself.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.configs().verbline
    }

    /// Returns the configuration of HTTP/2 for the next connection, as [`config`](Self::config) does.
    #[must_use]
    pub fn http2_config(&self) -> Arc<ClientConfig> {
        self.configs().http2
    }

    fn configs(&self) -> Configs<ClientConfig> {
        let roots = self.inner.roots.get();
        let identity = self.inner.identity.as_ref().map(Identity::get);
        let generations = Generations {
            identity: identity.as_ref().map_or(0, |identity| identity.generation),
            roots: roots.generation,
        };
        self.inner.built.get(generations, || {
            let pair = identity.as_ref().map(|identity| &*identity.value);
            let verbline = build(&roots.value, pair, self.inner.expected.as_ref());
            let mut http2 = verbline.clone();
            http2.alpn_protocols = vec![HTTP2.to_vec()];
            Configs {
                verbline: Arc::new(verbline),
                http2: Arc::new(http2),
            }
        })
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("roots", &self.inner.roots)
            .field("identity", &self.inner.identity)
            .field("expected", &self.inner.expected)
            .finish()
    }
}

fn build(trust: &Trust, pair: Option<&Pair>, expected: Option<&Expected>) -> ClientConfig {
    let id = match expected {
        Some(Expected::Spiffe(id)) => Some(Arc::clone(id)),
        Some(Expected::Name(_)) | None => None,
    };
    let builder = trust.config.clone().dangerous();
    let builder = builder.with_custom_certificate_verifier(Arc::new(trust.servers(id)));
    let mut config = match pair {
        Some(pair) => builder.with_client_cert_resolver(Arc::clone(&pair.key) as _),
        None => builder.with_no_client_auth(),
    };
    // No session is resumed: each connection verifies the certificates of its time.
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    // For the records, which this crate seals and opens itself.
    config.enable_secret_extraction = true;
    config.alpn_protocols = vec![ALPN.to_vec()];
    config
}
