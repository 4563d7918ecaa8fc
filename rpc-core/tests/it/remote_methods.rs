//! Calls of methods that only the server has named, with messages that stay bytes.

use std::time::Duration;

use rpc_core::bytes::Bytes;
use rpc_core::{
    BytesCodec, CallError, Channel, Code, Execution, LocalPoller, MethodKind, MethodSpec, Methods,
    Request, Response, SendCaller, Server, ServerHandle, Service, Status, block_on, stream,
};
use rpc_transport_verbs::Device;

use crate::support::method;

const ECHO: MethodSpec = method("remote.Test/Echo");
const GONE: MethodSpec = method("remote.Test/Gone");
const WATCH: MethodSpec = MethodSpec {
    kind: MethodKind::ServerStreaming,
    ..method("remote.Test/Watch")
};
/// The same path, of another kind.
const GONE_STREAMING: MethodSpec = MethodSpec {
    kind: MethodKind::ServerStreaming,
    ..GONE
};

/// Echoes, once or three times.
struct Echo(&'static [&'static MethodSpec]);

impl Service for Echo {
    fn name(&self) -> &'static str {
        "remote.Test"
    }

    fn register(&self, methods: &mut Methods) {
        for spec in self.0 {
            match spec.kind {
                MethodKind::Unary => {
                    methods.unary_with(spec, BytesCodec, BytesCodec, async |request| {
                        Ok(Response::new(Request::into_inner(request)))
                    });
                }
                _ => methods.server_streaming_with(
                    spec,
                    BytesCodec,
                    BytesCodec,
                    async |request: Request<Bytes>, responses| {
                        let messages = stream(async move |mut out| {
                            for _ in 0..3 {
                                out.send(request.get_ref().clone()).await?;
                            }
                            Ok::<_, Status>(())
                        });
                        responses.send_all(Ok(Response::new(messages))).await
                    },
                ),
            }
        }
    }
}

fn serve(address: &str, methods: &'static [&'static MethodSpec]) -> ServerHandle {
    Server::builder(&Device::open("soft").unwrap())
        .connections(4)
        .add_service(Echo(methods))
        .bind(address)
        .unwrap()
        .spawn()
}

fn call(
    channel: &impl SendCaller,
    spec: &'static MethodSpec,
    message: &Bytes,
) -> Result<Bytes, CallError> {
    let request = Request::new(message.clone())
        .with_timeout(Duration::from_secs(60))
        .wait_for_ready(true);
    block_on(channel.unary_with(spec, request, BytesCodec, BytesCodec)).map(Response::into_inner)
}

/// Messages that fit a frame, that do not, and that take several pieces.
fn messages() -> [Bytes; 4] {
    [0, 100, 10_000, 1_000_000].map(|len| (0..len).map(|at| at as u8).collect())
}

