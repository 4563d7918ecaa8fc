//! PEM text: its certificates, its private key, and its revocation lists.

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

use crate::error::{Origin, PemProblem, TlsError};

/// How the section of a key that is encrypted begins. It is skipped like every unknown section.
const ENCRYPTED_KEY: &[u8] = b"-----BEGIN ENCRYPTED PRIVATE KEY-----";

/// Returns the certificates, in their order: at least one.
pub(crate) fn certificates(
    text: &[u8],
    origin: &Origin,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = sections(text, origin)?;
    if certificates.is_empty() {
        let origin = origin.clone();
        return Err(TlsError::NoCertificate { origin });
    }
    Ok(certificates)
}

/// Returns the revocation lists: at least one.
pub(crate) fn crls(
    text: &[u8],
    origin: &Origin,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let crls = sections(text, origin)?;
    if crls.is_empty() {
        let origin = origin.clone();
        return Err(TlsError::NoCrl { origin });
    }
    Ok(crls)
}

/// Returns the first private key.
pub(crate) fn key(text: &[u8], origin: &Origin) -> Result<PrivateKeyDer<'static>, TlsError> {
    if let Some(key) = PrivateKeyDer::pem_slice_iter(text).next() {
        return key.map_err(|error| malformed(&error, origin));
    }
    let origin = origin.clone();
    let is_encrypted = text
        .windows(ENCRYPTED_KEY.len())
        .any(|window| window == ENCRYPTED_KEY);
    Err(match is_encrypted {
        true => TlsError::EncryptedKey { origin },
        false => TlsError::NoKey { origin },
    })
}

fn sections<T: PemObject>(text: &[u8], origin: &Origin) -> Result<Vec<T>, TlsError> {
    T::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|error| malformed(&error, origin))
}

/// The library's error is not kept: it has the line that is malformed, which may be a part of a key.
fn malformed(error: &pem::Error, origin: &Origin) -> TlsError {
    let problem = match error {
        pem::Error::MissingSectionEnd { .. } => PemProblem::NoEnd,
        pem::Error::IllegalSectionStart { .. } => PemProblem::Begin,
        pem::Error::Base64Decode(_) => PemProblem::Base64,
        _ => PemProblem::Other,
    };
    let origin = origin.clone();
    TlsError::Pem { origin, problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_malformed_is_named_without_the_text() {
        for (text, expected) in [
            ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n", PemProblem::NoEnd),
            (
                "-----BEGIN PRIVATE KEY-----c2VjcmV0-----END PRIVATE KEY-----x",
                PemProblem::Begin,
            ),
            (
                "-----BEGIN PRIVATE KEY-----\nc2VjcmV0!\n-----END PRIVATE KEY-----\n",
                PemProblem::Base64,
            ),
        ] {
            let error = key(text.as_bytes(), &Origin::Memory).unwrap_err();
            let TlsError::Pem { problem, .. } = error else {
                panic!("{error}");
            };
            assert_eq!(problem, expected);
            assert!(!format!("{error:?} {error}").contains("c2VjcmV0"));
        }
    }

    #[test]
    fn what_is_absent_is_named() {
        let origin = Origin::Memory;
        for text in ["", "garbage\n", "\0\u{7f}-----BEGIN"] {
            let text = text.as_bytes();
            assert!(matches!(
                certificates(text, &origin),
                Err(TlsError::NoCertificate { .. })
            ));
            assert!(matches!(key(text, &origin), Err(TlsError::NoKey { .. })));
            assert!(matches!(crls(text, &origin), Err(TlsError::NoCrl { .. })));
        }
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n\
                         -----END ENCRYPTED PRIVATE KEY-----\n";
        let error = key(encrypted.as_bytes(), &origin).unwrap_err();
        assert!(matches!(error, TlsError::EncryptedKey { .. }), "{error}");
    }
}
