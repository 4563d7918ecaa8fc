//! Whom a handler takes for its caller, behind a gateway and without one.

use std::net::SocketAddr;

use proto::greeter::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};
use rpc_core::{CallError, Channel, Code, Forwarded, Peer, Request, Response, Server, Status};
use tokio::net::TcpStream;
use verbline::Device;

use crate::support::{Fixture, send_on};

const KEY: &str = "verbline-forwarded-for";

/// Says in its metadata whom a call is for, and which keys the call has.
struct Caller;

impl Greeter for Caller {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let forwarded = request.peer().and_then(Peer::forwarded);
        let caller = forwarded.map_or("the peer".to_owned(), |client| client.address().to_string());
        let keys: Vec<_> = request.metadata().iter().map(|(key, _)| key).collect();
        let mut response = Response::new(HelloReply::default());
        response.metadata_mut().insert("caller", caller)?;
        response.metadata_mut().insert("keys", keys.join(" "))?;
        Ok(response)
    }
}

/// Starts a server that believes these peers, and a gateway in front of it.
async fn start(trusts: fn(&Peer) -> bool) -> Fixture {
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .trust_forwarded(trusts)
        .add_service(GreeterServer::new(Caller))
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    Fixture::start(&device, server, |builder| builder).await
}

/// Calls through the gateway, as a client that claims to be somebody else. Returns its address, and
/// whom and what the handler has seen.
async fn call_gateway(fixture: &Fixture) -> (String, [String; 2]) {
    let socket = TcpStream::connect(fixture.address).await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let headers = [
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        (KEY, "192.0.2.1:1"),
        ("mine", "1"),
    ];
    let path = "/verbline.greeter.Greeter/SayHello";
    let answer = send_on(socket, path, &headers, b"\0\0\0\0\0", true).await;
    let text = |key| answer.headers[key].to_str().unwrap().to_owned();
    (address, [text("caller"), text("keys")])
}

/// Calls the server itself, with this metadata and perhaps for a client.
async fn call_server(
    channel: &Channel,
    values: &[&str],
    client: Option<Forwarded>,
) -> Result<[String; 2], CallError> {
    let mut request = Request::new(HelloRequest::default());
    for value in values {
        request.metadata_mut().append(KEY, *value).unwrap();
    }
    request.metadata_mut().append("mine", "1").unwrap();
    if let Some(client) = client {
        request = request.with_forwarded(&client);
    }
    let response = GreeterClient::new(channel.clone())
        .say_hello(request)
        .await?;
    let text = |key| response.metadata().get(key).unwrap().to_owned();
    Ok([text("caller"), text("keys")])
}

fn seen(caller: &str) -> [String; 2] {
    [caller.to_owned(), "mine".to_owned()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_believes_its_gateway_knows_each_client_whatever_the_client_claims() {
    let fixture = start(|peer| peer.user_id().is_some()).await;
    let (address, seen_by_handler) = call_gateway(&fixture).await;
    assert_eq!(seen_by_handler, seen(&address));
    fixture.end().await;
}

async fn knows_its_peer_only(trusts: fn(&Peer) -> bool) {
    let fixture = start(trusts).await;
    let (_, seen_by_handler) = call_gateway(&fixture).await;
    assert_eq!(seen_by_handler, seen("the peer"));
    let client = Forwarded::new(SocketAddr::from(([192, 0, 2, 1], 1)));
    for client in [None, Some(client)] {
        let answer = call_server(&fixture.channel, &["192.0.2.1:1", "x"], client).await;
        assert_eq!(answer.unwrap(), seen("the peer"));
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_believes_nobody_knows_its_peer_only() {
    knows_its_peer_only(|_| false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_predicate_panics_believes_nobody() {
    knows_its_peer_only(|_| panic!("no table of gateways")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_believed_names_one_client_or_none() {
    let fixture = start(|peer| peer.user_id().is_some()).await;
    let channel = &fixture.channel;
    let client = Forwarded::new("[2001:db8::1]:7".parse().unwrap());
    let answer = call_server(channel, &["192.0.2.1:1"], Some(client)).await;
    assert_eq!(answer.unwrap(), seen("[2001:db8::1]:7"));
    let answer = call_server(channel, &[], None).await;
    assert_eq!(answer.unwrap(), seen("the peer"));
    for values in [&["192.0.2.1"][..], &["192.0.2.1:1", "192.0.2.1:1"]] {
        let error = call_server(channel, values, None).await.unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains(KEY), "{error}");
    }
    fixture.end().await;
}
