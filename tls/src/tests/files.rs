//! Files that are bad, and files that change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tracing::Level;

use super::in_memory::shake;
use super::log::logged;
use super::{AsIdentity, AsRoots};
use crate::source::{MAX_FILE_LEN, Outcome};
use crate::{ClientAuth, ClientTls, Identity, Origin, PemProblem, Roots, ServerTls, TlsError};
use tls_testing::rcgen::{CrlDistributionPoint, CrlIssuingDistributionPoint, CrlScope};
use tls_testing::{Authority, Issued, named};

struct Files {
    _folder: TempDir,
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(issued: &Issued) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Self {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
            _folder: folder,
        };
        files.write(issued);
        files
    }

    fn write(&self, issued: &Issued) {
        fs::write(&self.certificate, &issued.certificate).unwrap();
        fs::write(&self.key, &issued.key).unwrap();
    }

    fn identity(&self) -> Result<Identity, TlsError> {
        Identity::from_files(&self.certificate, &self.key)
    }
}

/// The fingerprint in `Debug`: which pair is in use.
fn fingerprint(identity: &Identity) -> String {
    let debug = format!("{identity:?}");
    let (_, rest) = debug.split_once("fingerprint: ").unwrap();
    rest[..64].to_owned()
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let authority = Authority::new("root");
    let issued = authority.issue_to("a.example");
    let files = Files::new(&issued);
    files.identity().unwrap();
    let check = |bad: &dyn Fn(&Path), expected: fn(&TlsError) -> bool| {
        for file in [&files.certificate, &files.key] {
            files.write(&issued);
            bad(file);
            let error = files.identity().unwrap_err();
            assert!(expected(&error), "{error:?}");
            assert!(
                error.to_string().contains(file.to_str().unwrap()),
                "{error}"
            );
            if file.is_dir() {
                fs::remove_dir(file).unwrap();
            }
        }
    };
    check(&|file| fs::remove_file(file).unwrap(), |error| {
        matches!(error, TlsError::Read { .. }) && error.to_string().contains("check the path")
    });
    check(
        &|file| {
            fs::remove_file(file).unwrap();
            fs::create_dir(file).unwrap();
        },
        |error| matches!(error, TlsError::NotAFile { .. }),
    );
    let is_absent = |error: &TlsError| {
        matches!(
            error,
            TlsError::NoCertificate { .. } | TlsError::NoKey { .. }
        )
    };
    for content in [&b""[..], b"garbage", &[0xff; 1000], &[b'\n'; 100]] {
        check(&|file| fs::write(file, content).unwrap(), is_absent);
    }
    let longest = vec![b'\n'; MAX_FILE_LEN as usize];
    check(&|file| fs::write(file, &longest).unwrap(), is_absent);
    let longer = vec![b'\n'; MAX_FILE_LEN as usize + 1];
    check(&|file| fs::write(file, &longer).unwrap(), |error| {
        matches!(
            error,
            TlsError::TooLong {
                limit: MAX_FILE_LEN,
                ..
            }
        )
    });
    // Cut in the middle.
    check(
        &|file| {
            let content = fs::read(file).unwrap();
            fs::write(file, &content[..content.len() / 2]).unwrap();
        },
        |error| {
            let problem = PemProblem::NoEnd;
            matches!(error, TlsError::Pem { problem: found, .. } if *found == problem)
        },
    );
    // Well-formed PEM of malformed DER.
    files.write(&issued);
    let sections = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(
        &files.certificate,
        format!("{}{sections}", issued.certificate),
    )
    .unwrap();
    let error = files.identity().unwrap_err();
    assert!(
        matches!(error, TlsError::Certificate { position: 2, .. }),
        "{error}"
    );
    files.write(&issued);
    let section = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    fs::write(&files.key, section).unwrap();
    let error = files.identity().unwrap_err();
    assert!(matches!(error, TlsError::Key { .. }), "{error}");
}

