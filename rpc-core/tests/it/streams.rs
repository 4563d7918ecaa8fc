//! Streams between a client and a server: all four kinds, step by step.
use rpc_core::{
    Caller, Code, Idempotency, Intents, MethodKind, MethodSpec, Methods, Request, Response, Status,
    Streaming, sender, stream,
};
use rpc_core_testing::{Faults, Pair};

const fn spec(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "u64", "u64")
}

const ECHO: MethodSpec = spec("test.Streams/Echo", MethodKind::Unary);
const SUM: MethodSpec = spec("test.Streams/Sum", MethodKind::ClientStreaming);
const COUNT: MethodSpec = spec("test.Streams/Count", MethodKind::ServerStreaming);
const DOUBLE: MethodSpec = spec("test.Streams/Double", MethodKind::Streaming);

fn register(methods: &mut Methods) {
    methods.unary(&ECHO, |request: Request<u64>| async {
        Ok(Response::new(request.into_inner()))
    });
    methods.client_streaming(&SUM, |request: Request<Streaming<u64>>| async {
        let mut numbers = request.into_inner();
        let mut sum = 0;
        while let Some(number) = numbers.message().await? {
            sum += number;
        }
        Ok(Response::new(sum))
    });
    methods.server_streaming(&COUNT, |request: Request<u64>, responses| async move {
        let count = request.into_inner();
        let numbers = stream(async move |mut responses| {
            for number in 0..count {
                responses.send(number).await?;
            }
            match count {
                13 => Err(Status::out_of_range("13 is too many")),
                _ => Ok(()),
            }
        });
        let mut response = Response::new(numbers);
        response.metadata_mut().insert("initial", "1").unwrap();
        response
            .trailing_metadata_mut()
            .insert("trailing", "2")
            .unwrap();
        responses.send_all(Ok(response)).await
    });
    methods.streaming(
        &DOUBLE,
        |request: Request<Streaming<u64>>, responses| async move {
            let mut numbers = request.into_inner();
            let doubled = stream(async move |mut responses| {
                while let Some(number) = numbers.message().await? {
                    responses.send(2 * number).await?;
                }
                Ok(())
            });
            responses.send_all(Ok(Response::new(doubled))).await
        },
    );
}

fn pair() -> Pair {
    Pair::with(&Intents::default(), Faults::none(), 0, register)
}

async fn collect(mut numbers: Streaming<u64>) -> Vec<u64> {
    let mut all = Vec::new();
    while let Some(number) = numbers.message().await.unwrap() {
        all.push(number);
    }
    all
}

#[test]
fn a_server_streams_its_messages_in_order() {
    let pair = pair();
    let channel = pair.connect();
    for count in [0, 1, 2, 10, 5_000] {
        let numbers = pair.run(async {
            let response = channel.server_streaming(&COUNT, Request::new(count)).await;
            let response: Response<Streaming<u64>> = response.unwrap();
            assert_eq!(response.metadata().get("initial"), Some("1"));
            collect(response.into_inner()).await
        });
        assert_eq!(numbers, (0..count).collect::<Vec<_>>());
    }
    pair.assert_nothing_left();
}

#[test]
fn a_server_ends_its_stream_with_an_error_after_its_messages() {
    let pair = pair();
    let channel = pair.connect();
    pair.run(async {
        let response = channel.server_streaming(&COUNT, Request::new(13)).await;
        let mut numbers: Streaming<u64> = response.unwrap().into_inner();
        for expected in 0..13 {
            assert_eq!(numbers.message().await.unwrap(), Some(expected));
        }
        let error = numbers.message().await.unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange);
        assert_eq!(numbers.message().await.unwrap(), None);
    });
    pair.assert_nothing_left();
}

#[test]
fn a_client_streams_its_messages() {
    let pair = pair();
    let channel = pair.connect();
    let sum = pair.run(async {
        let (mut numbers, messages) = sender();
        let call = channel.client_streaming::<u64, u64>(&SUM, Request::new(messages));
        let send = async move {
            for number in 0..5_000 {
                numbers.send(number).await.unwrap();
            }
        };
        join(call, send).await.0
    });
    assert_eq!(sum.unwrap().into_inner(), (0..5_000).sum());
    pair.assert_nothing_left();
}

#[test]
fn messages_go_back_and_forth() {
    let pair = pair();
    let channel = pair.connect();
    pair.run(async {
        let (mut numbers, messages) = sender();
        let response = channel.streaming(&DOUBLE, Request::new(messages)).await;
        let mut doubled: Streaming<u64> = response.unwrap().into_inner();
        for number in 0..100 {
            numbers.send(number).await.unwrap();
            assert_eq!(doubled.message().await.unwrap(), Some(2 * number));
        }
        drop(numbers);
        assert_eq!(doubled.message().await.unwrap(), None);
    });
    pair.assert_nothing_left();
}

/// Runs two futures to their ends.
async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    let (mut from_a, mut from_b) = (None, None);
    std::future::poll_fn(|cx| {
        if from_a.is_none()
            && let std::task::Poll::Ready(output) = a.as_mut().poll(cx)
        {
            from_a = Some(output);
        }
        if from_b.is_none()
            && let std::task::Poll::Ready(output) = b.as_mut().poll(cx)
        {
            from_b = Some(output);
        }
        match (from_a.take(), from_b.take()) {
            (Some(a), Some(b)) => std::task::Poll::Ready((a, b)),
            (a, b) => {
                (from_a, from_b) = (a, b);
                std::task::Poll::Pending
            }
        }
    })
    .await
}
