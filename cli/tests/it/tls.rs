//! `verbline` at servers with TLS: a Verbline server, and a gateway in front of it.

use std::fs;
use std::path::Path;

use proto::greeter::{Greeter, GreeterServer, HelloReply, HelloRequest};
use tempfile::TempDir;
use tls_testing::{Authority, Issued, local_server, with_uris};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use verbline::health::Health;
use verbline::reflection::Reflection;
use verbline::server::Peer;
use verbline::tls::{ClientAuth, ClientTls, Identity, Roots, ServerTls};
use verbline::{Channel, Device, Request, Response, Server, ServerHandle, Status};
use verbline_gateway::Gateway;

use crate::program::{Ended, verbline};

const HELLO: &str = "verbline.greeter.Greeter/SayHello";

/// Greets the client by its certificate, which it has shown here or to the gateway.
struct ByCertificate;

impl Greeter for ByCertificate {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let peer = request.peer();
        let certificate = match peer.and_then(Peer::forwarded) {
            Some(client) => client.certificate(),
            None => peer.and_then(Peer::certificate),
        };
        let message = certificate.map_or("nobody".to_owned(), ToString::to_string);
        Ok(Response::new(HelloReply { message }))
    }
}

/// A server and a gateway that demand certificates, and the files of a client.
struct Fixture {
    files: TempDir,
    direct: String,
    grpc: String,
    server: Option<ServerHandle>,
    _gateway: Runtime,
}

impl Fixture {
    fn new() -> Self {
        let (authority, stranger) = (Authority::new("root"), Authority::new("stranger"));
        let files = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(files.path().join(name), text).unwrap();
        let ada = authority.issue_to("ada.example");
        write("ada.pem", &ada.certificate);
        write("ada.key", &ada.key);
        write("root.pem", &authority.pem());
        write("stranger.pem", &stranger.pem());

        let roots = Roots::from_pem(authority.pem().as_bytes()).unwrap();
        let mut params = local_server();
        params
            .subject_alt_names
            .extend(with_uris(&["spiffe://example.org/greeter"]).subject_alt_names);
        let tls = ServerTls::new(identity(&authority.issue(&params)));
        let tls = tls.clients(roots.clone(), ClientAuth::Required);
        let device = Device::open("soft").unwrap();
        let server = Server::builder(&device.clone().with_server_tls(tls.clone()))
            .trust_forwarded(|peer| {
                let certificate = peer.certificate();
                certificate.is_some_and(|shown| shown.dns_names() == ["gateway.example"])
            })
            .add_service(Reflection::service())
            .add_service(Health::new().service())
            .add_service(GreeterServer::new(ByCertificate))
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let direct = server.local_addr().to_string();
        let own = identity(&authority.issue_to("gateway.example"));
        let device = device.with_client_tls(ClientTls::new(roots).identity(own));
        let gateway = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let grpc = gateway.block_on(async {
            let channel = Channel::connect(&device, &direct).await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let grpc = format!("https://{}", listener.local_addr().unwrap());
            let gateway = Gateway::builder(channel).tls(tls);
            tokio::spawn(gateway.serve_on(listener, std::future::pending()));
            grpc
        });
        Self {
            files,
            direct,
            grpc,
            server: Some(server),
            _gateway: gateway,
        }
    }

    /// Runs a command with options, whose values may be files of the fixture.
    fn run(&self, command: &[&str], options: &[(&str, &str)]) -> Ended {
        let options: Vec<_> = options
            .iter()
            .flat_map(|(option, value)| {
                let file = self.files.path().join(value);
                let value = match file.exists() {
                    true => path(&file),
                    false => (*value).to_owned(),
                };
                [(*option).to_owned(), value]
            })
            .collect();
        let options = options.iter().map(String::as_str);
        verbline(&command.iter().copied().chain(options).collect::<Vec<_>>())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = server.shutdown();
        }
    }
}

fn identity(issued: &Issued) -> Identity {
    Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).unwrap()
}

fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

const ADA: [(&str, &str); 3] = [
    ("--ca", "root.pem"),
    ("--cert", "ada.pem"),
    ("--key", "ada.key"),
];

