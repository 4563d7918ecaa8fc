//! [`Roots`]: the authorities whose certificates a process believes.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::{CertificateRevocationListDer, TrustAnchor};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use x509_parser::asn1_rs::{Sequence, ToDer};
use x509_parser::error::X509Error;
use x509_parser::prelude::{
    CertificateRevocationList, FromDer, ParsedExtension, SubjectPublicKeyInfo,
};

use crate::error::{Origin, TlsError};
use crate::pem;
use crate::provider::provider;
use crate::source::{MAX_FILE_LEN, Source, Taken};
use crate::verification::{ClientVerifier, ServerVerifier};

/// Most bytes of names of authorities that a server tells its clients. They need not know them: a client
/// that has one certificate sends it.
const MOST_NAMES: usize = 4096;

/// The longest file of revocation lists that is read, in bytes: about 300,000 certificates.
const MAX_LIST_LEN: u64 = 16 * 1024 * 1024;

/// The authorities whose certificates a process believes, and what they have revoked.
///
/// Files are followed: what replaces them is used for new connections some seconds later, without a
/// restart. The file of roots and those of revocation lists are taken together. If one is bad, all stay
/// as they are, and a warning is logged.
///
/// A clone shares them.
#[derive(Clone)]
pub struct Roots {
    anchors: Anchors,
    crl_files: Vec<PathBuf>,
    source: Arc<Source<Trust>>,
}

/// The roots as such.
#[derive(Clone)]
enum Anchors {
    File(PathBuf),
    Fixed(Origin, Arc<RootCertStore>),
}

/// What verifies peers by the roots and the revocation lists.
pub(crate) struct Trust {
    server: Arc<WebPkiServerVerifier>,
    client: Arc<dyn ClientCertVerifier>,
    /// The first step of a client's configuration. It is here because it can fail, as roots can, and the
    /// others cannot.
    pub(crate) config: ConfigBuilder<ClientConfig, WantsVerifier>,
    roots: Arc<RootCertStore>,
    crls: usize,
}

impl Trust {
    /// Returns what verifies clients.
    pub(crate) fn clients(&self, are_certificates_demanded: bool) -> ClientVerifier {
        ClientVerifier {
            verifier: Arc::clone(&self.client),
            are_certificates_demanded,
        }
    }

    /// Returns what verifies servers, which have to have this SPIFFE id or, without one, the name that is
    /// dialed.
    pub(crate) fn servers(&self, id: Option<Arc<str>>) -> ServerVerifier {
        ServerVerifier {
            verifier: Arc::clone(&self.server),
            roots: Arc::clone(&self.roots),
            id,
        }
    }
}

