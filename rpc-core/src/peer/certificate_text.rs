//! A [`PeerCertificate`] as the value of a key of metadata, without its bytes.
//!
//! ```text
//! sha256=ab12…;expires=4102444800;uri=spiffe://example.org/orders;dns=a.example;ip=192.0.2.7;cn=Orders
//! ```
//!
//! Names are percent-encoded. All of them travel: a certificate with two URIs has no SPIFFE id, and a
//! list that was cut could make it have one.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::certificate::{Hex, PeerCertificate};

/// The longest text that is sent and read, in bytes: half of the metadata that a call has room for.
pub(super) const MAX_TEXT_LEN: usize = 2048;

/// Why a text is no certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MalformedText {
    #[error("it has {0} bytes, more than {MAX_TEXT_LEN}")]
    TooLong(usize),
    #[error("a part is not of the form `name=value`, or its name is unknown")]
    Part,
    #[error("its `{0}` is malformed")]
    Value(&'static str),
    #[error("its `{0}` is missing, or is there twice")]
    NotOne(&'static str),
}

/// Writes a certificate, in printable ASCII.
pub(super) fn write(certificate: &PeerCertificate) -> String {
    let expires = match certificate.expires().duration_since(UNIX_EPOCH) {
        Ok(after) => i128::from(after.as_secs()),
        Err(before) => -i128::from(before.duration().as_secs()),
    };
    let hash = Hex(certificate.fingerprint());
    let mut text = format!("sha256={hash};expires={expires}");
    for uri in certificate.uris() {
        push(&mut text, "uri", uri);
    }
    for name in certificate.dns_names() {
        push(&mut text, "dns", name);
    }
    for address in certificate.ip_addresses() {
        push(&mut text, "ip", &address.to_string());
    }
    if let Some(name) = certificate.common_name() {
        push(&mut text, "cn", name);
    }
    text
}

fn push(text: &mut String, name: &str, value: &str) {
    text.push(';');
    text.push_str(name);
    text.push('=');
    for byte in value.bytes() {
        match byte {
            b'0'..=b'9'
            | b'A'..=b'Z'
            | b'a'..=b'z'
            | b'-'
            | b'.'
            | b'_'
            | b'~'
            | b':'
            | b'/'
            | b'*' => {
                text.push(char::from(byte));
            }
            // Writing to a string does not fail.
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
}

/// Reads what [`write()`] has written. The text is a peer's.
///
/// # Errors
///
/// Returns an error if it is anything else.
pub(super) fn read(text: &str) -> Result<PeerCertificate, MalformedText> {
    if text.len() > MAX_TEXT_LEN {
        return Err(MalformedText::TooLong(text.len()));
    }
    let (mut fingerprint, mut expires, mut common_name) = (None, None, None);
    let (mut uris, mut dns_names, mut ip_addresses) = (Vec::new(), Vec::new(), Vec::new());
    for part in text.split(';') {
        let (name, value) = part.split_once('=').ok_or(MalformedText::Part)?;
        match name {
            "sha256" => set(&mut fingerprint, "sha256", hash(value))?,
            "expires" => set(&mut expires, "expires", time(value))?,
            "cn" => set(&mut common_name, "cn", decoded(value))?,
            "uri" => uris.push(decoded(value).ok_or(MalformedText::Value("uri"))?),
            "dns" => dns_names.push(decoded(value).ok_or(MalformedText::Value("dns"))?),
            "ip" => {
                let address = decoded(value).and_then(|text| text.parse::<IpAddr>().ok());
                ip_addresses.push(address.ok_or(MalformedText::Value("ip"))?);
            }
            _ => return Err(MalformedText::Part),
        }
    }
    let fingerprint = fingerprint.ok_or(MalformedText::NotOne("sha256"))?;
    let expires = expires.ok_or(MalformedText::NotOne("expires"))?;
    let certificate = PeerCertificate::new(Vec::new(), fingerprint, expires)
        .with_uris(uris)
        .with_dns_names(dns_names)
        .with_ip_addresses(ip_addresses);
    Ok(match common_name {
        Some(name) => certificate.with_common_name(&name),
        None => certificate,
    })
}

/// Sets what may be there once.
fn set<T>(to: &mut Option<T>, name: &'static str, value: Option<T>) -> Result<(), MalformedText> {
    let value = value.ok_or(MalformedText::Value(name))?;
    match to.replace(value) {
        None => Ok(()),
        Some(_) => Err(MalformedText::NotOne(name)),
    }
}

fn hash(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 2 * hash.len() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
        *byte = byte_of(pair)?;
    }
    Some(hash)
}

fn time(text: &str) -> Option<SystemTime> {
    let seconds: i64 = text.parse().ok()?;
    let distance = Duration::from_secs(seconds.unsigned_abs());
    match seconds {
        0.. => UNIX_EPOCH.checked_add(distance),
        _ => UNIX_EPOCH.checked_sub(distance),
    }
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        let mut byte = *first;
        if byte == b'%' {
            let (pair, after) = after.split_at_checked(2)?;
            (byte, rest) = (byte_of(pair)?, after);
        }
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

/// Returns the byte of two hexadecimal digits.
fn byte_of(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match pair {
        [high, low] => u8::try_from(16 * digit(*high)? + digit(*low)?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> PeerCertificate {
        PeerCertificate::new(Vec::new(), [0x0f; 32], UNIX_EPOCH - Duration::from_secs(9))
            .with_uris(vec!["spiffe://a/b".to_owned(), "\\xff".to_owned()])
            .with_dns_names(vec!["*.example".to_owned(), String::new()])
            .with_ip_addresses(vec!["::1".parse().unwrap(), "192.0.2.1".parse().unwrap()])
            .with_common_name("a;uri=spiffe://x/y;\u{202e}%41 =\u{1b}\n")
    }

    #[test]
    fn what_is_written_is_read() {
        for certificate in [
            full(),
            PeerCertificate::new(Vec::new(), [0; 32], UNIX_EPOCH),
        ] {
            let text = write(&certificate);
            assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
            assert_eq!(read(&text).unwrap(), certificate);
        }
    }

    #[test]
    fn a_text_that_is_cut_has_no_other_certificate_but_one_with_fewer_names() {
        let text = write(&full());
        for len in 0..text.len() {
            if let Ok(read) = read(&text[..len]) {
                assert_eq!(read.fingerprint(), full().fingerprint());
            }
        }
    }

    #[test]
    fn what_is_malformed_is_an_error() {
        let zeros = "0".repeat(64);
        let good = format!("sha256={zeros};expires=1");
        read(&good).unwrap();
        for (text, error) in [
            (String::new(), MalformedText::Part),
            (format!("{good};"), MalformedText::Part),
            (format!("{good};email=a"), MalformedText::Part),
            (
                format!("{good};expires=1"),
                MalformedText::NotOne("expires"),
            ),
            (format!("sha256={zeros}"), MalformedText::NotOne("expires")),
            ("expires=1".to_owned(), MalformedText::NotOne("sha256")),
            (format!("{good};cn=a;cn=a"), MalformedText::NotOne("cn")),
            (
                format!("sha256={zeros}0;expires=1"),
                MalformedText::Value("sha256"),
            ),
            (
                format!("sha256={};expires=1", "g".repeat(64)),
                MalformedText::Value("sha256"),
            ),
            (
                format!("sha256={zeros};expires=9223372036854775808"),
                MalformedText::Value("expires"),
            ),
            (format!("{good};uri=%"), MalformedText::Value("uri")),
            (format!("{good};uri=%f"), MalformedText::Value("uri")),
            (format!("{good};dns=%+1"), MalformedText::Value("dns")),
            (format!("{good};dns=%ff"), MalformedText::Value("dns")),
            (format!("{good};ip=1.1.1"), MalformedText::Value("ip")),
            ("x".repeat(2049), MalformedText::TooLong(2049)),
        ] {
            assert_eq!(read(&text), Err(error), "{text}");
        }
        // The system's clock may not reach so far, and then it is an error.
        for expires in [i64::MIN, i64::MAX] {
            let _ = read(&format!("sha256={zeros};expires={expires}"));
        }
    }
}
