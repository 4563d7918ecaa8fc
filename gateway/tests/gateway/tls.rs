//! Gateways and channels over TLS: who is taken, whom the handler sees, and what everybody else is told.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{Peer, Request, Response, Server, Status};
use tls_testing::rcgen::date_time_ymd;
use tls_testing::{Authority, Issued, local_server, named, with_uris};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use verbline::Device;
use verbline::tls::{ClientAuth, ClientTls, Expect, Identity, Roots, ServerTls};
use verbline_gateway::{AnyChannel, GatewayBuilder, GrpcChannel};

use crate::hostile::{LIST_FEATURES, send_garbage};
use crate::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, WINDOW_UPDATE, frame, headers,
};
use crate::support::{Client, Fixture};
use crate::torn::counting;

const SAY_HELLO: &str = "/verbline.greeter.Greeter/SayHello";
const SPIFFE_ID: &str = "spiffe://example.org/orders";

/// Greets a client by what the gateway says of it.
pub(crate) struct ByForwarded;

impl Greeter for ByForwarded {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let forwarded = request.peer().and_then(Peer::forwarded);
        let certificate = forwarded.and_then(|client| client.certificate());
        let message = certificate.map_or("nobody".to_owned(), ToString::to_string);
        Ok(Response::new(HelloReply { message }))
    }
}

pub(crate) fn identity(issued: &Issued) -> Identity {
    Identity::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes()).unwrap()
}

pub(crate) fn roots(authority: &Authority) -> Roots {
    Roots::from_pem(authority.pem().as_bytes()).unwrap()
}

fn server_tls(authority: &Authority) -> ServerTls {
    ServerTls::new(identity(&authority.issue(&local_server())))
}

/// A gateway in front of a server, which knows the gateway by its certificate.
async fn start(configure: impl FnOnce(GatewayBuilder) -> GatewayBuilder) -> Fixture {
    let authority = Authority::new("inside");
    let gateway = authority.issue_to("gateway.example");
    let tls = server_tls(&authority).clients(roots(&authority), ClientAuth::Required);
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device.clone().with_server_tls(tls))
        .trust_forwarded(|peer| {
            let certificate = peer.certificate();
            certificate.is_some_and(|shown| shown.dns_names() == ["gateway.example"])
        })
        .add_service(GreeterServer::new(ByForwarded))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let tls = ClientTls::new(roots(&authority)).identity(identity(&gateway));
    Fixture::start(&device.with_client_tls(tls), server, configure).await
}

async fn start_with(tls: ServerTls) -> Fixture {
    start(|builder| builder.tls(tls)).await
}

/// Calls as a stock client, tonic's.
async fn call_stock(
    address: SocketAddr,
    authority: &Authority,
    shown: Option<&Issued>,
) -> Result<String, String> {
    let mut tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .domain_name("localhost");
    if let Some(shown) = shown {
        let identity = tonic::transport::Identity::from_pem(&shown.certificate, &shown.key);
        tls = tls.identity(identity);
    }
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let connected = endpoint.tls_config(tls).unwrap().connect().await;
    let client = Client(connected.map_err(|error| format!("{error:?}"))?);
    let request = tonic::Request::new(HelloRequest::default());
    let reply = client.unary::<_, HelloReply>(SAY_HELLO, request).await;
    let reply = reply.map_err(|status| format!("{status:?}"))?;
    Ok(reply.into_inner().message)
}

