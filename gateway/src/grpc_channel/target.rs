//! [`Target`]: which server, and whether it is reached over TLS.

#[cfg(feature = "tls")]
use std::sync::Arc;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
#[cfg(feature = "tls")]
use tokio_rustls::rustls::pki_types::ServerName;
#[cfg(feature = "tls")]
use verbline::tls::{ClientTls, Roots, TlsError};

use super::error::GrpcConnectError;

/// A server, as the application has named it.
#[derive(Debug)]
pub(super) struct Target {
    text: String,
    authority: Authority,
    security: Security,
}

/// How the connection is secured.
#[derive(Debug)]
pub(super) enum Security {
    Plain,
    #[cfg(feature = "tls")]
    Tls {
        tls: ClientTls,
        name: ServerName<'static>,
    },
}

const FORM: &str = match cfg!(feature = "tls") {
    true => "it is not of the form 'http://host:port' or 'https://host:port'",
    false => "it is not of the form 'http://host:port'",
};

impl Target {
    /// Reads `http://host:port`, or `https://host:port` of a server whose authority the system knows.
    pub(super) fn new(text: &str) -> Result<Self, GrpcConnectError> {
        let (scheme, authority) = parts(text)?;
        match scheme {
            scheme if scheme == Scheme::HTTP => Ok(Self {
                text: text.to_owned(),
                authority,
                security: Security::Plain,
            }),
            #[cfg(feature = "tls")]
            _ => {
                let roots = Roots::system().map_err(|error| of_tls(text, error))?;
                Self::secured(text, authority, ClientTls::new(roots))
            }
            #[cfg(not(feature = "tls"))]
            _ => Err(refused(
                text,
                "this program was built without TLS: enable the feature `tls` of verbline-gateway",
            )),
        }
    }

    /// Reads `https://host:port`.
    #[cfg(feature = "tls")]
    pub(super) fn with_tls(text: &str, tls: ClientTls) -> Result<Self, GrpcConnectError> {
        match parts(text)? {
            (scheme, authority) if scheme == Scheme::HTTPS => Self::secured(text, authority, tls),
            _ => Err(refused(
                text,
                "it is plain text, and TLS is asked for: use 'https://'",
            )),
        }
    }

    #[cfg(feature = "tls")]
    fn secured(text: &str, authority: Authority, tls: ClientTls) -> Result<Self, GrpcConnectError> {
        let name = tls.server_name(authority.host());
        let name = name.map_err(|error| of_tls(text, error))?;
        Ok(Self {
            text: text.to_owned(),
            authority,
            security: Security::Tls { tls, name },
        })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn security(&self) -> &Security {
        &self.security
    }

    /// Returns the host, without the brackets of an address of IPv6, and the port.
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        let host = self.authority.host();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let default = match self.security {
            Security::Plain => 80,
            #[cfg(feature = "tls")]
            Security::Tls { .. } => 443,
        };
        (host, self.authority.port_u16().unwrap_or(default))
    }

    /// Returns the URI of a method.
    pub(super) fn uri(&self, path: PathAndQuery) -> Option<Uri> {
        let scheme = match self.security {
            Security::Plain => Scheme::HTTP,
            #[cfg(feature = "tls")]
            Security::Tls { .. } => Scheme::HTTPS,
        };
        let uri = Uri::builder()
            .scheme(scheme)
            .authority(self.authority.clone());
        uri.path_and_query(path).build().ok()
    }
}

/// Returns the scheme, one of the two, and the authority.
fn parts(text: &str) -> Result<(Scheme, Authority), GrpcConnectError> {
    let uri: Uri = text.parse().map_err(|_| refused(text, FORM))?;
    let has_path = !matches!(uri.path(), "" | "/") || uri.query().is_some();
    match (uri.scheme(), uri.authority()) {
        (Some(scheme), Some(authority))
            if (*scheme == Scheme::HTTP || *scheme == Scheme::HTTPS)
                && !has_path
                && !authority.as_str().contains('@') =>
        {
            Ok((scheme.clone(), authority.clone()))
        }
        _ => Err(refused(text, FORM)),
    }
}

fn refused(target: &str, why: &'static str) -> GrpcConnectError {
    GrpcConnectError::Target {
        target: target.to_owned(),
        why,
    }
}

#[cfg(feature = "tls")]
fn of_tls(target: &str, source: TlsError) -> GrpcConnectError {
    GrpcConnectError::Tls {
        target: target.to_owned(),
        source: Arc::new(source),
    }
}
