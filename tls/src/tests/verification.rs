//! Which servers a client accepts, and which clients a server does.

use std::error::Error as _;
use std::sync::Arc;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, SanType, date_time_ymd};
use rustls::{CertificateError, ClientConfig, Error, ServerConfig};

use super::in_memory::{Shaken, shake, shake_configs};
use super::{AsIdentity, AsRoots};
use crate::{
    ALPN, ClientAuth, ClientTls, Expect, ServerTls, TlsError, UnexpectedServer, certificate,
};
use tls_testing::{Authority, Issued, named, self_signed, with_uris};

const ID: &str = "spiffe://example.org/orders";

fn dial(roots: &Authority, expect: Option<Expect>, server: &Issued) -> Result<Shaken, Error> {
    let client = ClientTls::new(roots.roots());
    let client = match expect {
        Some(expect) => client.server(expect).unwrap(),
        None => client,
    };
    shake(&client, "a.example", &ServerTls::new(server.identity()))
}

fn refusal(result: Result<Shaken, Error>) -> CertificateError {
    match result {
        Err(Error::InvalidCertificate(error)) => error,
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("the handshake ends well"),
    }
}

fn expect_name(name: &str) -> Option<Expect> {
    Some(Expect::Name(name.to_owned()))
}

fn expect_id(id: &str) -> Option<Expect> {
    Some(Expect::Spiffe(id.to_owned()))
}

#[test]
fn the_name_is_that_of_the_address_or_the_expected_one() {
    let authority = Authority::new("root");
    let server = authority.issue_to("a.example");
    let shaken = dial(&authority, None, &server).unwrap();
    assert_eq!((shaken.protocol.as_slice(), shaken.client), (ALPN, None));
    dial(&authority, expect_name("a.example"), &server).unwrap();
    let other = authority.issue_to("b.example");
    for (expect, server) in [(None, &other), (expect_name("b.example"), &server)] {
        let error = refusal(dial(&authority, expect, server));
        assert!(
            matches!(error, CertificateError::NotValidForNameContext { .. }),
            "{error:?}"
        );
    }
    dial(&authority, expect_name("b.example"), &other).unwrap();
    let mut params = named("a.example");
    let address = "2001:db8::1".parse().unwrap();
    params.subject_alt_names = vec![SanType::IpAddress(address)];
    let server = ServerTls::new(authority.issue(&params).identity());
    let client = ClientTls::new(authority.roots());
    shake(&client, "[2001:db8::1]", &server).unwrap();
    assert!(shake(&client, "2001:db8::2", &server).is_err());
    assert!(matches!(
        client.server_name("a b"),
        Err(TlsError::Name { .. })
    ));
    let error = client.server(Expect::Name("a b".to_owned())).unwrap_err();
    assert!(matches!(error, TlsError::Name { .. }), "{error}");
}

#[test]
fn a_spiffe_id_is_compared_exactly() {
    let authority = Authority::new("root");
    let dial = |expected: &str, params: &CertificateParams| {
        dial(&authority, expect_id(expected), &authority.issue(params))
    };
    dial(ID, &with_uris(&[ID])).unwrap();
    // Other names do not matter.
    let mut params = with_uris(&[ID]);
    params
        .subject_alt_names
        .push(SanType::DnsName("a.example".try_into().unwrap()));
    params
        .subject_alt_names
        .push(SanType::IpAddress([0, 0, 0, 0].into()));
    dial(ID, &params).unwrap();
    for (params, said) in [
        (
            with_uris(&["spiffe://example.org/order"]),
            "is that of spiffe://example.org/order;",
        ),
        (with_uris(&["spiffe://example.org/orders2"]), "is that of"),
        (with_uris(&["spiffe://example.org/Orders"]), "is that of"),
        (with_uris(&["spiffe://example.com/orders"]), "is that of"),
        (
            with_uris(&["https://example.org/orders"]),
            "has no SPIFFE id",
        ),
        (
            with_uris(&[ID, "https://example.org"]),
            "has 2 URIs, and so no SPIFFE id",
        ),
        (with_uris(&[ID, ID]), "has 2 URIs, and so no SPIFFE id"),
        (named("a.example"), "(a.example) has no SPIFFE id"),
        (named(ID), "has no SPIFFE id"),
    ] {
        let error = refusal(dial(ID, &params));
        let CertificateError::Other(other) = &error else {
            panic!("{error:?}");
        };
        let source = other.source().unwrap();
        let unexpected = source.downcast_ref::<UnexpectedServer>().unwrap();
        assert_eq!(unexpected.expected(), ID);
        assert!(unexpected.presented().spiffe_id() != Some(ID));
        let text = unexpected.to_string();
        assert!(text.contains(ID) && text.contains(said), "{text}");
    }
    let client = ClientTls::new(authority.roots());
    for id in [
        "",
        "orders",
        "spiffe://example.org",
        "https://example.org/orders",
    ] {
        let error = client.server(Expect::Spiffe(id.to_owned())).unwrap_err();
        assert!(matches!(error, TlsError::SpiffeId { .. }), "{error}");
    }
    // A host that is no name matters to nobody then.
    let client = client.server(Expect::Spiffe(ID.to_owned())).unwrap();
    let server = ServerTls::new(authority.issue(&with_uris(&[ID])).identity());
    shake(&client, "/run/socket", &server).unwrap();
}

