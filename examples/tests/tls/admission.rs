//! Who is admitted by its certificate, and devices that encrypt nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn a_server_admits_whom_it_likes_once_per_connection() {
    let authority = Authority::new("root");
    let asked = Arc::new(AtomicUsize::new(0));
    for name in DEVICES {
        let device_with_tls = device(name).with_server_tls(server_tls(&authority));
        let counted = Arc::clone(&asked);
        asked.store(0, Ordering::Relaxed);
        let server = Server::builder(&device_with_tls)
            .add_service(GreeterServer::new(ByCertificate))
            .connections(1)
            .admit(move |peer| {
                counted.fetch_add(1, Ordering::Relaxed);
                assert_eq!((peer.device(), peer.user_id()), (None, None));
                let names = peer.certificate().map_or(&[][..], |of| of.dns_names());
                match names {
                    [name] if name == "ada.example" => Ok(()),
                    [name] if name == "eve.example" => panic!("a fault of the program"),
                    _ => Err(Status::permission_denied("only Ada may call")),
                }
            })
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let address = server.local_addr().to_string();
        let client = |name: &str| {
            let tls = ClientTls::new(roots(&authority));
            tls.identity(identity(&authority.issue_to(name)))
        };
        let ada = device(name).with_client_tls(client("ada.example"));
        // She has the only place, and those who are not admitted do not take it from her.
        let channel = block_on(Channel::connect(&ada, &address)).unwrap();
        for _ in 0..3 {
            let bob = device(name).with_client_tls(client("bob.example"));
            let error = greet(&bob, &address, 1).unwrap_err();
            let wanted = "the server does not admit this client: only Ada may call";
            assert!(error.contains(wanted), "{error}");
        }
        let eve = device(name).with_client_tls(client("eve.example"));
        let error = greet(&eve, &address, 1).unwrap_err();
        assert!(
            error.contains("its decision about this client failed"),
            "{error}"
        );
        let greeter = GreeterClient::new(channel);
        let hello = || HelloRequest {
            name: "x".to_owned(),
        };
        // Once for each connection. On a machine with much to do, a client may need a second one.
        let before = asked.load(Ordering::Relaxed);
        assert!((5..10).contains(&before), "{before}");
        for _ in 0..10 {
            block_on(greeter.say_hello(hello())).unwrap();
        }
        assert_eq!(asked.load(Ordering::Relaxed), before, "not for each call");
        server.shutdown().unwrap();
    }
}

#[test]
fn a_side_that_requires_encryption_has_only_tcp_with_tls() {
    let authority = Authority::new("root");
    let with_tls = |name| {
        device(name)
            .with_server_tls(server_tls(&authority))
            .with_client_tls(client_tls(&authority))
    };
    let strict = |name| with_tls(name).require_encryption();
    let (server, address) = serve(&strict("soft,tcp"));
    // Both have shared memory, and it is not used.
    assert_eq!(
        greet(&with_tls("soft,tcp"), &address, 1).unwrap(),
        "ada.example: x"
    );
    let error = greet(&with_tls("soft"), &address, 1).unwrap_err();
    assert!(
        error.contains("`require_encryption`") && error.contains("soft"),
        "{error}"
    );
    let error = greet(&device("tcp").allow_plaintext(), &address, 1).unwrap_err();
    assert!(error.contains("TLS only"), "{error}");
    server.shutdown().unwrap();

    let (server, address) = serve(&with_tls("soft,tcp"));
    assert_eq!(
        greet(&strict("soft,tcp"), &address, 1).unwrap(),
        "ada.example: x"
    );
    let error = greet(&strict("soft"), &address, 1).unwrap_err();
    assert!(error.contains("name tcp, too"), "{error}");
    let without = device("soft,tcp").allow_plaintext().require_encryption();
    let error = greet(&without, &address, 1).unwrap_err();
    assert!(error.contains("no `with_client_tls`"), "{error}");
    server.shutdown().unwrap();

    let (server, address) = serve(&with_tls("soft"));
    let error = greet(&strict("soft,tcp"), &address, 1).unwrap_err();
    assert!(
        error.contains("the server has soft, the client offers tcp"),
        "{error}"
    );
    server.shutdown().unwrap();

    let server = Server::builder(&without).bind("127.0.0.1:0");
    let error = server.unwrap_err().to_string();
    assert!(error.contains("no `with_server_tls`"), "{error}");
}
