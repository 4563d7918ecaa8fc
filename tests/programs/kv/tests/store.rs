//! The store, used as production uses a service: on tokio, with metadata, deadlines, errors, streams,
//! restarts and many tasks.

use std::error::Error;
use std::time::Duration;

use kv::Store;
use kv::protos::acme::kv::v1::*;
use kv::protos::legacy::Old;
use tokio::time::timeout;
use verbline::client::{CurrentDeadline, SendCaller};
use verbline::message::bytes::Bytes;
use verbline::message::prost_types::{Any, Duration as ProtoDuration, Timestamp};
use verbline::{
    Channel, Code, Device, Execution, LocalPoller, MetadataKey, Pollers, Request, Server,
    ServerHandle, TokioExecutor, sender,
};

type Outcome = Result<(), Box<dyn Error>>;

const HOP: MetadataKey = MetadataKey::from_static("hop");

fn serve_at(address: &str) -> Result<(ServerHandle, Device), Box<dyn Error>> {
    let device = Device::open("soft")?;
    let server = Server::builder(&device)
        .executor(TokioExecutor::current())
        .add_service(KeyValueServer::new(Store::default()))
        .bind(address)?
        .spawn();
    Ok((server, device))
}

async fn serve() -> Result<(ServerHandle, KeyValueClient), Box<dyn Error>> {
    let (server, device) = serve_at("127.0.0.1:0")?;
    let channel = Channel::connect(&device, &server.local_addr().to_string()).await?;
    Ok((server, KeyValueClient::new(channel)))
}

fn entry(key: &str) -> Entry {
    Entry {
        key: key.to_owned(),
        value: Bytes::from_static(b"value"),
        written: Some(Timestamp::default()),
        kind: Some(entry::Kind::Number(7)),
        ..Entry::default()
    }
}

fn put(key: &str) -> PutRequest {
    PutRequest {
        entry: Some(entry(key)),
        mode: Some(Mode::Create.into()),
        ttl: Some(ProtoDuration::default()),
    }
}

