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
