//! [`Identity`]: the certificate and the key by which a process proves who it is.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use rpc_core::PeerCertificate;
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ConfigBuilder, InconsistentKeys, ServerConfig, WantsVerifier};

use crate::certificate::{self, utc};
use crate::error::{Origin, TlsError};
use crate::pem;
use crate::provider::provider;
use crate::source::{MAX_FILE_LEN, Source, Taken};
use crate::verification;

/// The certificate and the private key by which a process proves who it is: a server to its clients, or
/// a client to its servers.
///
/// Files are followed: a pair that replaces them is used for new connections some seconds later, without
/// a restart. A pair is taken as a whole. If it is bad, the old one stays, and a warning is logged.
///
/// A clone shares the pair. `Debug` prints no part of the key.
#[derive(Clone)]
pub struct Identity {
    certificates: Origin,
    key: Origin,
    source: Arc<Source<Pair>>,
}

/// The most bytes of certificates. With the other messages that come together with them, they are less
/// than what waits to be a message of the handshake at most.
const MAX_CHAIN_LEN: usize = 11 * 1024;

/// A certificate with its key.
pub(crate) struct Pair {
    pub(crate) key: Arc<SingleCertAndKey>,
    /// The first step of a server's configuration. It is here because it can fail, as a pair can, and
    /// the others cannot.
    pub(crate) server: ConfigBuilder<ServerConfig, WantsVerifier>,
    certificate: PeerCertificate,
}

impl Identity {
    /// Reads a PEM file of certificates and a PEM file of a private key, and follows them.
    ///
    /// The first certificate is the program's own, the others lead from it to a root. The key is PKCS#8,
    /// PKCS#1 or SEC1, without a password. Both paths may be the same.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read or is malformed, or if the key is not that of the first
    /// certificate.
    pub fn from_files(
        certificates: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<Self, TlsError> {
        let (certificates, key) = (certificates.into(), key.into());
        let files = vec![
            (certificates.clone(), MAX_FILE_LEN),
            (key.clone(), MAX_FILE_LEN),
        ];
        let (certificates, key) = (Origin::File(certificates), Origin::File(key));
        let origins = (certificates.clone(), key.clone());
        let source = Source::open("identity", files, move |contents| match contents {
            [certificates, key] => Pair::new((certificates, &origins.0), (key, &origins.1)),
            _ => Err(TlsError::NoKey {
                origin: origins.1.clone(),
            }),
        })?;
        Ok(Self {
            certificates,
            key,
            source,
        })
    }

    /// Takes certificates and a private key as PEM text, as [`from_files`](Self::from_files) does. They
    /// stay as they are.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is malformed, or if the key is not that of the first certificate.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let memory = Origin::Memory;
        let pair = Pair::new((certificates, &memory), (key, &memory))?;
        Ok(Self {
            certificates: memory.clone(),
            key: memory,
            source: Source::fixed("identity", pair),
        })
    }

    /// Reads the files now, rather than some seconds later. Does nothing if there are none.
    ///
    /// # Errors
    ///
    /// Returns an error if the new pair is bad. The old one stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.source.reload()
    }

    /// Returns the time after which the program's own certificate is no longer valid.
    #[must_use]
    pub fn expires(&self) -> SystemTime {
        self.source.get().value.certificate.expires()
    }

    /// Returns the pair that is in use now.
    pub(crate) fn get(&self) -> Taken<Pair> {
        self.source.get()
    }

    #[cfg(test)]
    pub(crate) fn look(&self) -> crate::source::Outcome {
        self.source.look()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificates", &self.certificates)
            .field("key", &self.key)
            .field("certificate", &self.source.get().value.certificate)
            .finish()
    }
}

impl Pair {
    fn new(certificates: (&[u8], &Origin), key: (&[u8], &Origin)) -> Result<Self, TlsError> {
        let (text, origin) = certificates;
        let chain = pem::certificates(text, origin)?;
        let len = chain.iter().map(|certificate| certificate.len()).sum();
        if len > MAX_CHAIN_LEN {
            return Err(TlsError::ChainTooLong {
                origin: origin.clone(),
                len,
                limit: MAX_CHAIN_LEN,
            });
        }
        for (index, certificate) in chain.iter().enumerate() {
            ParsedCertificate::try_from(certificate).map_err(|source| TlsError::Certificate {
                origin: origin.clone(),
                position: index + 1,
                source,
            })?;
        }
        verification::issuers(chain.get(1..).unwrap_or_default()).map_err(|refusal| {
            TlsError::Chain {
                origin: origin.clone(),
                source: refusal.into(),
            }
        })?;
        let names = |source| TlsError::CertificateNames {
            origin: origin.clone(),
            source,
        };
        let certificate = match chain.first() {
            Some(own) => certificate::parse(own).map_err(names)?,
            None => {
                let origin = origin.clone();
                return Err(TlsError::NoCertificate { origin });
            }
        };
        let (text, key_origin) = key;
        let key = pem::key(text, key_origin)?;
        let provider = provider();
        let key = CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::KeyMismatch {
                    certificates: origin.clone(),
                    key: key_origin.clone(),
                }
            }
            source => TlsError::Key {
                origin: key_origin.clone(),
                source,
            },
        })?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|source| TlsError::Provider { source })?;
        Ok(Self {
            key: Arc::new(SingleCertAndKey::from(key)),
            server,
            certificate,
        })
    }
}

/// For a log: whose certificate it is, and when it expires.
impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expires = utc(self.certificate.expires());
        write!(
            f,
            "certificate {}, which expires {expires}",
            self.certificate
        )
    }
}
