//! [`Authority`]: issues certificates for tests and benchmarks, as PEM text. It panics where a program would
//! return an error.

#[cfg(feature = "agreed")]
pub mod agreed;
#[cfg(feature = "hostile")]
pub mod hostile;
#[cfg(feature = "hostile")]
pub mod sealer;
#[cfg(feature = "hostile")]
pub mod side;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use rcgen;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    CrlIssuingDistributionPoint, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};

/// A root with its key.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as the files of an identity have them.
pub struct Issued {
    /// In PEM.
    pub certificate: String,
    /// In PEM: PKCS#8.
    pub key: String,
    /// The same as DER.
    pub key_der: Vec<u8>,
}

impl Issued {
    fn new(certificate: String, key: &KeyPair) -> Self {
        Self {
            certificate,
            key: key.serialize_pem(),
            key_der: key.serialize_der(),
        }
    }
}

impl Authority {
    /// Creates a root with this common name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(authority(name), key).unwrap())
    }

    /// Returns a certificate of this authority, as one with this common name, for the key of `other`.
    #[must_use]
    pub fn certify(&self, name: &str, other: &Self) -> String {
        let certificate = authority(name).signed_by(other.0.key(), &self.0);
        certificate.unwrap().pem()
    }

    /// Returns its certificate as a root.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate.
    #[must_use]
    pub fn issue(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Issued::new(certificate.pem(), &key)
    }

    /// Issues a certificate with this DNS name.
    #[must_use]
    pub fn issue_to(&self, name: &str) -> Issued {
        self.issue(&named(name))
    }

    /// Lists these serial numbers as revoked.
    #[must_use]
    pub fn revoke(&self, serials: &[u64]) -> String {
        self.revoke_in(None, serials)
    }

    /// Lists these serial numbers as revoked, in a list with this distribution point and scope.
    #[must_use]
    pub fn revoke_in(&self, scope: Option<CrlIssuingDistributionPoint>, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|&serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2024, 2, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: scope,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A certificate with this DNS name, for servers and clients.
#[must_use]
pub fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params
}

/// A certificate for a server on this host, whose address is dialed over loopback.
#[must_use]
pub fn local_server() -> CertificateParams {
    let mut params = named("localhost");
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    params
        .subject_alt_names
        .extend(loopback.map(SanType::IpAddress));
    params
}

/// A certificate with these URIs and no other name.
#[must_use]
pub fn with_uris(uris: &[&str]) -> CertificateParams {
    let mut params = named("unused.example");
    let uris = uris
        .iter()
        .map(|&uri| SanType::URI(uri.try_into().unwrap()));
    params.subject_alt_names = uris.collect();
    params
}

/// A certificate that is its own authority.
#[must_use]
pub fn self_signed(params: &CertificateParams) -> Issued {
    let key = KeyPair::generate().unwrap();
    Issued::new(params.self_signed(&key).unwrap().pem(), &key)
}
