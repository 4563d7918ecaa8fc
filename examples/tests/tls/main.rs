//! TLS as users meet it: who may connect to whom over which device, and what everybody else is told.

mod admission;
mod age;
mod both_kinds;
mod refusals;
mod relay;
mod resealed;
mod strangers;
mod swapped;
mod thief;

use std::thread;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use tls_testing::{Authority, Issued};
use verbline::tls::{ClientAuth, ClientTls, Identity, Roots, ServerTls};
use verbline::{Channel, Device, Request, Response, Server, ServerHandle, Status, block_on};

/// Time limit of what has to happen. It bounds failing tests only.
const PATIENCE: Duration = Duration::from_secs(20);

/// Greets the caller by what its certificate says.
struct ByCertificate;

impl Greeter for ByCertificate {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let peer = request.peer();
        let certificate = peer.and_then(|peer| peer.certificate());
        let who = certificate.map_or("nobody".to_owned(), ToString::to_string);
        let message = format!("{who}: {}", request.into_inner().name);
        Ok(Response::new(HelloReply { message }))
    }
}

fn identity(issued: &Issued) -> Identity {
    Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).unwrap()
}

fn roots(authority: &Authority) -> Roots {
    Roots::from_pem(authority.pem().as_bytes()).unwrap()
}

/// The TLS of a server on this host, which demands certificates.
fn server_tls(authority: &Authority) -> ServerTls {
    let issued = authority.issue(&tls_testing::local_server());
    ServerTls::new(identity(&issued)).clients(roots(authority), ClientAuth::Required)
}

fn client_tls(authority: &Authority) -> ClientTls {
    ClientTls::new(roots(authority)).identity(identity(&authority.issue_to("ada.example")))
}

fn serve(device: &Device) -> (ServerHandle, String) {
    let server = Server::builder(device)
        .add_service(GreeterServer::new(ByCertificate))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    (server, address)
}

/// Connects, and has itself greeted with a name of this length. Returns the greeting, or the error.
fn greet(device: &Device, address: &str, len: usize) -> Result<String, String> {
    let start = Instant::now();
    let name = "x".repeat(len);
    let greeting = block_on(async {
        let channel = Channel::builder(device, address)
            .connect_timeout(PATIENCE)
            .connect()
            .await
            .map_err(|error| error.to_string())?;
        let client = GreeterClient::new(channel);
        let reply = client.say_hello(HelloRequest { name }).await;
        Ok(reply
            .map_err(|error| error.to_string())?
            .into_inner()
            .message)
    });
    let took = start.elapsed();
    assert!(took < PATIENCE / 2, "it waited for its time limit");
    greeting
}

/// The kinds of devices that each machine has.
const DEVICES: [&str; 2] = ["soft", "tcp"];

fn device(name: &str) -> Device {
    Device::open(name).unwrap()
}

#[test]
fn both_sides_know_each_other_over_each_device() {
    let authority = Authority::new("root");
    for name in DEVICES {
        let (server, address) = serve(&device(name).with_server_tls(server_tls(&authority)));
        let client = device(name).with_client_tls(client_tls(&authority));
        for len in [3, 1000, 100_000, 3_000_000] {
            let greeting = greet(&client, &address, len).unwrap();
            assert_eq!(greeting, format!("ada.example: {}", "x".repeat(len)));
        }
        server.shutdown().unwrap();
    }
}
