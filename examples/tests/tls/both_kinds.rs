//! One port for clients with TLS and without.

use super::*;

#[test]
fn a_server_that_allows_plaintext_takes_both_kinds_at_one_port() {
    let authority = Authority::new("root");
    for name in DEVICES {
        let both = device(name)
            .allow_plaintext()
            .with_server_tls(server_tls(&authority));
        let (server, address) = serve(&both);
        let secured = device(name).with_client_tls(client_tls(&authority));
        assert_eq!(greet(&secured, &address, 1).unwrap(), "ada.example: x");
        assert_eq!(greet(&device(name), &address, 1).unwrap(), "nobody: x");
        server.shutdown().unwrap();
    }
}

/// A name is enough for calls over TCP that are encrypted; without TLS it takes the program's word.
#[test]
fn a_server_that_names_tcp_and_has_tls_takes_no_plain_client() {
    let authority = Authority::new("root");
    let server = device("soft,tcp").with_server_tls(server_tls(&authority));
    let (server, address) = serve(&server);
    for plain in [device("tcp"), device("soft"), device("soft,tcp")] {
        let error = greet(&plain, &address, 1).unwrap_err();
        assert!(error.contains("takes connections with TLS only"), "{error}");
    }
    server.shutdown().unwrap();
}

/// A client need not show a certificate where none is demanded.
#[test]
fn a_client_without_a_certificate_is_nobody() {
    let authority = Authority::new("root");
    let issued = authority.issue(&tls_testing::local_server());
    let without = ServerTls::new(identity(&issued));
    let optional = without.clients(roots(&authority), ClientAuth::Optional);
    for tls in [without, optional] {
        for name in DEVICES {
            let (server, address) = serve(&device(name).with_server_tls(tls.clone()));
            let client = device(name).with_client_tls(ClientTls::new(roots(&authority)));
            assert_eq!(greet(&client, &address, 1).unwrap(), "nobody: x");
            server.shutdown().unwrap();
        }
    }
}