#[test]
fn the_key_is_that_of_the_certificate() {
    let authority = Authority::new("root");
    let (one, two) = (
        authority.issue_to("a.example"),
        authority.issue_to("a.example"),
    );
    let error = Identity::from_pem(one.certificate.as_bytes(), two.key.as_bytes()).unwrap_err();
    let TlsError::KeyMismatch { certificates, key } = &error else {
        panic!("{error}");
    };
    assert_eq!((certificates, key), (&Origin::Memory, &Origin::Memory));
    let chain = format!("{}{}", authority.pem(), one.certificate);
    let error = Identity::from_pem(chain.as_bytes(), one.key.as_bytes()).unwrap_err();
    assert!(matches!(error, TlsError::KeyMismatch { .. }), "{error}");
    // One file may have all of it.
    let all = format!("{}{}{}", one.key, one.certificate, authority.pem());
    Identity::from_pem(all.as_bytes(), all.as_bytes()).unwrap();
}

#[test]
fn a_new_pair_is_taken_and_a_bad_one_is_not() {
    let authority = Authority::new("root");
    let files = Files::new(&authority.issue_to("old.example"));
    let identity = files.identity().unwrap();
    let server = ServerTls::new(identity.clone());
    let client = ClientTls::new(authority.roots());
    let accepts = |name: &str| shake(&client, name, &server).is_ok();
    let first = server.config();
    assert!(Arc::ptr_eq(&first, &server.config()));
    assert!(accepts("old.example"));
    // A look.
    let before = identity.expires();
    let mut params = named("new.example");
    params.not_after = rcgen::date_time_ymd(2100, 1, 1);
    let new = authority.issue(&params);
    files.write(&new);
    let lines = logged(|| assert_eq!(identity.look(), Outcome::Taken));
    let [(Level::INFO, line)] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.contains("new.example") && line.contains("2100"),
        "{line}"
    );
    assert!(logged(|| assert_eq!(identity.look(), Outcome::Same)).is_empty());
    assert!(!Arc::ptr_eq(&first, &server.config()));
    assert!(accepts("new.example") && !accepts("old.example"));
    assert_ne!(identity.expires(), before);
    // A bad one.
    let (fingerprint_before, config) = (fingerprint(&identity), server.config());
    fs::write(&files.certificate, "garbage").unwrap();
    assert!(matches!(
        identity.reload(),
        Err(TlsError::NoCertificate { .. })
    ));
    assert!(server.reload().is_err());
    let lines = logged(|| {
        assert_eq!(identity.look(), Outcome::Refused);
        assert_eq!(identity.look(), Outcome::Same);
        fs::write(&files.certificate, "other garbage").unwrap();
        assert_eq!(identity.look(), Outcome::Refused);
        fs::remove_file(&files.certificate).unwrap();
        assert_eq!(identity.look(), Outcome::Refused);
        assert_eq!(identity.look(), Outcome::Same);
        files.write(&new);
        assert_eq!(identity.look(), Outcome::Back);
        assert_eq!(identity.look(), Outcome::Same);
    });
    let levels: Vec<_> = lines.iter().map(|(level, _)| *level).collect();
    assert_eq!(
        levels,
        [Level::WARN, Level::WARN, Level::WARN, Level::INFO],
        "{lines:?}"
    );
    assert_eq!(fingerprint(&identity), fingerprint_before);
    assert!(Arc::ptr_eq(&config, &server.config()));
    // The program asks for it.
    files.write(&authority.issue_to("third.example"));
    server.reload().unwrap();
    assert!(accepts("third.example"));
    assert_eq!(identity.look(), Outcome::Same);
}

#[test]
fn half_of_a_pair_is_not_taken() {
    let authority = Authority::new("root");
    let files = Files::new(&authority.issue_to("a.example"));
    let identity = files.identity().unwrap();
    let before = fingerprint(&identity);
    let new = authority.issue_to("a.example");
    fs::write(&files.certificate, &new.certificate).unwrap();
    assert!(matches!(
        identity.reload(),
        Err(TlsError::KeyMismatch { .. })
    ));
    assert_eq!(identity.look(), Outcome::Refused);
    assert_eq!(fingerprint(&identity), before);
    fs::write(&files.key, &new.key).unwrap();
    assert_eq!(identity.look(), Outcome::Taken);
    assert_ne!(fingerprint(&identity), before);
}

