//! Certificates that are too long, and files that are replaced under clients that connect.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use verbline::LocalPoller;

use super::*;

/// Appends certificates to a chain up to this length, which nobody needs to verify it.
fn lengthen(issued: &mut Issued, authority: &Authority, len: usize) {
    while issued.certificate.len() < len {
        issued.certificate += &authority.pem();
    }
}

/// No peer waits for more than a handshake needs, and could tell this side so: it is told before.
#[test]
fn a_chain_that_is_too_long_is_a_sentence() {
    let authority = Authority::new("root");
    let of = |len| {
        let mut issued = authority.issue(&tls_testing::local_server());
        lengthen(&mut issued, &authority, len);
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes())
    };
    let error = of(20 * 1024).unwrap_err().to_string();
    assert!(
        error.contains("11264 at most fit into a handshake"),
        "{error}"
    );
    // Nearly as much as there may be works, on both sides.
    let tls =
        ServerTls::new(of(14 * 1024).unwrap()).clients(roots(&authority), ClientAuth::Required);
    let client = ClientTls::new(roots(&authority)).identity(of(14 * 1024).unwrap());
    for name in DEVICES {
        let (server, address) = serve(&device(name).with_server_tls(tls.clone()));
        let client = device(name).with_client_tls(client.clone());
        assert_eq!(greet(&client, &address, 1).unwrap(), "localhost: x");
        server.shutdown().unwrap();
    }
}

#[test]
fn a_server_believes_many_authorities() {
    let authority = Authority::new("root");
    let mut many = authority.pem();
    for number in 0..400 {
        many += &Authority::new(&format!("an authority of some company, number {number}")).pem();
    }
    let many = Roots::from_pem(many.as_bytes()).unwrap();
    let issued = authority.issue(&tls_testing::local_server());
    let tls = ServerTls::new(identity(&issued)).clients(many, ClientAuth::Required);
    for name in DEVICES {
        let (server, address) = serve(&device(name).with_server_tls(tls.clone()));
        let client = device(name).with_client_tls(client_tls(&authority));
        assert_eq!(greet(&client, &address, 1).unwrap(), "ada.example: x");
        server.shutdown().unwrap();
    }
}

/// The key is replaced before the certificate, and neither at once. Whenever a client connects, the server
/// has a whole pair.
#[test]
fn files_that_are_replaced_one_after_the_other_fail_no_handshake() {
    const ROUNDS: usize = 60;
    const CLIENTS: usize = 8;
    let authority = Authority::new("root");
    let folder = tempfile::tempdir().unwrap();
    let files = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let pairs = [(); 2].map(|()| authority.issue(&tls_testing::local_server()));
    fs::write(&files[0], &pairs[0].certificate).unwrap();
    fs::write(&files[1], &pairs[0].key).unwrap();
    let tls = ServerTls::new(Identity::from_files(&files[0], &files[1]).unwrap())
        .clients(roots(&authority), ClientAuth::Required);
    for name in DEVICES {
        let (server, address) = serve(&device(name).with_server_tls(tls.clone()));
        let (stops, connected) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = Instant::now();
        let client = device(name).with_client_tls(client_tls(&authority));
        thread::scope(|scope| {
            // With pollers of their own, they connect as fast as the server takes them.
            let clients = [(); CLIENTS].map(|()| {
                scope.spawn(|| {
                    let poller = LocalPoller::builder(&client).build().unwrap();
                    while !stops.load(Ordering::Relaxed) {
                        let channel = poller.connect(&address).map_err(|e| e.to_string())?;
                        let client = GreeterClient::new(channel);
                        let name = "x".to_owned();
                        let reply = poller.block_on(client.say_hello(HelloRequest { name }));
                        let reply = reply.map_err(|e| e.to_string())?.into_inner();
                        assert_eq!(reply.message, "ada.example: x");
                        connected.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok::<_, String>(())
                })
            });
            let (mut good, mut bad) = (0, 0);
            let mut reload = || match tls.reload() {
                Ok(()) => good += 1,
                Err(_) => bad += 1,
            };
            for round in 1..=ROUNDS {
                let new = &pairs[round % 2];
                let half = new.key.len() / 2;
                for content in [&new.key[..half], &new.key[..]] {
                    fs::write(&files[1], content).unwrap();
                    reload();
                    thread::sleep(Duration::from_millis(5));
                }
                fs::write(&files[0], &new.certificate).unwrap();
                reload();
                thread::sleep(Duration::from_millis(5));
            }
            stops.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().unwrap().unwrap();
            }
            assert_eq!((good, bad), (ROUNDS, 2 * ROUNDS));
        });
        let connected = connected.into_inner();
        // With --release and --nocapture, it says how many a server takes meanwhile.
        #[allow(clippy::print_stdout)]
        {
            let rate = connected as f64 / start.elapsed().as_secs_f64();
            println!("{name}: {connected} clients connected, {rate:.0} a second");
        }
        assert!(connected > 4, "{name}: {connected} clients connected");
        server.shutdown().unwrap();
    }
}
