//! No byte of a key is in the log of the most talkative level, nor in what `Debug` and errors print. A test
//! program of its own, because the log is that of the process.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use tls_testing::{Authority, Issued};
use tracing_subscriber::filter::LevelFilter;
use verbline::tls::{ClientAuth, ClientTls, Identity, Roots, ServerTls};
use verbline::{Channel, Device, Request, Response, Server, Status, block_on};

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Greets;

impl Greeter for Greets {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = request.into_inner().name;
        Ok(Response::new(HelloReply { message }))
    }
}

/// Asserts that `text` has no piece of the key, as PEM or as bytes in hexadecimal or decimal.
fn assert_secret(issued: &Issued, text: &str) {
    let compact: String = text.to_lowercase().split_whitespace().collect();
    let lines = issued.key.lines().filter(|line| !line.starts_with('-'));
    let body: String = lines.collect();
    // The beginning and the end are the same in all keys, or public.
    for piece in body.as_bytes()[48..88].windows(10) {
        let piece = str::from_utf8(piece).unwrap();
        assert!(!text.contains(piece), "{piece} of a key is in: {text}");
    }
    let at = issued.key_der.windows(2).position(|two| two == [4, 32]);
    let start = at.unwrap() + 2;
    for piece in issued.key_der[start..start + 32].windows(5) {
        for separator in ["", ",", ":"] {
            let hex = piece.iter().map(|byte| format!("{byte:02x}"));
            let hex = hex.collect::<Vec<_>>().join(separator);
            assert!(!compact.contains(&hex), "{hex} of a key is in: {text}");
        }
        let decimal: Vec<_> = piece.iter().map(u8::to_string).collect();
        let decimal = decimal.join(",");
        assert!(
            !compact.contains(&decimal),
            "{decimal} of a key is in: {text}"
        );
    }
}

#[test]
fn no_byte_of_a_key_is_printed() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let (authority, stranger) = (Authority::new("root"), Authority::new("another root"));
    let issued = [
        authority.issue(&tls_testing::local_server()),
        authority.issue_to("ada.example"),
        stranger.issue_to("eve.example"),
    ];
    let identity = |issued: &Issued| {
        Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).unwrap()
    };
    let roots = || Roots::from_pem(authority.pem().as_bytes()).unwrap();
    let tls = ServerTls::new(identity(&issued[0])).clients(roots(), ClientAuth::Required);
    let mut said = vec![format!("{tls:?} {tls:#?}")];
    for name in ["soft", "tcp"] {
        let device = Device::open(name).unwrap().with_server_tls(tls.clone());
        said.push(format!("{device:?} {device:#?}"));
        let server = Server::builder(&device)
            .add_service(GreeterServer::new(Greets))
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let address = server.local_addr().to_string();
        for (issued, is_good) in [(&issued[1], true), (&issued[2], false)] {
            let tls = ClientTls::new(roots()).identity(identity(issued));
            let client = Device::open(name).unwrap().with_client_tls(tls);
            said.push(format!("{client:?} {client:#?}"));
            match block_on(Channel::connect(&client, &address)) {
                Ok(channel) => {
                    said.push(format!("{channel:?}"));
                    let name = "x".to_owned();
                    let greeter = GreeterClient::new(channel);
                    block_on(greeter.say_hello(HelloRequest { name })).unwrap();
                    assert!(is_good, "a client of another authority was admitted");
                }
                Err(error) => {
                    assert!(!is_good, "{error}");
                    said.push(format!("{error} {error:?} {error:#?}"));
                }
            }
        }
        server.shutdown().unwrap();
    }
    let log = log.0.lock().unwrap_or_else(PoisonError::into_inner);
    let log = String::from_utf8_lossy(&log).into_owned();
    // So that the search has something to search.
    assert!(
        log.contains("rejected a client"),
        "nothing was logged: {log}"
    );
    said.push(log);
    for issued in &issued {
        for text in &said {
            assert_secret(issued, text);
        }
    }
}
