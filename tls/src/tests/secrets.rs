//! No part of a key is printed.

use std::fmt::Debug;
use std::fs;

use super::{AsIdentity, AsRoots};
use crate::{ClientAuth, ClientTls, Identity, ServerTls};
use tls_testing::{Authority, Issued};

/// Asserts that `text` has no piece of the key: of its PEM, of its bytes in hexadecimal, and of its
/// bytes as `Debug` prints them.
fn assert_secret(issued: &Issued, text: &str) {
    let body: String = issued
        .key
        .lines()
        .filter(|line| !line.starts_with('-'))
        .collect();
    for piece in body.as_bytes().windows(8) {
        let piece = str::from_utf8(piece).unwrap();
        assert!(!text.contains(piece), "{piece} is in {text}");
    }
    // Between the algorithm and the public key, which are in the certificate as well.
    let octets = [0x04, 32];
    let at = issued
        .key_der
        .windows(2)
        .position(|pair| pair == octets)
        .unwrap()
        + 2;
    let private = &issued.key_der[at..at + 32];
    let compact: String = text.to_lowercase().split_whitespace().collect();
    for piece in private.windows(6) {
        let hex: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
        let decimal: Vec<_> = piece.iter().map(u8::to_string).collect();
        assert!(!compact.contains(&hex), "{hex} is in {text}");
        assert!(
            !compact.contains(&decimal.join(",")),
            "{decimal:?} is in {text}"
        );
    }
}

#[test]
fn debug_prints_no_key() {
    let authority = Authority::new("root");
    let issued = authority.issue_to("a.example");
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    fs::write(&certificate, &issued.certificate).unwrap();
    fs::write(&key, &issued.key).unwrap();
    let from_files = Identity::from_files(&certificate, &key).unwrap();
    let server = ServerTls::new(issued.identity()).clients(authority.roots(), ClientAuth::Required);
    let client = ClientTls::new(authority.roots()).identity(from_files.clone());
    let (server_config, client_config) = (server.config(), client.config());
    let values: [&dyn Debug; 7] = [
        &from_files,
        &issued.identity(),
        &server,
        &client,
        &authority.roots(),
        &server_config,
        &client_config,
    ];
    for value in values {
        assert_secret(&issued, &format!("{value:?}"));
        assert_secret(&issued, &format!("{value:#?}"));
    }
    let debug = format!("{from_files:?}");
    assert!(
        debug.contains("tls.key") && debug.contains("expires"),
        "{debug}"
    );
    assert!(format!("{:?}", issued.identity()).contains("Memory"));
}

/// A key in the wrong file, or a broken one, is what an error could quote.
#[test]
fn errors_print_no_key() {
    let authority = Authority::new("root");
    let issued = authority.issue_to("a.example");
    let other = authority.issue_to("a.example");
    let key = issued.key.as_str();
    let texts = [
        key.to_owned(),
        key.replace('\n', ""),
        key.replace('\n', "").replacen("-----END", "\n-----END", 1),
        key.replacen("-----END", "-----FIN", 1),
        key.replace("KEY-----", "KEY----"),
        key.replace("PRIVATE KEY", "CERTIFICATE"),
        key.replace("PRIVATE KEY", "RSA PRIVATE KEY"),
        key.replace("PRIVATE KEY", "EC PRIVATE KEY"),
        key.replacen("\nM", "\nN", 1),
        key.replacen("\nM", "\n!", 1),
    ];
    for text in &texts {
        let text = text.as_bytes();
        for (certificates, key) in [
            (text, text),
            (other.certificate.as_bytes(), text),
            (issued.certificate.as_bytes(), text),
            (text, issued.key.as_bytes()),
        ] {
            let Err(error) = Identity::from_pem(certificates, key) else {
                continue;
            };
            assert_secret(&issued, &format!("{error} {error:?} {error:#?}"));
        }
        let error = crate::Roots::from_pem(text).unwrap_err();
        assert_secret(&issued, &format!("{error} {error:?}"));
    }
}