#[test]
fn all_commands_take_certificates_over_both_protocols() {
    let server = Fixture::new();
    for address in [&server.direct, &server.grpc] {
        let listed = server.run(&["list", address], &ADA).ok();
        assert!(listed.contains("verbline.greeter.Greeter\n"), "{listed}");
        let described = server.run(&["describe", address, "verbline.greeter.Greeter"], &ADA);
        assert!(described.ok().contains("rpc SayHello"));
        let called = server.run(&["call", address, HELLO], &ADA).ok();
        assert_eq!(called, "{\"message\":\"ada.example\"}\n");
        let health = server.run(&["health", address, "--timeout", "60"], &ADA);
        assert_eq!(health.ok(), "SERVING\n");
        let bench = [
            "bench",
            address,
            HELLO,
            "--seconds",
            "0.1",
            "--warm-up",
            "0",
            "--processes",
            "2",
        ];
        let bench = server.run(&bench, &ADA);
        assert!(
            bench.code == 0 && bench.out.contains("answered"),
            "{bench:?}"
        );
        let spiffe = [&ADA[..], &[("--spiffe", "spiffe://example.org/greeter")]].concat();
        server.run(&["call", address, HELLO], &spiffe).ok();
        let named = [&ADA[..], &[("--server-name", "localhost")]].concat();
        server.run(&["call", address, HELLO], &named).ok();
    }
}

#[test]
fn what_is_not_believed_is_said_with_the_code_of_an_unavailable_server() {
    let server = Fixture::new();
    let unknown = [("--ca", "stranger.pem"), ADA[1], ADA[2]];
    let nobody = [("--ca", "root.pem")];
    let other = [ADA[0], ADA[1], ADA[2], ("--server-name", "other.example")];
    let id = ("--spiffe", "spiffe://example.org/orders");
    let other_id = [ADA[0], ADA[1], ADA[2], id];
    for address in [&server.direct, &server.grpc] {
        for (options, says) in [
            (&unknown[..], "does not trust"),
            (&nobody, "demands a certificate"),
            (&other, "for other names"),
            (&other_id, "spiffe://example.org/orders"),
        ] {
            let said = server.run(&["list", address], options).failed(69);
            assert!(said.contains(says), "{address}: {said}");
            assert!(!said.contains("http://"), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
            server.run(&["call", address, HELLO], options).failed(78);
            let health = ["health", address, "--timeout", "60"];
            server.run(&health, options).failed(2);
        }
    }
}

#[test]
fn plain_text_and_tls_do_not_mix() {
    let server = Fixture::new();
    let plain = server.grpc.replace("https", "http");
    let said = server.run(&["list", &plain], &[]).failed(69);
    assert!(said.contains("use 'https://'"), "{said}");
    let said = server.run(&["list", &plain], &ADA).failed(1);
    assert!(said.contains("plain text, and TLS is asked for"), "{said}");
    let said = server.run(&["list", &server.direct], &[]).failed(69);
    assert!(said.contains("TLS only") && said.contains("--ca"), "{said}");

    let other = server.grpc.replace("https://", "");
    let said = server.run(&["list", &other], &ADA).failed(69);
    assert!(said.contains("write https:// before"), "{said}");

    let plain = crate::server::Fixture::without_reflection();
    let said = server.run(&["list", &plain.address], &ADA).failed(69);
    assert!(said.contains("in the clear"), "{said}");
    let grpc = plain.grpc.replace("http", "https");
    let said = server.run(&["list", &grpc], &ADA).failed(69);
    assert!(said.contains("answered without TLS"), "{said}");
}

#[test]
fn a_wrong_file_or_command_line_is_said() {
    let server = Fixture::new();
    let list = ["list", server.grpc.as_str()];
    let said = server.run(&list, &[("--ca", "missing.pem")]).failed(1);
    assert!(said.contains("missing.pem cannot be read"), "{said}");
    let swapped = [("--cert", "ada.key"), ("--key", "ada.pem"), ADA[0]];
    let said = server.run(&list, &swapped).failed(1);
    assert!(said.contains("has no certificate"), "{said}");
    let said = server.run(&list, &[("--cert", "ada.pem")]).failed(2);
    assert!(said.contains("--key"), "{said}");
    let both = [("--spiffe", "spiffe://a/b"), ("--server-name", "a")];
    server.run(&list, &both).failed(2);
    let said = server.run(&list, &[ADA[0], ("--spiffe", "a")]).failed(1);
    assert!(said.contains("is not a SPIFFE id"), "{said}");
}