#[test]
fn what_is_in_memory_stays() {
    let authority = Authority::new("root");
    let identity = authority.issue_to("a.example").identity();
    let roots = authority.roots();
    identity.reload().unwrap();
    roots.reload().unwrap();
    assert_eq!(
        (identity.look(), roots.look()),
        (Outcome::Same, Outcome::Same)
    );
    let server = ServerTls::new(identity).clients(roots.clone(), ClientAuth::Optional);
    server.reload().unwrap();
    ClientTls::new(roots).reload().unwrap();
}

#[test]
fn a_device_is_no_file_and_is_not_read() {
    for path in ["/dev/zero", "/dev/null", "/"] {
        let error = Roots::from_file(path).unwrap_err();
        assert!(matches!(error, TlsError::NotAFile { .. }), "{error}");
    }
}

/// Whether the system has roots depends on where the test runs.
#[test]
fn the_roots_of_the_system_are_some_or_an_error() {
    match Roots::system() {
        Ok(roots) => {
            let debug = format!("{roots:?}");
            assert!(
                debug.contains("System") && !debug.contains("roots: 0"),
                "{debug}"
            );
        }
        Err(error) => {
            assert!(matches!(error, TlsError::NoSystemRoots { .. }), "{error}");
        }
    }
}

#[test]
fn roots_are_followed() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("roots.pem");
    fs::write(&file, old.pem()).unwrap();
    let roots = Roots::from_file(&file).unwrap();
    let client = ClientTls::new(roots.clone());
    let server = |authority: &Authority| ServerTls::new(authority.issue_to("a.example").identity());
    let believes = |authority| shake(&client, "a.example", &server(authority)).is_ok();
    assert!(believes(&old) && !believes(&new));
    fs::write(&file, format!("{}{}", old.pem(), new.pem())).unwrap();
    assert_eq!(roots.look(), Outcome::Taken);
    assert!(believes(&old) && believes(&new));
    fs::write(&file, new.pem()).unwrap();
    client.reload().unwrap();
    assert!(!believes(&old) && believes(&new));
    for bad in ["", "garbage", &old.issue_to("a").key] {
        fs::write(&file, bad).unwrap();
        assert!(matches!(
            client.reload(),
            Err(TlsError::NoCertificate { .. })
        ));
        assert!(matches!(
            Roots::from_file(&file),
            Err(TlsError::NoCertificate { .. })
        ));
        assert!(matches!(
            Roots::from_pem(bad.as_bytes()),
            Err(TlsError::NoCertificate { .. })
        ));
    }
    assert!(believes(&new));
    let malformed = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let error = Roots::from_pem(malformed.as_bytes()).unwrap_err();
    assert!(
        matches!(error, TlsError::Certificate { position: 1, .. }),
        "{error}"
    );
}

/// Connects to the server with a certificate that has this serial number.
fn accepts(authority: &Authority, server: &ServerTls, serial: u64) -> Result<(), rustls::Error> {
    let mut params = named("client.example");
    params.serial_number = Some(serial.into());
    let identity = authority.issue(&params).identity();
    let client = ClientTls::new(authority.roots()).identity(identity);
    shake(&client, "a.example", server).map(drop)
}