/// The right SPIFFE id, or the right name, does not help a certificate that is bad otherwise.
#[test]
fn a_bad_certificate_is_refused_whatever_its_names() {
    let authority = Authority::new("root");
    let both = || {
        let mut params = with_uris(&[ID]);
        params
            .subject_alt_names
            .push(SanType::DnsName("a.example".try_into().unwrap()));
        params
    };
    let edited = |edit: fn(&mut CertificateParams)| {
        let mut params = both();
        edit(&mut params);
        authority.issue(&params)
    };
    let expired = edited(|params| {
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2001, 1, 1);
    });
    let early = edited(|params| {
        params.not_before = date_time_ymd(3000, 1, 1);
        params.not_after = date_time_ymd(3001, 1, 1);
    });
    let client_only = edited(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    let signer = edited(|params| {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    });
    let unknown = Authority::new("unknown").issue(&both());
    let namesake = Authority::new("root").issue(&both());
    let alone = self_signed(&both());
    for (server, expected) in [
        (&expired, "ExpiredContext"),
        (&early, "NotValidYetContext"),
        (&client_only, "InvalidPurposeContext"),
        (&signer, "CaUsedAsEndEntity"),
        (&unknown, "UnknownIssuer"),
        (&namesake, "BadSignature"),
        (&alone, "UnknownIssuer"),
    ] {
        for expect in [None, expect_name("a.example"), expect_id(ID)] {
            let error = format!("{:?}", refusal(dial(&authority, expect, server)));
            assert!(error.contains(expected), "{error}, but not {expected}");
        }
    }
    dial(&authority, expect_id(ID), &authority.issue(&both())).unwrap();
}

#[test]
fn a_list_revokes_a_server_with_the_right_spiffe_id() {
    let authority = Authority::new("root");
    let mut params = with_uris(&[ID]);
    params.serial_number = Some(7.into());
    let server = ServerTls::new(authority.issue(&params).identity());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority.revoke(&[7])).unwrap();
    let roots = authority.roots().with_crl_file(file.path()).unwrap();
    let client = ClientTls::new(roots)
        .server(Expect::Spiffe(ID.to_owned()))
        .unwrap();
    let error = refusal(shake(&client, "a.example", &server));
    assert_eq!(error, CertificateError::Revoked);
}

#[test]
fn clients_show_certificates_as_the_server_demands() {
    let authority = Authority::new("root");
    let identity = authority.issue_to("a.example").identity();
    let nobody = ClientTls::new(authority.roots());
    let known = nobody.identity(authority.issue(&with_uris(&[ID])).identity());
    let unknown = Authority::new("other").issue_to("client.example");
    let unknown = nobody.identity(unknown.identity());
    let mut params = named("client.example");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server_only = nobody.identity(authority.issue(&params).identity());
    params = named("client.example");
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2001, 1, 1);
    let expired = nobody.identity(authority.issue(&params).identity());
    let asks_nobody = ServerTls::new(identity);
    let shake = |client: &ClientTls, server: &ServerTls| shake(client, "a.example", server);
    for client in [&nobody, &known, &unknown, &expired] {
        assert_eq!(shake(client, &asks_nobody).unwrap().client, None);
    }
    let roots = authority.roots();
    for auth in [ClientAuth::Required, ClientAuth::Optional] {
        let server = asks_nobody.clients(roots.clone(), auth);
        let shown = shake(&known, &server).unwrap().client.unwrap();
        assert_eq!(certificate::parse(&shown).unwrap().spiffe_id(), Some(ID));
        // The server names the authorities that it believes, so this client has nothing to show, or
        // shows what is refused.
        for client in [&unknown, &server_only, &expired] {
            assert!(shake(client, &server).is_err(), "{client:?}");
        }
        match (shake(&nobody, &server), auth) {
            (Err(error), ClientAuth::Required) => assert_eq!(error, Error::NoCertificatesPresented),
            (result, ClientAuth::Required) => panic!("{}", result.is_ok()),
            (result, ClientAuth::Optional) => assert_eq!(result.unwrap().client, None),
        }
    }
}

#[test]
fn a_peer_of_another_protocol_is_refused() {
    let authority = Authority::new("root");
    let server = ServerTls::new(authority.issue_to("localhost").identity());
    let client = ClientTls::new(authority.roots());
    let shaken = shake_configs(client.http2_config(), server.http2_config()).unwrap();
    assert_eq!(shaken.protocol, b"h2");
    for (client, server) in [
        (client.http2_config(), server.config()),
        (client.config(), server.http2_config()),
    ] {
        let error = shake_configs(client, server).err().unwrap();
        assert_eq!(error, Error::NoApplicationProtocol);
    }
}

#[test]
fn the_configurations_resume_nothing_and_know_one_version() {
    let authority = Authority::new("root");
    let server = ServerTls::new(authority.issue_to("localhost").identity());
    let is_plain = |config: &ServerConfig| {
        config.send_tls13_tickets == 0
            && config.max_early_data_size == 0
            && config.enable_secret_extraction
            && !config.session_storage.can_cache()
            && !config.ticketer.enabled()
            && !config.send_half_rtt_data
    };
    assert!(is_plain(&server.config()) && is_plain(&server.http2_config()));
    let client = ClientTls::new(authority.roots());
    let is_plain =
        |config: &ClientConfig| config.enable_secret_extraction && !config.enable_early_data;
    assert!(is_plain(&client.config()) && is_plain(&client.http2_config()));
    assert!(Arc::ptr_eq(&client.config(), &client.config()));
    for _ in 0..2 {
        // `shake` demands a full handshake.
        shake(&client, "localhost", &server).unwrap();
    }
}
