//! [`TlsError`]: why an identity, roots or an expected name cannot be used.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::certificate::UnreadableCertificate;

/// The reason that an identity, roots or an expected name cannot be used.
///
/// It names the file, and never prints what is in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error(
        "{path} cannot be read: {source}; {remedy}",
        path = path.display(),
        remedy = match source.kind() {
            io::ErrorKind::NotFound => "check the path, which is relative to where the program runs",
            _ => "check its permissions",
        }
    )]
    Read {
        /// The path as the program gave it.
        path: PathBuf,
        /// The reason of the operating system.
        source: io::Error,
    },
    /// A path leads to a directory, a device or a pipe.
    #[error("{path} is not a regular file; name the PEM file itself", path = path.display())]
    NotAFile {
        /// The path as the program gave it.
        path: PathBuf,
    },
    /// A file is too long to be what it should be.
    #[error(
        "{path} is longer than {limit} bytes, and is not read further; check that it is the PEM \
         file that was meant",
        path = path.display()
    )]
    TooLong {
        /// The path as the program gave it.
        path: PathBuf,
        /// The length of the longest file that is read, in bytes.
        limit: u64,
    },
    /// The text is not well-formed PEM.
    #[error("{origin} is not well-formed PEM: {problem}; write it again in full")]
    Pem {
        /// Where the text is from.
        origin: Origin,
        /// What is wrong with it.
        problem: PemProblem,
    },
    /// There is no certificate in the text.
    #[error("{origin} has no certificate; add a section `-----BEGIN CERTIFICATE-----`")]
    NoCertificate {
        /// Where the text is from.
        origin: Origin,
    },
    /// There is no private key in the text.
    #[error("{origin} has no private key; add one as PKCS#8, PKCS#1 or SEC1 in PEM")]
    NoKey {
        /// Where the text is from.
        origin: Origin,
    },
    /// The private key is encrypted with a password.
    #[error(
        "{origin} has a private key that is encrypted with a password, which is not supported; \
         decrypt it with `openssl pkey`, and protect the file by its permissions"
    )]
    EncryptedKey {
        /// Where the text is from.
        origin: Origin,
    },
    /// There is no certificate revocation list in the text.
    #[error("{origin} has no revocation list; add a section `-----BEGIN X509 CRL-----`")]
    NoCrl {
        /// Where the text is from.
        origin: Origin,
    },
    /// The certificates of an identity are too long together: no peer would wait for all of them.
    #[error(
        "the certificates in {origin} take {len} bytes, and {limit} at most fit into a handshake: leave out the root, and what does not lead to it"
    )]
    ChainTooLong {
        /// Where the text is from.
        origin: Origin,
        /// Their length in bytes, in DER.
        len: usize,
        /// The most bytes that fit.
        limit: usize,
    },
    /// No peer looks for a way to a root through the certificates of an identity.
    #[error("the first certificate in {origin} would be refused by peers: {source}")]
    Chain {
        /// Where the certificates are from.
        origin: Origin,
        /// What is wrong with the others.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A certificate is malformed, or TLS cannot use it.
    #[error("certificate {position} in {origin} cannot be used: {source}; have it issued again")]
    Certificate {
        /// Where the certificate is from.
        origin: Origin,
        /// Its place among the certificates there, from 1.
        position: usize,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The names or the times of this program's own certificate cannot be read.
    #[error(
        "the names in the first certificate in {origin} cannot be read: {source}; have it issued again"
    )]
    CertificateNames {
        /// Where the certificate is from.
        origin: Origin,
        /// What is wrong with it.
        source: UnreadableCertificate,
    },
    /// The private key is malformed, or of an unknown kind.
    #[error(
        "the private key in {origin} cannot be used: {source}; use an RSA, ECDSA or Ed25519 key"
    )]
    Key {
        /// Where the key is from.
        origin: Origin,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The private key belongs to another certificate.
    #[error(
        "the private key in {key} is not that of the first certificate in {certificates}; name the two \
         files of one pair, with the program's own certificate first"
    )]
    KeyMismatch {
        /// Where the certificates are from.
        certificates: Origin,
        /// Where the key is from.
        key: Origin,
    },
    /// A revocation list is malformed, or of a kind that is not supported.
    #[error("a revocation list in {origin} cannot be used: {source}; have complete lists issued")]
    Crl {
        /// Where the list is from.
        origin: Origin,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// Two revocation lists are about the same certificates. Whoever verifies looks at one of them only.
    #[error(
        "a revocation list in {origin} is the second one of {issuer} about the same certificates, and only \
         one would be asked. Keep the newest complete list. An issuer may have two lists only if one is for \
         authorities and one for other certificates; lists that are split by distribution point are not \
         supported"
    )]
    CrlTwice {
        /// Where the second one is from.
        origin: Origin,
        /// The name of the issuer.
        issuer: String,
    },
    /// A revocation list is in the name of a root, and that root has not signed it. Each certificate of the
    /// root would be refused.
    #[error(
        "a revocation list in {origin} is not signed by {issuer}, which it names as its issuer: have it issued \
         again. If that root has a new key, give it a new name, too: lists are found by the name"
    )]
    CrlSignature {
        /// Where the list is from.
        origin: Origin,
        /// The name of the issuer.
        issuer: String,
    },
    /// The operating system has no root certificates.
    #[error(
        "the system has no root certificate{}; install `ca-certificates`, or name a file of roots",
        because(.source.as_deref())
    )]
    NoSystemRoots {
        /// The first failure of the search, if it failed.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A server's name is neither a DNS name nor an IP address.
    #[error(
        "{name:?} is neither a DNS name nor an IP address; give the name in the server's certificate"
    )]
    Name {
        /// The name as it was given.
        name: String,
    },
    /// A SPIFFE id is malformed.
    #[error("{id:?} is not a SPIFFE id; write it as `spiffe://trust-domain/path`")]
    SpiffeId {
        /// The id as it was given.
        id: String,
    },
    /// The thread that looks for changes of files could not be started.
    #[error(
        "the thread that watches files cannot be started: {source}; allow the process more threads"
    )]
    Thread {
        /// The reason of the operating system.
        source: io::Error,
    },
    /// The cryptography of this build cannot do TLS 1.3.
    #[error(
        "TLS 1.3 cannot be configured: {source}; report it, since no setting of a program causes it"
    )]
    Provider {
        /// The reason of rustls.
        source: rustls::Error,
    },
}

fn because(source: Option<&(dyn Error + Send + Sync + 'static)>) -> String {
    source.map_or_else(String::new, |source| format!(": {source}"))
}

/// Where certificates, keys or lists are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The program gave them as bytes.
    Memory,
    /// They were read from a file.
    File(PathBuf),
    /// They are those of the operating system.
    System,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("the PEM text in memory"),
            Self::File(path) => path.display().fmt(f),
            Self::System => f.write_str("the system's store"),
        }
    }
}

/// What is wrong with PEM text.
///
/// It has nothing of the text: a malformed file of a key may have the key in any line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PemProblem {
    /// A section begins, and does not end.
    #[error("a section has no line `-----END …-----`")]
    NoEnd,
    /// The line that begins a section is malformed.
    #[error("a line `-----BEGIN …-----` is malformed")]
    Begin,
    /// A section is not valid base64.
    #[error("a section is not valid base64")]
    Base64,
    /// Something else is wrong.
    #[error("a section cannot be read")]
    Other,
}
