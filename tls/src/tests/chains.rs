//! The certificates that a peer sends with its own.

use std::fs;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, Error, ServerConfig};
use tls_testing::{Authority, Issued};

use super::in_memory::shake_configs;
use super::{AsIdentity, AsRoots};
use crate::provider::provider;
use crate::{ClientAuth, ClientTls, Expect, Identity, Origin, ServerTls, TlsError, pem};

/// What a peer sends, which need not be an [`Identity`].
fn resolver(chain: &str, issued: &Issued) -> Arc<SingleCertAndKey> {
    let chain = pem::certificates(chain.as_bytes(), &Origin::Memory).unwrap();
    resolver_of(chain, issued)
}

fn resolver_of(chain: Vec<CertificateDer<'static>>, issued: &Issued) -> Arc<SingleCertAndKey> {
    let key = PrivateKeyDer::try_from(issued.key_der.clone()).unwrap();
    let key = CertifiedKey::from_der(chain, key, &provider()).unwrap();
    Arc::new(key.into())
}

fn client_with(resolver: &Arc<SingleCertAndKey>, tls: &ClientTls) -> Arc<ClientConfig> {
    let mut config = (*tls.config()).clone();
    config.client_auth_cert_resolver = Arc::clone(resolver) as _;
    Arc::new(config)
}

fn server_with(resolver: &Arc<SingleCertAndKey>, tls: &ServerTls) -> Arc<ServerConfig> {
    let mut config = (*tls.config()).clone();
    config.cert_resolver = Arc::clone(resolver) as _;
    Arc::new(config)
}

/// Has a client and servers present themselves by `sent`, to peers that believe `roots`. Returns what each of
/// those says, or nothing if it accepts.
fn verified(sent: &Arc<SingleCertAndKey>, roots: &Authority) -> [Option<String>; 3] {
    let other = roots.issue_to("localhost").identity();
    let server = ServerTls::new(other.clone()).clients(roots.roots(), ClientAuth::Required);
    let client = ClientTls::new(roots.roots());
    let of_id = client
        .server(Expect::Spiffe("spiffe://a/b".to_owned()))
        .unwrap();
    let server_alone = ServerTls::new(other);
    let shaken = [
        shake_configs(client_with(sent, &client), server.config()),
        shake_configs(client.config(), server_with(sent, &server_alone)),
        shake_configs(of_id.config(), server_with(sent, &server_alone)),
    ];
    shaken.map(|shaken| match shaken.err() {
        None => None,
        Some(Error::InvalidCertificate(error)) => Some(format!("{error:?} {error}")),
        Some(error) => panic!("{error:?}"),
    })
}

/// A peer that nobody knows has its certificates tried, each as the issuer of each other one.
#[test]
fn certificates_through_which_many_ways_lead_are_not_tried() {
    let root = Authority::new("root");
    let namesakes =
        |name: &str, count| -> Vec<_> { (0..count).map(|_| Authority::new(name).pem()).collect() };
    let of = |others: Vec<String>| {
        let issued = Authority::new("nobody").issue_to("localhost");
        resolver(&(issued.certificate.clone() + &others.concat()), &issued)
    };
    let many = |count| (0..count).flat_map(|number| namesakes(&number.to_string(), 1));
    // The issuer of the peer's own certificate, and others that issue nothing.
    for (others, expected) in [
        (namesakes("nobody", 9), "ManyOfAName"),
        (namesakes("nobody", 3), "ManyOfAName"),
        (namesakes("nobody", 2), "UnknownIssuer"),
        (namesakes("other", 3), "ManyOfAName"),
        (many(7).collect(), "ManyIssuers"),
        (many(6).collect(), "UnknownIssuer"),
        (many(100).collect(), "ManyIssuers"),
        // The name of the root, which is no secret.
        (namesakes("root", 3), "ManyOfAName"),
    ] {
        for error in verified(&of(others), &root) {
            let error = error.expect(expected);
            assert!(error.contains(expected), "{error}, but not {expected}");
        }
    }
}