#[test]
fn a_list_revokes_a_client_while_the_server_runs() {
    let authority = Authority::new("root");
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("crl.pem");
    fs::write(&list, authority.revoke(&[])).unwrap();
    let roots = authority.roots().with_crl_file(&list).unwrap();
    let identity = authority.issue_to("a.example").identity();
    let server = ServerTls::new(identity).clients(roots.clone(), ClientAuth::Optional);
    let accepts = |serial| accepts(&authority, &server, serial);
    accepts(7).unwrap();
    fs::write(&list, authority.revoke(&[7])).unwrap();
    let lines = logged(|| assert_eq!(roots.look(), Outcome::Taken));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let error = accepts(7).unwrap_err();
    assert!(format!("{error:?}").contains("Revoked"), "{error:?}");
    accepts(8).unwrap();
    // A list of another authority says nothing of this one's certificates.
    fs::write(&list, Authority::new("other").revoke(&[])).unwrap();
    server.reload().unwrap();
    let error = accepts(8).unwrap_err();
    assert!(format!("{error:?}").contains("NoList"), "{error:?}");
    for (bad, expected) in [
        ("", "NoCrl"),
        (
            "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
            "Crl",
        ),
    ] {
        fs::write(&list, bad).unwrap();
        let error = server.reload().unwrap_err();
        assert!(format!("{error:?}").starts_with(expected), "{error:?}");
        assert!(
            error.to_string().contains(list.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(roots.look(), Outcome::Refused);
    }
    // A second file adds to the first one.
    let second = folder.path().join("second.pem");
    fs::write(&list, Authority::new("other").revoke(&[])).unwrap();
    fs::write(&second, authority.revoke(&[7])).unwrap();
    let roots = roots.with_crl_file(&second).unwrap();
    assert!(format!("{roots:?}").contains("crls: 2"), "{roots:?}");
}

/// One of them would not be looked at: they are in two files, or in one.
#[test]
fn two_lists_about_the_same_certificates_are_an_error() {
    let authority = Authority::new("root");
    let folder = tempfile::tempdir().unwrap();
    let [list, second] = ["crl.pem", "second.pem"].map(|name| folder.path().join(name));
    fs::write(&list, Authority::new("other").revoke(&[])).unwrap();
    fs::write(&second, authority.revoke(&[7])).unwrap();
    let roots = authority.roots().with_crl_file(&list).unwrap();
    let roots = roots.with_crl_file(&second).unwrap();
    let both = authority.revoke(&[]) + &authority.revoke(&[8]);
    let of_users = authority.revoke_in(part("a", Some(CrlScope::UserCertsOnly)), &[8]);
    // In a certificate that names no distribution point, the first part would be taken for the whole.
    let parts = authority.revoke_in(part("a", None), &[8]);
    for content in [authority.revoke(&[8]), both, of_users, parts] {
        fs::write(&list, content).unwrap();
        let error = roots.reload().unwrap_err();
        assert!(matches!(error, TlsError::CrlTwice { .. }), "{error:?}");
        assert!(error.to_string().contains("CN=root"), "{error}");
    }
    let parts = ["a", "b"].map(|point| authority.revoke_in(part(point, None), &[8]));
    fs::write(&list, Authority::new("other").revoke(&[])).unwrap();
    fs::write(&second, parts.concat()).unwrap();
    let error = roots.reload().unwrap_err();
    assert!(matches!(error, TlsError::CrlTwice { .. }), "{error:?}");
}

/// A part of a list, as an authority may split it.
fn part(point: &str, scope: Option<CrlScope>) -> Option<CrlIssuingDistributionPoint> {
    let uris = vec![format!("http://crl.example/{point}")];
    let distribution_point = CrlDistributionPoint { uris };
    Some(CrlIssuingDistributionPoint {
        distribution_point,
        scope,
    })
}

/// An authority may have one list for the authorities below it and one for others.
#[test]
fn lists_for_authorities_and_for_others_are_both_looked_at() {
    let authority = Authority::new("root");
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("crl.pem");
    let of_users = authority.revoke_in(part("a", Some(CrlScope::UserCertsOnly)), &[7]);
    let of_authorities = authority.revoke_in(part("b", Some(CrlScope::CaCertsOnly)), &[8]);
    for lists in [
        of_users.clone() + &of_authorities,
        of_authorities + &of_users,
    ] {
        fs::write(&list, lists).unwrap();
        let roots = authority.roots().with_crl_file(&list).unwrap();
        let identity = authority.issue_to("a.example").identity();
        let server = ServerTls::new(identity).clients(roots, ClientAuth::Optional);
        let error = accepts(&authority, &server, 7).unwrap_err();
        assert!(format!("{error:?}").contains("Revoked"), "{error:?}");
        accepts(&authority, &server, 8).unwrap();
    }
}