/// Calls as a client that Verbline has generated.
async fn call(target: &str, tls: ClientTls) -> Result<String, String> {
    let begun = Instant::now();
    let channel = GrpcChannel::connect_with_tls(target, tls).await;
    assert!(begun.elapsed() < Duration::from_secs(5), "it has waited");
    let channel = channel.map_err(|error| error.to_string())?;
    let reply = GreeterClient::new(channel)
        .say_hello(HelloRequest::default())
        .await;
    Ok(reply
        .map_err(|error| error.to_string())?
        .into_inner()
        .message)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_sees_the_names_in_the_certificate_of_each_client() {
    let authority = Authority::new("root");
    let tls = server_tls(&authority).clients(roots(&authority), ClientAuth::Optional);
    let fixture = start_with(tls).await;
    let target = format!("https://{}", fixture.address);
    for (shown, seen) in [
        (Some(authority.issue(&with_uris(&[SPIFFE_ID]))), SPIFFE_ID),
        (Some(authority.issue_to("ada.example")), "ada.example"),
        (None, "nobody"),
    ] {
        let stock = call_stock(fixture.address, &authority, shown.as_ref()).await;
        assert_eq!(stock.unwrap(), seen);
        let tls = ClientTls::new(roots(&authority));
        let tls = match &shown {
            Some(shown) => tls.identity(identity(shown)),
            None => tls,
        };
        assert_eq!(call(&target, tls).await.unwrap(), seen);
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_not_believed_is_told_why() {
    let authority = Authority::new("root");
    let stranger = Authority::new("stranger");
    let tls = server_tls(&authority).clients(roots(&authority), ClientAuth::Required);
    let fixture = start_with(tls).await;
    let target = format!("https://{}", fixture.address);
    let mut expired = named("ada.example");
    expired.not_before = date_time_ymd(2020, 1, 1);
    expired.not_after = date_time_ymd(2021, 1, 1);
    let many: Vec<_> = (0..200)
        .map(|index| format!("spiffe://example.org/{index}"))
        .collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for (shown, why) in [
        (None, "demands a certificate"),
        (Some(stranger.issue_to("ada.example")), "does not trust"),
        (Some(authority.issue(&expired)), "expired"),
        // More names than travel with a call. Only the gateway's log has the reason.
        (
            Some(authority.issue(&with_uris(&many))),
            "without a word of HTTP/2",
        ),
    ] {
        let stock = call_stock(fixture.address, &authority, shown.as_ref()).await;
        stock.unwrap_err();
        let tls = ClientTls::new(roots(&authority));
        let tls = match &shown {
            Some(shown) => tls.identity(identity(shown)),
            None => tls,
        };
        let error = call(&target, tls).await.unwrap_err();
        assert!(error.contains(why) && error.contains(&target), "{error}");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_says_what_is_wrong_with_a_server() {
    let authority = Authority::new("root");
    let stranger = Authority::new("stranger");
    let mut expired = local_server();
    expired.not_before = date_time_ymd(2020, 1, 1);
    expired.not_after = date_time_ymd(2021, 1, 1);
    for (issued, why) in [
        (stranger.issue(&local_server()), "does not trust"),
        (authority.issue(&expired), "has expired"),
        (authority.issue_to("other.example"), "for other names"),
    ] {
        let fixture = start_with(ServerTls::new(identity(&issued))).await;
        let target = format!("https://{}", fixture.address);
        let error = call(&target, ClientTls::new(roots(&authority))).await;
        let error = error.unwrap_err();
        assert!(error.contains(why), "{error}");
        call_stock(fixture.address, &authority, None)
            .await
            .unwrap_err();
        fixture.end().await;
    }
    let fixture = start_with(server_tls(&authority)).await;
    let target = format!("https://{}", fixture.address);
    let expected = Expect::Spiffe(SPIFFE_ID.to_owned());
    let tls = ClientTls::new(roots(&authority)).server(expected).unwrap();
    let error = call(&target, tls).await.unwrap_err();
    assert!(error.contains(SPIFFE_ID), "{error}");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_and_tls_do_not_mix() {
    let authority = Authority::new("root");
    let fixture = start_with(server_tls(&authority)).await;
    let target = format!("http://{}", fixture.address);
    let error = GrpcChannel::connect(&target).await.unwrap_err().to_string();
    assert!(error.contains("use 'https://'"), "{error}");
    let tls = ClientTls::new(roots(&authority));
    let error = GrpcChannel::connect_with_tls(&target, tls.clone()).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("plain text, and TLS is asked for"),
        "{error}"
    );
    fixture.end().await;

    let fixture = start(|builder| builder).await;
    let target = format!("https://{}", fixture.address);
    let error = call(&target, tls).await.unwrap_err();
    assert!(error.contains("answered without TLS"), "{error}");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_goes_to_both_kinds_of_servers_with_one_tls() {
    let authority = Authority::new("root");
    let ada = authority.issue_to("ada.example");
    let tls = server_tls(&authority).clients(roots(&authority), ClientAuth::Required);
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device.clone().with_server_tls(tls.clone()))
        .add_service(GreeterServer::new(ByForwarded))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let fixture = start_with(tls).await;
    let client_tls = ClientTls::new(roots(&authority)).identity(identity(&ada));
    for (target, seen) in [
        (format!("https://{}", fixture.address), "ada.example"),
        (server.local_addr().to_string(), "nobody"),
    ] {
        let channel = AnyChannel::connect_with_tls(&device, &target, client_tls.clone()).await;
        let greeter = GreeterClient::new(channel.unwrap());
        let reply = greeter.say_hello(HelloRequest::default()).await.unwrap();
        assert_eq!(reply.into_inner().message, seen, "{target}");
        // The system does not know the authority.
        AnyChannel::connect(&device, &target).await.unwrap_err();
    }
    let plain = format!("http://{}", fixture.address);
    let refused = AnyChannel::connect_with_tls(&device, &plain, client_tls).await;
    assert!(refused.unwrap_err().to_string().contains("use 'https://'"));
    server.shutdown().unwrap();
    fixture.end().await;
}

/// A handshake that does not go on, or is garbage, delays nobody and ends.
#[tokio::test(flavor = "multi_thread")]
async fn strangers_hold_no_place_for_longer_than_a_handshake_may_take() {
    let authority = Authority::new("root");
    let tls = server_tls(&authority);
    let fixture = start(|builder| {
        let time = Duration::from_millis(500);
        builder.tls(tls).max_connections(4).preface_time(time)
    })
    .await;
    let hello = [0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3];
    // A message of 16 MiB, of which more comes than is taken.
    let mut long = vec![0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff];
    long.resize(5 + 0x4000, 0);
    for said in [&[][..], &hello, &long.repeat(8)] {
        let mut socket = TcpStream::connect(fixture.address).await.unwrap();
        let _ = socket.write_all(said).await;
        let target = format!("https://{}", fixture.address);
        let tls = ClientTls::new(roots(&authority));
        assert_eq!(call(&target, tls).await.unwrap(), "nobody");
        let mut heard = Vec::new();
        let ended = socket.read_to_end(&mut heard);
        let ended = tokio::time::timeout(Duration::from_secs(5), ended).await;
        let _ = ended.expect("the gateway has let it go");
    }
    fixture.end().await;
}

/// Returns what a client is told that speaks to a server with this protocol in its TLS.
async fn told_by_server_with(alpn: Option<&[u8]>) -> String {
    let authority = Authority::new("root");
    let mut config = (*server_tls(&authority).http2_config()).clone();
    config.alpn_protocols = alpn.into_iter().map(<[u8]>::to_vec).collect();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("https://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        if let Ok(mut stream) = acceptor.accept(socket).await {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    let error = call(&target, ClientTls::new(roots(&authority))).await;
    server.abort();
    error.unwrap_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_http2_is_not_called() {
    for alpn in [None, Some(&b"http/1.1"[..])] {
        let error = told_by_server_with(alpn).await;
        assert!(error.contains("not HTTP/2 over it"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_http2_is_refused() {
    let authority = Authority::new("root");
    let fixture = start_with(server_tls(&authority)).await;
    for alpn in [vec![], vec![b"http/1.1".to_vec()]] {
        let tls = ClientTls::new(roots(&authority));
        let mut config = (*tls.http2_config()).clone();
        config.alpn_protocols = alpn;
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        let socket = TcpStream::connect(fixture.address).await.unwrap();
        let name = tls.server_name("localhost").unwrap();
        if let Ok(mut stream) = connector.connect(name, socket).await {
            let mut said = Vec::new();
            let _ = stream.read_to_end(&mut said).await;
            assert_eq!(said, b"");
        }
    }
    fixture.end().await;
}

/// A new pair of files is used by the next connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_used_without_a_restart() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |issued: &Issued| {
        std::fs::write(path("cert.pem"), &issued.certificate).unwrap();
        std::fs::write(path("key.pem"), &issued.key).unwrap();
    };
    write(&old.issue(&local_server()));
    let identity = Identity::from_files(path("cert.pem"), path("key.pem")).unwrap();
    let tls = ServerTls::new(identity);
    let fixture = start_with(tls.clone()).await;
    let target = format!("https://{}", fixture.address);
    let with = |authority| ClientTls::new(roots(authority));
    call(&target, with(&old)).await.unwrap();
    write(&new.issue(&local_server()));
    tls.reload().unwrap();
    call(&target, with(&new)).await.unwrap();
    call(&target, with(&old)).await.unwrap_err();
    fixture.end().await;
}

/// tonic's own server, which has no service.
#[tokio::test(flavor = "multi_thread")]
async fn a_stock_server_is_called() {
    let authority = Authority::new("root");
    let issued = authority.issue(&local_server());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("https://{}", listener.local_addr().unwrap());
    let identity = tonic::transport::Identity::from_pem(&issued.certificate, &issued.key);
    let tls = tonic::transport::ServerTlsConfig::new().identity(identity);
    let server = tonic::transport::Server::builder()
        .tls_config(tls)
        .unwrap()
        .add_routes(tonic::service::Routes::default())
        .serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener));
    let server = tokio::spawn(server);
    let device = Device::open("soft").unwrap();
    let tls = ClientTls::new(roots(&authority));
    let channel = AnyChannel::connect_with_tls(&device, &target, tls).await;
    let greeter = GreeterClient::new(channel.unwrap());
    let error = greeter
        .say_hello(HelloRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.code(), rpc_core::Code::Unimplemented);
    assert_eq!(error.execution(), rpc_core::Execution::Answered);
    // The system does not know the authority.
    let error = GrpcChannel::connect(&target).await.unwrap_err().to_string();
    assert!(
        error.contains("does not trust") || error.contains("no root certificate"),
        "{error}"
    );
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_ends_its_own_connection_only() {
    let authority = Authority::new("root");
    let fixture = start_with(server_tls(&authority)).await;
    let address = fixture.address;
    let garbage = tokio::task::spawn_blocking(move || {
        (0..120).for_each(|number| send_garbage(address, number));
    });
    garbage.await.unwrap();
    let target = format!("https://{address}");
    let tls = ClientTls::new(roots(&authority));
    assert_eq!(call(&target, tls).await.unwrap(), "nobody");
    fixture.end().await;
}

/// The records of TLS hide no stalled response: its bytes wait in front of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_is_cut_off() {
    let authority = Authority::new("root");
    let tls = server_tls(&authority);
    let configure = |builder: GatewayBuilder| {
        let builder = builder.stall_time(Duration::from_millis(300));
        builder.tls(tls)
    };
    let fixture = counting(configure).await.0;
    let client_tls = ClientTls::new(roots(&authority));
    let connector = tokio_rustls::TlsConnector::from(client_tls.http2_config());
    let socket = TcpStream::connect(fixture.address).await.unwrap();
    let name = client_tls.server_name("localhost").unwrap();
    let mut attacker = connector.connect(name, socket).await.unwrap();
    let request = [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]),
        frame(WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes()),
        frame(HEADERS, END_HEADERS, 1, &headers(LIST_FEATURES, &[])),
        frame(DATA, END_STREAM, 1, &[0; 5]),
    ];
    attacker.write_all(&request.concat()).await.unwrap();
    attacker.flush().await.unwrap();
    let begun = Instant::now();
    while fixture.channel.stats().total().streams.ended < 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody ends it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(attacker);
    fixture.end().await;
}