#[test]
fn an_authority_may_have_the_certificates_of_two_roots() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let authority = Authority::new("authority");
    let issued = authority.issue(&tls_testing::local_server());
    let certified = [&old, &new].map(|root| root.certify("authority", &authority));
    for certified in [
        certified.concat(),
        certified.iter().rev().cloned().collect(),
    ] {
        // A root, which nobody needs, and nothing twice.
        let sent = issued.certificate.clone() + &certified + &old.pem() + &certified;
        for root in [&old, &new] {
            let [client, server, of_id] = verified(&resolver(&sent, &issued), root);
            assert_eq!((client, server), (None, None));
            assert!(of_id.unwrap().contains("UnexpectedServer"));
        }
        Identity::from_pem(sent.as_bytes(), issued.key.as_bytes()).unwrap();
    }
}

#[test]
fn what_is_no_certificate_leads_nowhere() {
    let root = Authority::new("root");
    let issued = root.issue(&tls_testing::local_server());
    let mut chain = pem::certificates(issued.certificate.as_bytes(), &Origin::Memory).unwrap();
    chain.extend((0..100).map(|byte| CertificateDer::from(vec![byte; 40])));
    let [client, server, _] = verified(&resolver_of(chain, &issued), &root);
    assert_eq!((client, server), (None, None));
}

/// What peers would refuse is refused when it is read.
#[test]
fn an_identity_has_one_way_to_a_root() {
    let issued = Authority::new("authority").issue_to("localhost");
    let namesakes: String = (0..3).map(|_| Authority::new("authority").pem()).collect();
    let chain = issued.certificate + &namesakes;
    let error = Identity::from_pem(chain.as_bytes(), issued.key.as_bytes()).unwrap_err();
    assert!(matches!(error, TlsError::Chain { .. }), "{error}");
    assert!(error.to_string().contains("one way to a root"), "{error}");
}

/// A list in the name of a root that the root has not signed would have all its certificates refused.
#[test]
fn a_list_is_signed_by_the_root_that_it_names() {
    let (root, namesake) = (Authority::new("root"), Authority::new("root"));
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("crl.pem");
    fs::write(&list, namesake.revoke(&[])).unwrap();
    let error = root.roots().with_crl_file(&list).unwrap_err();
    assert!(matches!(error, TlsError::CrlSignature { .. }), "{error}");
    assert!(error.to_string().contains("CN=root"), "{error}");
    // One of two roots of the name is enough.
    let both = root.pem() + &namesake.pem();
    let both = crate::Roots::from_pem(both.as_bytes()).unwrap();
    both.with_crl_file(&list).unwrap();
    fs::write(&list, root.revoke(&[])).unwrap();
    let roots = root.roots().with_crl_file(&list).unwrap();
    // A bad one later leaves it in use.
    fs::write(&list, namesake.revoke(&[])).unwrap();
    assert!(matches!(roots.reload(), Err(TlsError::CrlSignature { .. })));
}

/// An authority below a root is not known before it is seen, so its list is verified then.
#[test]
fn a_list_that_cannot_be_believed_is_named() {
    let (root, authority) = (Authority::new("root"), Authority::new("authority"));
    let issued = authority.issue_to("localhost");
    let chain = issued.certificate.clone() + &root.certify("authority", &authority);
    let identity = Identity::from_pem(chain.as_bytes(), issued.key.as_bytes()).unwrap();
    let server = ServerTls::new(root.issue_to("localhost").identity());
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("crl.pem");
    let verify = |lists: String| {
        fs::write(&list, lists).unwrap();
        let roots = root.roots().with_crl_file(&list).unwrap();
        let server = server.clients(roots, ClientAuth::Required);
        let client = ClientTls::new(root.roots()).identity(identity.clone());
        shake_configs(client.config(), server.config()).map(drop)
    };
    let good = root.revoke(&[]) + &authority.revoke(&[]);
    verify(good).unwrap();
    for (lists, expected) in [
        (
            root.revoke(&[]) + &Authority::new("authority").revoke(&[]),
            "cannot be believed",
        ),
        (root.revoke(&[]), "say nothing of an authority"),
    ] {
        let error = verify(lists).unwrap_err();
        let Error::InvalidCertificate(rustls::CertificateError::Other(reason)) = error else {
            panic!("{error:?}");
        };
        assert!(reason.0.to_string().contains(expected), "{reason}");
    }
}