impl Roots {
    /// Reads a PEM file of root certificates, and follows it.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is malformed, or if it has no certificate.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self, TlsError> {
        Self::open(Anchors::File(path.into()), Vec::new())
    }

    /// Takes root certificates as PEM text. They stay as they are.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is malformed or has no certificate.
    pub fn from_pem(certificates: &[u8]) -> Result<Self, TlsError> {
        let store = store(certificates, &Origin::Memory)?;
        Self::open(Anchors::Fixed(Origin::Memory, store), Vec::new())
    }

    /// Takes the root certificates of the operating system, as they are now.
    ///
    /// It is for servers of the internet. A server that believes them accepts a client of any authority.
    ///
    /// # Errors
    ///
    /// Returns an error if there are none.
    pub fn system() -> Result<Self, TlsError> {
        let found = rustls_native_certs::load_native_certs();
        let mut store = RootCertStore::empty();
        // A store of the system may have old certificates that nothing can read any more.
        store.add_parsable_certificates(found.certs);
        if store.is_empty() {
            let source = found.errors.into_iter().next().map(Into::into);
            return Err(TlsError::NoSystemRoots { source });
        }
        Self::open(Anchors::Fixed(Origin::System, Arc::new(store)), Vec::new())
    }

    /// Reads a PEM file of certificate revocation lists, and follows it as well. A certificate that is
    /// listed is refused.
    ///
    /// From then on, so is each certificate about whose issuer there is no list: every authority on the
    /// way, with the root, has to have one. A list is used beyond the time of its next update. A
    /// second file may add lists about other certificates. No file of lists may be longer than 16 MiB.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is malformed, if it has no list, if a list is in the
    /// name of a root that has not signed it, or if two lists are about the same certificates.
    pub fn with_crl_file(self, path: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let mut crl_files = self.crl_files;
        crl_files.push(path.into());
        Self::open(self.anchors, crl_files)
    }

    /// Reads the files now, rather than some seconds later. Does nothing if there are none.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is bad. All stay as they are.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.source.reload()
    }

    /// Returns what verifies peers now.
    pub(crate) fn get(&self) -> Taken<Trust> {
        self.source.get()
    }

    #[cfg(test)]
    pub(crate) fn look(&self) -> crate::source::Outcome {
        self.source.look()
    }

    fn open(anchors: Anchors, crl_files: Vec<PathBuf>) -> Result<Self, TlsError> {
        let mut files = Vec::new();
        if let Anchors::File(path) = &anchors {
            files.push((path.clone(), MAX_FILE_LEN));
        }
        files.extend(crl_files.iter().map(|path| (path.clone(), MAX_LIST_LEN)));
        let (from, lists) = (anchors.clone(), crl_files.clone());
        let source = Source::open("roots", files, move |contents| {
            make(&from, &lists, contents)
        })?;
        Ok(Self {
            anchors,
            crl_files,
            source,
        })
    }
}

impl fmt::Debug for Roots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trust = self.source.get().value;
        f.debug_struct("Roots")
            .field("from", &self.anchors.origin())
            .field("roots", &trust.roots.len())
            .field("crl_files", &self.crl_files)
            .field("crls", &trust.crls)
            .finish()
    }
}

impl Anchors {
    fn origin(&self) -> Origin {
        match self {
            Self::File(path) => Origin::File(path.clone()),
            Self::Fixed(origin, _) => origin.clone(),
        }
    }
}

/// Makes what verifies peers of the contents: that of the file of roots, if there is one, and then those
/// of the files of lists.
fn make(anchors: &Anchors, crl_files: &[PathBuf], contents: &[Vec<u8>]) -> Result<Trust, TlsError> {
    let mut contents = contents.iter();
    let roots = match anchors {
        Anchors::Fixed(_, roots) => Arc::clone(roots),
        Anchors::File(_) => {
            let text = contents.next().map_or(&[][..], Vec::as_slice);
            store(text, &anchors.origin())?
        }
    };
    let (mut crls, mut scopes) = (Vec::new(), Vec::<Scope>::new());
    for (path, text) in crl_files.iter().zip(contents) {
        let origin = Origin::File(path.clone());
        let lists = pem::crls(text, &origin)?;
        // Each file on its own, so that the error names the file.
        server_verifier(&roots, lists.clone(), &origin)?;
        for list in &lists {
            // Of two lists that are about a certificate, the verification asks the first.
            let scope = Scope::of(list, &roots, &origin)?;
            if scopes.iter().any(|other| other.overlaps(&scope)) {
                let issuer = scope.issuer_name;
                return Err(TlsError::CrlTwice { origin, issuer });
            }
            scopes.push(scope);
        }
        crls.extend(lists);
    }
    let origin = anchors.origin();
    let mut client = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider())
        .with_crls(crls.iter().cloned());
    // What a server says first has to fit into what a client waits for, with its chain.
    let names: usize = roots
        .subjects()
        .iter()
        .map(|name| name.as_ref().len())
        .sum();
    if names > MOST_NAMES {
        client = client.clear_root_hint_subjects();
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|source| TlsError::Provider { source })?;
    Ok(Trust {
        client: client.build().map_err(|error| refused(error, &origin))?,
        config,
        crls: crls.len(),
        server: server_verifier(&roots, crls, &origin)?,
        roots,
    })
}

