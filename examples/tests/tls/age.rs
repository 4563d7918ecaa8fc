//! Connections that are old end, and a client that was revoked loses access.

use std::fs;

use tls_testing::rcgen::SerialNumber;

use super::*;

/// The connections that a server has accepted, and those that are open.
fn connections(server: &ServerHandle) -> (u64, u64) {
    let connections = server.stats().total().connections;
    let accepted = connections.accepted;
    (accepted, accepted - connections.closed())
}

fn serve_briefly(device: &Device, grace: Duration) -> (ServerHandle, String) {
    let server = Server::builder(device)
        .add_service(GreeterServer::new(ByCertificate))
        .max_connection_age(Duration::from_secs(1), grace)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    (server, address)
}

#[test]
fn a_channel_connects_again_when_its_connection_is_old_and_no_call_fails() {
    for name in DEVICES {
        let (server, address) = serve_briefly(&device(name), Duration::from_secs(10));
        let channel = block_on(Channel::connect(&device(name), &address)).unwrap();
        let greeter = GreeterClient::new(channel);
        let start = Instant::now();
        while connections(&server).0 < 3 {
            assert!(start.elapsed() < PATIENCE);
            let name = "x".to_owned();
            block_on(greeter.say_hello(HelloRequest { name })).unwrap();
        }
        assert!(
            start.elapsed() > Duration::from_millis(1800),
            "it had lived twice"
        );
        while connections(&server).1 > 1 {
            assert!(start.elapsed() < PATIENCE, "old connections are not closed");
            thread::sleep(Duration::from_millis(50));
        }
        server.shutdown().unwrap();
    }
}

/// The list of revoked certificates changes under a client that is connected.
#[test]
fn a_client_that_is_revoked_loses_access() {
    let authority = Authority::new("root");
    let folder = tempfile::tempdir().unwrap();
    let crl = folder.path().join("crl.pem");
    fs::write(&crl, authority.revoke(&[])).unwrap();
    let issued = authority.issue(&tls_testing::local_server());
    let clients = roots(&authority).with_crl_file(&crl).unwrap();
    let tls = ServerTls::new(identity(&issued)).clients(clients, ClientAuth::Required);
    let mut params = tls_testing::named("ada.example");
    params.serial_number = Some(SerialNumber::from(7));
    let ada = ClientTls::new(roots(&authority)).identity(identity(&authority.issue(&params)));
    for name in DEVICES {
        fs::write(&crl, authority.revoke(&[])).unwrap();
        tls.reload().unwrap();
        let device_with_tls = device(name).with_server_tls(tls.clone());
        let (server, address) = serve_briefly(&device_with_tls, Duration::ZERO);
        let client = device(name).with_client_tls(ada.clone());
        let channel = block_on(Channel::connect(&client, &address)).unwrap();
        let greeter = GreeterClient::new(channel);
        let call = || {
            let name = "x".to_owned();
            block_on(greeter.say_hello(HelloRequest { name }))
        };
        call().unwrap();
        fs::write(&crl, authority.revoke(&[7])).unwrap();
        tls.reload().unwrap();
        call().expect("its connection stays for its time");
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < PATIENCE, "it still has access");
            match call() {
                Ok(_) => thread::sleep(Duration::from_millis(20)),
                Err(error) => {
                    let error = error.to_string();
                    if error.contains("revoked") {
                        break error;
                    }
                }
            }
        };
        assert!(error.contains("has this side's certificate"), "{error}");
        server.shutdown().unwrap();
    }
}

/// A new certificate is used without a restart, and connections stay.
#[test]
fn a_server_takes_a_new_certificate_and_tells_when_it_expires() {
    let authority = Authority::new("root");
    let folder = tempfile::tempdir().unwrap();
    let files = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let write = |year| {
        let mut params = tls_testing::local_server();
        params.not_after = tls_testing::rcgen::date_time_ymd(year, 1, 1);
        let issued = authority.issue(&params);
        fs::write(&files[0], issued.certificate).unwrap();
        fs::write(&files[1], issued.key).unwrap();
    };
    write(2100);
    let tls = ServerTls::new(Identity::from_files(&files[0], &files[1]).unwrap());
    let (server, address) = serve(&device("soft").with_server_tls(tls.clone()));
    let client = device("soft").with_client_tls(ClientTls::new(roots(&authority)));
    let channel = block_on(Channel::connect(&client, &address)).unwrap();
    let greeter = GreeterClient::new(channel);
    let expires = || {
        let mut text = verbline::stats::PrometheusText::new();
        text.add(&server.stats(), &[]);
        let text = text.to_string();
        let name = "verbline_certificate_expires_timestamp_seconds ";
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().unwrap().to_owned()
    };
    assert_eq!(expires(), "4102444800");
    write(2101);
    let start = Instant::now();
    while expires() == "4102444800" {
        assert!(start.elapsed() < PATIENCE, "nobody looks at the files");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(expires(), "4133980800");
    fs::write(&files[1], "no key").unwrap();
    tls.reload().unwrap_err();
    assert_eq!(expires(), "4133980800");
    greet(&client, &address, 1).unwrap();
    let name = "x".to_owned();
    block_on(greeter.say_hello(HelloRequest { name })).unwrap();
    assert_eq!(connections(&server).0, 2, "the first one stays");
    server.shutdown().unwrap();
}
