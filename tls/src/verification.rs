//! How the certificate of a peer is verified: by rustls, but only if that costs little, and with an error
//! that says what to do about it.
//!
//! A peer chooses the certificates that it sends with its own, before anybody knows it. rustls tries each
//! of them as the issuer of each other one whose name fits, and looks at signatures last. Nine certificates of
//! one name, none of which anybody has signed, take it a quarter of a second. So a peer may send six, as
//! many as a way to a root has, and two of one name.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertRevocationListError, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    OtherError, RootCertStore, SignatureScheme,
};

use crate::certificate;
use crate::expect::{UnexpectedServer, unnamed};
use crate::provider::provider;

/// Most certificates that a peer may send with its own. No way to a root that rustls takes has more.
pub(crate) const MOST_ISSUERS: usize = 6;

/// Most of them that may have one name: an authority whose certificate is of its old root, and of its new one.
pub(crate) const MOST_OF_A_NAME: usize = 2;

/// Why the certificate of a peer is refused, if rustls has no word for it, or a misleading one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error(
        "more than {MOST_ISSUERS} other certificates came with it: send those on the way to a root, and no others"
    )]
    ManyIssuers,
    #[error(
        "more than {MOST_OF_A_NAME} certificates of one authority came with it: send those of one way to a root"
    )]
    ManyOfAName,
    #[error(
        "this side's lists of revoked certificates say nothing of an authority on the way from it to the root: add the list of that authority"
    )]
    NoList,
    #[error(
        "this side's list of revoked certificates cannot be believed ({0:?}): have it issued again, by the key that issued the certificate"
    )]
    BadList(CertRevocationListError),
}

/// Returns the certificates that a peer has sent behind its own, each once, if it takes little to find a way
/// through them.
pub(crate) fn issuers<'a>(
    sent: &'a [CertificateDer<'_>],
) -> Result<Vec<CertificateDer<'a>>, Refusal> {
    let mut issuers: Vec<CertificateDer<'a>> = Vec::new();
    // As roots, since rustls tells the names of those. Nobody believes them.
    let mut named = RootCertStore::empty();
    for certificate in sent {
        let certificate = CertificateDer::from(&**certificate);
        // What is no certificate leads nowhere.
        if issuers.contains(&certificate) || named.add(certificate.clone()).is_err() {
            continue;
        }
        if issuers.len() == MOST_ISSUERS {
            return Err(Refusal::ManyIssuers);
        }
        issuers.push(certificate);
        let name = |index: usize| &named.roots[index].subject;
        let new = issuers.len() - 1;
        if (0..new).filter(|&other| name(other) == name(new)).count() == MOST_OF_A_NAME {
            return Err(Refusal::ManyOfAName);
        }
    }
    Ok(issuers)
}

/// Returns the error that the peer is told and that the log has.
fn told(error: Error) -> Error {
    match error {
        Error::InvalidCertRevocationList(reason) => Refusal::BadList(reason).into(),
        Error::InvalidCertificate(CertificateError::UnknownRevocationStatus) => {
            Refusal::NoList.into()
        }
        error => error,
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        other(Arc::new(refusal))
    }
}

fn other(error: Arc<dyn std::error::Error + Send + Sync>) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(error)))
}

/// The methods that the two traits have in common: rustls' verifier does what they say.
macro_rules! signatures_by_rustls {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verifier.verify_tls12_signature(message, cert, dss)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verifier.verify_tls13_signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.verifier.supported_verify_schemes()
        }
    };
}

/// Verifies clients.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    pub(crate) are_certificates_demanded: bool,
}

impl ClientCertVerifier for ClientVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let issuers = issuers(intermediates)?;
        let verified = self.verifier.verify_client_cert(end_entity, &issuers, now);
        verified.map_err(told)
    }

    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.are_certificates_demanded
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    signatures_by_rustls!();
}

/// Verifies servers.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    pub(crate) verifier: Arc<WebPkiServerVerifier>,
    pub(crate) roots: Arc<RootCertStore>,
    /// The SPIFFE id that a server has to have. Without one, it has to have the name that was dialed.
    pub(crate) id: Option<Arc<str>>,
}

impl ServerVerifier {
    /// Verifies all of a certificate but its names.
    fn verify_all_but_the_name(
        &self,
        end_entity: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            issuers,
            now,
            provider().signature_verification_algorithms.all,
        )?;
        // That does not look at revocation lists, and nothing of rustls' does without a name. The name
        // comes last (rustls 0.23, src/webpki/server_verifier.rs): who is told that only it is wrong, has
        // passed the lists.
        let verified =
            self.verifier
                .verify_server_cert(end_entity, issuers, &unnamed(), ocsp_response, now);
        match verified {
            Ok(_)
            | Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let issuers = issuers(intermediates)?;
        let Some(expected) = &self.id else {
            let verifier = &self.verifier;
            let verified =
                verifier.verify_server_cert(end_entity, &issuers, server_name, ocsp_response, now);
            return verified.map_err(told);
        };
        self.verify_all_but_the_name(end_entity, &issuers, ocsp_response, now)
            .map_err(told)?;
        let presented = certificate::parse(end_entity).map_err(|error| other(Arc::new(error)))?;
        match presented.spiffe_id() == Some(&**expected) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(other(Arc::new(UnexpectedServer::new(
                Arc::clone(expected),
                presented,
            )))),
        }
    }

    signatures_by_rustls!();
}