/// The certificates that a revocation list is about.
struct Scope {
    /// Their issuer, as the verification compares it.
    issuer: Vec<u8>,
    issuer_name: String,
    /// Those of authorities only, or only the others (RFC 5280, 5.2.5); `None` for both. An authority that
    /// splits its list by distribution points says so in its certificates, but in those without any the
    /// verification finds the first part to be about all of them.
    of_authorities: Option<bool>,
}

impl Scope {
    fn of(list: &[u8], roots: &RootCertStore, origin: &Origin) -> Result<Self, TlsError> {
        let unreadable = |_| TlsError::Crl {
            origin: origin.clone(),
            source: rustls::CertRevocationListError::ParseError.into(),
        };
        let (_, list) = CertificateRevocationList::from_der(list).map_err(unreadable)?;
        let issuer = list.issuer();
        if !may_be_signed(&list, roots) {
            return Err(TlsError::CrlSignature {
                origin: origin.clone(),
                issuer: issuer.to_string(),
            });
        }
        let of_authorities = list.extensions().iter().find_map(|extension| {
            let ParsedExtension::IssuingDistributionPoint(point) = extension.parsed_extension()
            else {
                return None;
            };
            (point.only_contains_ca_certs || point.only_contains_user_certs)
                .then_some(point.only_contains_ca_certs)
        });
        Ok(Self {
            issuer: issuer.as_raw().to_vec(),
            issuer_name: issuer.to_string(),
            of_authorities,
        })
    }

    /// Returns true if a certificate may be in the scope of both.
    fn overlaps(&self, other: &Self) -> bool {
        let is_disjoint = match (self.of_authorities, other.of_authorities) {
            (Some(one), Some(another)) => one != another,
            _ => false,
        };
        self.issuer == other.issuer && !is_disjoint
    }
}

/// Returns false if a root has the name of the list's issuer, and none of that name has signed the list. Lists of
/// other authorities, and kinds of signatures that are unknown here, are left to the verification.
fn may_be_signed(list: &CertificateRevocationList<'_>, roots: &RootCertStore) -> bool {
    let issuer = list.issuer().as_raw();
    let mut named = roots
        .roots
        .iter()
        .filter(|root| in_sequence(&root.subject).as_deref() == Some(issuer))
        .peekable();
    let is_signed_by = |root: &TrustAnchor<'_>| {
        let key = in_sequence(&root.subject_public_key_info);
        let key = key.as_deref().map(SubjectPublicKeyInfo::from_der);
        let Some(Ok((_, key))) = key else {
            return true;
        };
        let verified = list.verify_signature(&key);
        !matches!(verified, Err(X509Error::SignatureVerificationError))
    };
    named.peek().is_none() || named.any(is_signed_by)
}

/// A root has its name and its key without the tag of a sequence.
fn in_sequence(content: &[u8]) -> Option<Vec<u8>> {
    Sequence::new(content.into()).to_der_vec().ok()
}

fn server_verifier(
    roots: &Arc<RootCertStore>,
    crls: Vec<CertificateRevocationListDer<'static>>,
    origin: &Origin,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), provider())
        .with_crls(crls)
        .build()
        .map_err(|error| refused(error, origin))
}

fn refused(error: VerifierBuilderError, origin: &Origin) -> TlsError {
    let origin = origin.clone();
    match error {
        VerifierBuilderError::InvalidCrl(error) => TlsError::Crl {
            origin,
            source: error.into(),
        },
        _ => TlsError::NoCertificate { origin },
    }
}

/// Reads root certificates: at least one.
fn store(text: &[u8], origin: &Origin) -> Result<Arc<RootCertStore>, TlsError> {
    let mut store = RootCertStore::empty();
    for (index, certificate) in pem::certificates(text, origin)?.into_iter().enumerate() {
        store
            .add(certificate)
            .map_err(|source| TlsError::Certificate {
                origin: origin.clone(),
                position: index + 1,
                source,
            })?;
    }
    Ok(Arc::new(store))
}

/// For a log: how many there are.
impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "root certificates: {}, revocation lists: {}",
            self.roots.len(),
            self.crls
        )
    }
}
