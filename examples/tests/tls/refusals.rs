//! Who is refused, and the sentence that each gets.

use tls_testing::rcgen::{CertificateParams, ExtendedKeyUsagePurpose, date_time_ymd};
use tls_testing::{local_server, named, self_signed};
use verbline::tls::Expect;

use super::*;

fn refused(client: Device, address: &str, wanted: &[&str]) {
    let error = greet(&client, address, 1).unwrap_err();
    for wanted in wanted {
        assert!(error.contains(wanted), "'{wanted}' is not in: {error}");
    }
}

#[test]
fn plain_and_secured_do_not_mix() {
    let authority = Authority::new("root");
    for name in DEVICES {
        let (server, address) = serve(&device(name).with_server_tls(server_tls(&authority)));
        refused(device(name), &address, &["TLS only", "`with_client_tls`"]);
        server.shutdown().unwrap();
        let (server, address) = serve(&device(name));
        let client = device(name).with_client_tls(client_tls(&authority));
        refused(client, &address, &["in the clear", "`with_server_tls`"]);
        server.shutdown().unwrap();
    }
}

#[test]
fn a_client_says_what_is_wrong_with_a_server() {
    let authority = Authority::new("root");
    let stranger = Authority::new("another root");
    let with = |change: fn(&mut CertificateParams)| {
        let mut params = local_server();
        change(&mut params);
        params
    };
    let expired = with(|params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let early = with(|params| {
        params.not_before = date_time_ymd(2100, 1, 1);
        params.not_after = date_time_ymd(2101, 1, 1);
    });
    let of_clients = with(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    });
    for (issued, wanted) in [
        (
            authority.issue(&expired),
            "has expired (Jan  1 00:00:00 2021",
        ),
        (
            authority.issue(&early),
            "is not valid before Jan  1 00:00:00 2100",
        ),
        (authority.issue(&of_clients), "not made for a server"),
        (authority.issue(&named("db.example")), "for other names"),
        (stranger.issue(&local_server()), "does not trust"),
        (self_signed(&local_server()), "does not trust"),
    ] {
        let tls = ServerTls::new(identity(&issued));
        for name in DEVICES {
            let (server, address) = serve(&device(name).with_server_tls(tls.clone()));
            let client = device(name).with_client_tls(client_tls(&authority));
            refused(client, &address, &["no secure connection", wanted]);
            server.shutdown().unwrap();
        }
    }
    let (server, address) = serve(&device("soft").with_server_tls(server_tls(&authority)));
    let id = Expect::Spiffe("spiffe://example.org/orders".to_owned());
    let client = client_tls(&authority).server(id).unwrap();
    let client = device("soft").with_client_tls(client);
    refused(
        client,
        &address,
        &["spiffe://example.org/orders", "localhost"],
    );
    server.shutdown().unwrap();
}

#[test]
fn a_server_says_what_is_wrong_with_a_client() {
    let authority = Authority::new("root");
    let stranger = Authority::new("another root");
    let mut expired = named("ada.example");
    expired.not_before = date_time_ymd(2020, 1, 1);
    expired.not_after = date_time_ymd(2021, 1, 1);
    let mut of_servers = named("ada.example");
    of_servers.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let nobody = ClientTls::new(roots(&authority));
    let with = |issued: &Issued| nobody.identity(identity(issued));
    for name in DEVICES {
        let (server, address) = serve(&device(name).with_server_tls(server_tls(&authority)));
        for (client, wanted) in [
            (nobody.clone(), "demands a certificate"),
            (with(&stranger.issue_to("ada.example")), "does not trust"),
            (with(&self_signed(&named("ada.example"))), "does not trust"),
            (with(&authority.issue(&expired)), "expired"),
            (
                with(&authority.issue(&of_servers)),
                "refused this side's certificate",
            ),
        ] {
            let client = device(name).with_client_tls(client);
            refused(client, &address, &["no secure connection", wanted]);
        }
        server.shutdown().unwrap();
    }
}
