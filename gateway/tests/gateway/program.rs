//! The program `verbline-gateway`, with the certificates of its command line.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use proto::greeter::{GreeterClient, GreeterServer, HelloRequest};
use rpc_core::{Peer, Server};
use tls_testing::rcgen::SerialNumber;
use tls_testing::{Authority, Issued, local_server, named};
use verbline::Device;
use verbline::tls::{ClientAuth, ClientTls, Roots, ServerTls};
use verbline_gateway::GrpcChannel;

use crate::tls::{ByForwarded, identity, roots};

/// A process that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_certificates_for_its_clients_and_for_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let write = |name: &str, issued: &Issued| {
        std::fs::write(path(&format!("{name}.pem")), &issued.certificate).unwrap();
        std::fs::write(path(&format!("{name}.key")), &issued.key).unwrap();
    };
    let (inside, outside) = (Authority::new("inside"), Authority::new("outside"));
    std::fs::write(path("inside.pem"), inside.pem()).unwrap();
    std::fs::write(path("outside.pem"), outside.pem()).unwrap();
    std::fs::write(path("revoked.pem"), outside.revoke(&[7])).unwrap();
    write("front", &outside.issue(&local_server()));
    write("back", &inside.issue_to("gateway.example"));

    let tls = ServerTls::new(identity(&inside.issue_to("greeter.example")))
        .clients(roots(&inside), ClientAuth::Required);
    let device = Device::open("soft").unwrap().with_server_tls(tls);
    let server = Server::builder(&device)
        .trust_forwarded(|peer: &Peer| peer.certificate().is_some())
        .add_service(GreeterServer::new(ByForwarded))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();

    let address = server.local_addr().to_string();
    let mut program = Command::new(env!("CARGO_BIN_EXE_verbline-gateway"))
        .args([
            "--listen",
            "127.0.0.1:0",
            "--server",
            &address,
            "--device",
            "soft",
        ])
        .args([
            "--tls-cert",
            &path("front.pem"),
            "--tls-key",
            &path("front.key"),
        ])
        .args([
            "--tls-client-ca",
            &path("outside.pem"),
            "--tls-clients-optional",
            "--tls-client-crl",
            &path("revoked.pem"),
        ])
        .args([
            "--server-ca",
            &path("inside.pem"),
            "--server-name",
            "greeter.example",
        ])
        .args([
            "--server-cert",
            &path("back.pem"),
            "--server-key",
            &path("back.key"),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(program.stdout.take().unwrap());
    let program = Program(program);
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let target = line.trim().replace("listening at ", "https://");

    let ada = outside.issue_to("ada.example");
    let nobody = ClientTls::new(Roots::from_file(path("outside.pem")).unwrap());
    for (tls, seen) in [
        (nobody.identity(identity(&ada)), "ada.example"),
        (nobody, "nobody"),
    ] {
        let channel = GrpcChannel::connect_with_tls(&target, tls).await.unwrap();
        let reply = GreeterClient::new(channel)
            .say_hello(HelloRequest::default())
            .await;
        assert_eq!(reply.unwrap().into_inner().message, seen);
    }
    let mut params = named("eve.example");
    params.serial_number = Some(SerialNumber::from(7));
    let eve = ClientTls::new(Roots::from_file(path("outside.pem")).unwrap());
    let eve = eve.identity(identity(&outside.issue(&params)));
    // TLS 1.3 tells a client only afterwards.
    let refused = match GrpcChannel::connect_with_tls(&target, eve).await {
        Ok(channel) => {
            let client = GreeterClient::new(channel);
            let reply = client.say_hello(HelloRequest::default()).await;
            reply.unwrap_err().to_string()
        }
        Err(error) => error.to_string(),
    };
    assert!(refused.contains("revoked"), "{refused}");
    drop(program);
    server.shutdown().unwrap();
}
