//! Passes the calls of any service on to its server: `proxy <upstream> <address>`.

use std::error::Error;
use std::future::pending;

use futures_util::{StreamExt, TryStreamExt};
use verbline::client::{MethodKind, RemoteMethods, SendCaller};
use verbline::message::{BytesCodec, bytes::Bytes};
use verbline::server::{Methods, Responses, Service};
use verbline::{CallError, Channel, Device, Response, Server, Status, Stream, Streaming, block_on};

const RAW: BytesCodec = BytesCodec;

struct Proxy(Channel, RemoteMethods);

impl Service for Proxy {
    fn name(&self) -> &'static str {
        "proxy"
    }

    fn register(&self, methods: &mut Methods) {
        for spec in self.1.iter() {
            let to = self.0.clone();
            match spec.kind {
                MethodKind::Unary => methods.unary_with(spec, RAW, RAW, move |request| {
                    let to = to.clone();
                    async move { to.unary_with(spec, request, RAW, RAW).await.map_err(status) }
                }),
                MethodKind::ClientStreaming => {
                    methods.client_streaming_with(spec, RAW, RAW, move |request| {
                        let (to, request) = (to.clone(), request.map(upload));
                        async move {
                            let response = to.client_streaming_with(spec, request, RAW, RAW);
                            response.await.map_err(status)
                        }
                    });
                }
                MethodKind::ServerStreaming => {
                    methods.server_streaming_with(spec, RAW, RAW, move |request, responses| {
                        let to = to.clone();
                        async move {
                            let begun = to.server_streaming_with(spec, request, RAW, RAW).await;
                            pass_back(begun, responses).await
                        }
                    });
                }
                MethodKind::Streaming => {
                    methods.streaming_with(spec, RAW, RAW, move |request, responses| {
                        let (to, request) = (to.clone(), request.map(upload));
                        async move {
                            let begun = to.streaming_with(spec, request, RAW, RAW).await;
                            pass_back(begun, responses).await
                        }
                    });
                }
                other => eprintln!("{} is not served: {other:?}", spec.path),
            }
        }
    }
}

/// Returns the messages of a client. After an error the client has gone, and this call is about to be
/// dropped: an end would tell the server that the upload was complete.
fn upload(messages: Streaming<Bytes>) -> impl Stream<Item = Bytes> + Send + 'static {
    messages.then(async |message| match message {
        Ok(message) => message,
        Err(_) => pending().await,
    })
}

/// Sends what the server sends: metadata, messages, and trailing metadata or a status.
async fn pass_back(
    begun: Result<Response<Streaming<Bytes>>, CallError>,
    responses: Responses<BytesCodec, Bytes>,
) -> Result<Response<()>, Status> {
    let begun = begun.map_err(status)?;
    let metadata = begun.metadata().clone();
    let mut messages = begun.into_inner();
    let mut passed = Response::new((&mut messages).map_err(status));
    *passed.metadata_mut() = metadata;
    let mut end = responses.send_all(Ok(passed)).await?;
    *end.trailing_metadata_mut() = messages.trailers().await.map_err(status)?;
    Ok(end)
}

/// Returns the server's status as it is, or one that says what has failed on the way.
fn status(error: CallError) -> Status {
    error.status().cloned().unwrap_or_else(|| error.into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [upstream, address] = &arguments[..] else {
        return Err("usage: proxy <upstream> <address>".into());
    };
    let device = Device::best()?;
    let channel = block_on(Channel::connect(&device, upstream))?;
    let methods = channel.methods().ok_or("the channel is not connected")?;
    let proxy = Server::builder(&device)
        .add_service(Proxy(channel, methods))
        .bind(address)?;
    println!("listening at {}", proxy.local_addr());
    Ok(proxy.run()?)
}
