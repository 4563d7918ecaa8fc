//! The names in a certificate.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::digest;
use rpc_core::PeerCertificate;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

/// The tag of a URI among the alternative names of a subject.
const URI_TAG: u32 = 6;

/// The names or the times in a certificate cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is malformed: {0}")]
pub struct UnreadableCertificate(#[source] X509Error);

/// Reads the names of a certificate that has been verified, or is this program's own.
pub(crate) fn parse(der: &CertificateDer<'_>) -> Result<PeerCertificate, UnreadableCertificate> {
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|error| {
        UnreadableCertificate(match error {
            x509_parser::nom::Err::Error(error) | x509_parser::nom::Err::Failure(error) => error,
            x509_parser::nom::Err::Incomplete(_) => X509Error::InvalidCertificate,
        })
    })?;
    if !rest.is_empty() {
        return Err(UnreadableCertificate(X509Error::InvalidCertificate));
    }
    let names = certificate
        .subject_alternative_name()
        .map_err(UnreadableCertificate)?;
    let mut dns_names = Vec::new();
    let mut ip_addresses = Vec::new();
    let mut uris = Vec::new();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => ip_addresses.extend(ip_address(bytes)),
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            // It counts: a certificate with it and a SPIFFE id has two URIs, and so no SPIFFE id.
            GeneralName::Invalid(tag, bytes) if tag.0 == URI_TAG => {
                uris.push(bytes.escape_ascii().to_string());
            }
            _ => {}
        }
    }
    let expires = system_time(certificate.validity().not_after);
    let parsed = PeerCertificate::new(der.as_ref(), sha256(&[der]), expires)
        .with_dns_names(dns_names)
        .with_ip_addresses(ip_addresses)
        .with_uris(uris);
    let mut common_names = certificate.subject().iter_common_name();
    let common_name = common_names.next().and_then(|name| name.as_str().ok());
    Ok(match (common_name, common_names.next()) {
        (Some(name), None) => parsed.with_common_name(name),
        _ => parsed,
    })
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// Returns the SHA-256 of `parts`, one after the other.
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

fn system_time(time: ASN1Time) -> SystemTime {
    let since_epoch = Duration::from_secs(time.timestamp().unsigned_abs());
    let time = match time.timestamp() {
        0.. => UNIX_EPOCH.checked_add(since_epoch),
        _ => UNIX_EPOCH.checked_sub(since_epoch),
    };
    // A certificate's years have four digits, which every system's clock can express.
    time.unwrap_or(UNIX_EPOCH)
}

/// Prints a time for a log, in UTC.
pub(crate) fn utc(time: SystemTime) -> String {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_secs()),
        Err(before) => i64::try_from(before.duration().as_secs()).map(|seconds| -seconds),
    };
    let time = seconds
        .ok()
        .and_then(|seconds| ASN1Time::from_timestamp(seconds).ok());
    time.map_or_else(|| "at an unknown time".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn issue(params: &CertificateParams) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn all_names_are_read() {
        let names = ["a.example".to_owned(), "*.b.example".to_owned()];
        let mut params = CertificateParams::new(names.clone()).unwrap();
        let addresses: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        params
            .subject_alt_names
            .extend(addresses.map(SanType::IpAddress));
        let uri = "spiffe://example.org/orders";
        params
            .subject_alt_names
            .push(SanType::URI(uri.try_into().unwrap()));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "Bestellungen, größer");
        params.not_after = date_time_ymd(2100, 1, 1);
        let der = issue(&params);
        let parsed = parse(&der).unwrap();
        assert_eq!(parsed.dns_names(), names);
        assert_eq!(parsed.ip_addresses(), addresses);
        assert_eq!(parsed.uris(), [uri]);
        assert_eq!(parsed.spiffe_id(), Some(uri));
        assert_eq!(parsed.common_name(), Some("Bestellungen, größer"));
        assert_eq!(parsed.der(), der.as_ref());
        let sum = digest::digest(&digest::SHA256, &der);
        assert_eq!(parsed.fingerprint().as_slice(), sum.as_ref());
        let expires = UNIX_EPOCH + Duration::from_secs(4_102_444_800);
        assert_eq!(parsed.expires(), expires);
        assert_eq!(utc(expires), "Jan  1 00:00:00 2100 +00:00");
    }

    #[test]
    fn a_certificate_without_names_has_a_fingerprint() {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.not_before = date_time_ymd(1950, 1, 1);
        params.not_after = date_time_ymd(1960, 1, 1);
        let parsed = parse(&issue(&params)).unwrap();
        assert!(parsed.to_string().starts_with("sha256:"), "{parsed}");
        assert!(parsed.expires() < UNIX_EPOCH);
        assert!(utc(parsed.expires()).contains("1960"));
    }

    #[test]
    fn what_is_malformed_is_an_error() {
        let der = issue(&CertificateParams::new(vec!["a.example".to_owned()]).unwrap());
        for len in 0..der.len() {
            parse(&CertificateDer::from(&der[..len])).unwrap_err();
        }
        let mut longer = der.to_vec();
        longer.push(0);
        let error = parse(&CertificateDer::from(longer)).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the certificate is malformed")
        );
    }

    #[test]
    fn a_uri_that_is_no_text_counts() {
        // The alternative names of a subject: a SPIFFE id, and a URI of the byte 0xFF.
        let id = b"spiffe://a/b";
        let mut names = vec![0x30, 5 + 12, 0x86, 12];
        names.extend_from_slice(id);
        names.extend_from_slice(&[0x86, 1, 0xff]);
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let extension = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], names);
        params.custom_extensions.push(extension);
        let parsed = parse(&issue(&params)).unwrap();
        assert_eq!(parsed.uris(), ["spiffe://a/b", "\\xff"]);
        assert_eq!(parsed.spiffe_id(), None);
    }
}