fn get(key: &str) -> GetRequest {
    GetRequest {
        key: key.to_owned(),
        mask: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_back_and_errors_have_their_details() -> Outcome {
    let (server, client) = serve().await?;
    client.put(put("a")).await?;
    let found = client.get(get("a")).await?.into_inner().entry;
    assert_eq!(found, Some(entry("a")));

    let error = client.get(get("b")).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::NotFound, "no entry 'b'")
    );
    assert!(!error.is_retryable());

    let error = client.put(PutRequest::default()).await.unwrap_err();
    let details = error.error_details()?;
    let violations = details.bad_request.unwrap().field_violations;
    assert_eq!(violations[0].field, "entry");

    let error = client.old(Old::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    server.shutdown_async().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn any_message_travels_with_its_type() -> Outcome {
    let (_server, client) = serve().await?;
    let any = Any::from_msg(&entry("a"))?;
    assert_eq!(any.type_url, "type.googleapis.com/acme.kv.v1.Entry");
    let echo = client.echo(any).await?.into_inner();
    assert_eq!(echo.to_msg::<Entry>()?, entry("a"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_goes_both_ways_with_several_values_of_a_key() -> Outcome {
    let (_server, client) = serve().await?;
    let mut request = Request::new(());
    request.metadata_mut().append(HOP, "browser")?;
    request.metadata_mut().append(HOP, "proxy")?;
    let response = client.ping(request).await?;
    let hops: Vec<_> = response.metadata().get_all(HOP).collect();
    assert_eq!(hops, ["browser", "proxy", "store"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_every_kind_work_on_tokio() -> Outcome {
    let (_server, client) = serve().await?;
    let mut watched = client
        .watch(WatchRequest {
            prefix: "a".to_owned(),
        })
        .await?
        .into_inner();

    let (mut requests, messages) = sender();
    let load = tokio::spawn({
        let client = client.clone();
        async move { client.load(messages).await }
    });
    for key in ["a1", "b1", "a2"] {
        requests.send(put(key)).await?;
    }
    drop(requests);
    assert_eq!(load.await??.into_inner(), 3);
    for key in ["a1", "a2"] {
        let event = watched.message().await?.and_then(|event| event.event);
        assert_eq!(event, Some(event::Event::Put(entry(key))));
    }
    drop(watched);

    let (mut events, messages) = sender();
    let mut replies = client.talk(messages).await?.into_inner();
    let event = Event {
        event: Some(event::Event::Removed("a1".to_owned())),
    };
    events.send(event.clone()).await?;
    assert_eq!(replies.message().await?, Some(event));
    drop(events);
    assert_eq!(replies.message().await?, None);
    Ok(())
}

/// Generic over the way that calls take, and still spawned.
async fn ping_from_tasks<C: SendCaller + Clone + 'static>(client: KeyValueClient<C>) -> u32 {
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.ping(()).await.is_ok() })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += u32::from(task.await.unwrap_or(false));
    }
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_tasks_share_a_client_in_generic_code() -> Outcome {
    let (_server, client) = serve().await?;
    assert_eq!(ping_from_tasks(client).await, 64);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_is_kept_and_says_why_there_was_no_connection() -> Outcome {
    let device = Device::open("soft")?;
    let channel = Channel::builder(&device, "127.0.0.1:1").connect_lazy()?;
    let client = KeyValueClient::new(channel);
    let request = Request::new(get("a"))
        .with_timeout(Duration::from_millis(300))
        .wait_for_ready(true);
    let error = client.get(request).await.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    assert_eq!(CurrentDeadline::capture().instant(), None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_started_again_is_found_again() -> Outcome {
    let (server, device) = serve_at("127.0.0.1:0")?;
    let address = server.local_addr().to_string();
    let channel = Channel::connect(&device, &address).await?;
    let client = KeyValueClient::new(channel);
    client.ping(()).await?;
    server.shutdown_async().await?;
    let error = client.ping(()).await.unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::NeverSent)
    );
    assert!(error.is_retryable());
    let (_server, _) = serve_at(&address)?;
    let request = Request::new(()).wait_for_ready(true);
    client.ping(request).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_channels_share_a_thread() -> Outcome {
    let (server, device) = serve_at("127.0.0.1:0")?;
    let pollers = Pollers::builder(&device).connections(40).start()?;
    let address = server.local_addr().to_string();
    let mut clients = Vec::new();
    for _ in 0..40 {
        clients.push(KeyValueClient::new(
            Channel::connect(&pollers, &address).await?,
        ));
    }
    for client in &clients {
        client.ping(()).await?;
    }
    let refused = Channel::connect(&pollers, &address).await.unwrap_err();
    assert!(refused.to_string().contains("connections"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_stops_at_a_signal() -> Outcome {
    let device = Device::open("soft")?;
    let server = Server::builder(&device)
        .executor(TokioExecutor::current())
        .add_service(KeyValueServer::new(Store::default()))
        .bind("127.0.0.1:0")?;
    let address = server.local_addr().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = server.serve_with_shutdown(stopped);
    let client = async {
        let channel = Channel::connect(&device, &address).await?;
        KeyValueClient::new(channel).ping(()).await?;
        drop(stop);
        Ok::<_, Box<dyn Error>>(())
    };
    let (served, called) = timeout(Duration::from_secs(60), async {
        tokio::join!(serving, client)
    })
    .await?;
    served?;
    called
}

#[test]
fn a_service_that_needs_a_runtime_and_has_none_says_what_to_do() -> Outcome {
    let device = Device::open("soft")?;
    let server = Server::builder(&device)
        .add_service(KeyValueServer::new(Store::default()))
        .bind("127.0.0.1:0")?
        .spawn();
    let poller = LocalPoller::new(&device)?;
    let client = KeyValueClient::new(poller.connect(&server.local_addr().to_string())?);
    let error = poller.block_on(client.ping(())).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(
        error.message().contains("`ServerBuilder::executor`"),
        "{error}"
    );
    // Methods that need no runtime work.
    poller.block_on(client.put(put("a")))?;
    Ok(())
}