#[test]
fn methods_that_the_server_names_are_called_and_counted_as_those_of_a_stub() {
    let server = serve("127.0.0.1:0", &[&ECHO, &WATCH]);
    let device = Device::open("soft").unwrap();
    let address = server.local_addr().to_string();
    let lazy = Channel::builder(&device, &address).connect_lazy().unwrap();
    assert!(lazy.methods().is_none());
    let echo = call(&lazy, &ECHO, &messages()[1]);
    assert_eq!(echo.unwrap(), messages()[1]);

    let methods = lazy.methods().unwrap();
    let named: Vec<_> = methods.iter().map(|spec| (spec.path, spec.kind)).collect();
    assert_eq!(named, [(ECHO.path, ECHO.kind), (WATCH.path, WATCH.kind)]);
    let spec = methods.get("remote.Test/Echo").unwrap();
    for message in messages() {
        assert_eq!(call(&lazy, spec, &message).unwrap(), message);
    }
    let watch = methods.get("remote.Test/Watch").unwrap();
    for message in messages() {
        block_on(async {
            let request = Request::new(message.clone());
            let watched = lazy.server_streaming_with(watch, request, BytesCodec, BytesCodec);
            let mut watched = watched.await?.into_inner();
            for _ in 0..3 {
                assert_eq!(watched.message().await?.as_ref(), Some(&message));
            }
            assert_eq!(watched.message().await?, None);
            Ok::<_, CallError>(())
        })
        .unwrap();
    }
    let stats = lazy.stats().total();
    let counts: Vec<_> = (stats.called.iter())
        .map(|method| (method.path, method.ended(Code::Ok)))
        .collect();
    assert_eq!(counts, [(ECHO.path, 5), (WATCH.path, 4)]);

    // Registered memory is sent from where it lies.
    let mut memory = loop {
        // There is some after a while.
        let memory = block_on(lazy.allocate(100_000));
        if memory.is_registered() {
            break memory;
        }
    };
    memory.resize(100_000, 7);
    let message = memory.freeze();
    assert_eq!(call(&lazy, spec, &message).unwrap(), message);
    let transfers = lazy.stats().total().transfers;
    assert_eq!(transfers.bytes_by_reference, 100_000);
    server.shutdown().unwrap();
}

#[test]
fn after_a_restart_the_methods_are_those_of_the_new_server() {
    let server = serve("127.0.0.1:0", &[&GONE, &ECHO]);
    let device = Device::open("soft").unwrap();
    let address = server.local_addr().to_string();
    let channel = block_on(Channel::connect(&device, &address)).unwrap();
    let before = channel.methods().unwrap();
    let [gone, echo] = [&GONE, &ECHO].map(|spec| before.get(spec.path).unwrap());
    let message = &messages()[1];
    assert_eq!(call(&channel, gone, message).unwrap(), message);
    assert_eq!(call(&channel, echo, message).unwrap(), message);
    server.shutdown().unwrap();

    let server = serve(&address, &[&WATCH, &ECHO]);
    // It has another number now, for the spec of the stub as for this one.
    for spec in [echo, &ECHO] {
        assert_eq!(call(&channel, spec, message).unwrap(), message);
    }
    let after = channel.methods().unwrap();
    assert!(std::ptr::eq(echo, after.get(ECHO.path).unwrap()));
    assert!(after.get(GONE.path).is_none());
    assert_eq!(
        after.get(WATCH.path).unwrap().kind,
        MethodKind::ServerStreaming
    );
    for spec in [gone, &GONE] {
        let error = call(&channel, spec, message).unwrap_err();
        let outcome = (error.code(), error.execution());
        assert_eq!(outcome, (Code::Unimplemented, Execution::NeverSent));
    }
    server.shutdown().unwrap();

    // The path is back, with another kind.
    let server = serve(&address, &[&ECHO, &GONE_STREAMING]);
    assert_eq!(call(&channel, echo, message).unwrap(), message);
    let now = channel.methods().unwrap().get(GONE.path).unwrap();
    assert_eq!(now.kind, MethodKind::ServerStreaming);
    assert!(!std::ptr::eq(now, gone));
    let error = call(&channel, gone, message).unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    server.shutdown().unwrap();
}

#[test]
fn a_local_channel_has_the_methods_of_its_connection() {
    let server = serve("127.0.0.1:0", &[&ECHO]);
    let device = Device::open("soft").unwrap();
    let poller = LocalPoller::new(&device).unwrap();
    let channel = poller.connect(&server.local_addr().to_string()).unwrap();
    let methods = channel.methods();
    assert_eq!(methods.iter().len(), 1);
    let spec = methods.get(ECHO.path).unwrap();
    for message in messages() {
        let request = Request::new(message.clone());
        let echoed = rpc_core::Caller::unary_with(&channel, spec, request, BytesCodec, BytesCodec);
        assert_eq!(poller.block_on(echoed).unwrap().into_inner(), message);
    }
    server.shutdown().unwrap();
}
