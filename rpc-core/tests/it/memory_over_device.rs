//! Long messages between a client and a server over a device: what was received is forwarded without a
//! copy, and whatever calls do, all memory is back when they and their fields are gone.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;
use proto::bulk::PutRequest;
use rpc_core::codegen::v1::GeneratedCodec;
use rpc_core::stats::{PollerStats, Stats, Transfers};
use rpc_core::{
    CallError, Caller, Code, Idempotency, Intents, LocalChannel, LocalPoller, MethodKind,
    MethodSpec, Methods, Request, Response, Server, ServerHandle, Service, Status, Streaming,
    sender, stream,
};
use rpc_core_testing::Random;
use rpc_transport_verbs::Device;

const PATIENCE: Duration = Duration::from_secs(60);

const fn method(path: &'static str, kind: MethodKind) -> MethodSpec {
    MethodSpec::new(path, kind, Idempotency::Unknown, "bytes", "bytes")
}

const ECHO: MethodSpec = method("test.Memory/Echo", MethodKind::Unary);
const KEEP: MethodSpec = method("test.Memory/Keep", MethodKind::Unary);
const ECHOES: MethodSpec = method("test.Memory/Echoes", MethodKind::Streaming);

/// Opens the device that `VERBLINE_DEVICE` names, or `soft`.
fn device() -> Device {
    let name = std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    Device::open(&name).unwrap()
}

/// Most fields that a side keeps.
const KEPT: usize = 6;

/// Fields that the server's application keeps.
type Kept = Arc<Mutex<VecDeque<Bytes>>>;

fn lock(kept: &Kept) -> MutexGuard<'_, VecDeque<Bytes>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Memory(Kept);

impl Service for Memory {
    fn name(&self) -> &'static str {
        "test.Memory"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary_with(&ECHO, GeneratedCodec, GeneratedCodec, |request| async {
            let message: PutRequest = Request::into_inner(request);
            Ok(Response::new(message))
        });
        let kept = Arc::clone(&self.0);
        methods.unary_with(&KEEP, GeneratedCodec, GeneratedCodec, move |request| {
            let kept = Arc::clone(&kept);
            async move {
                let message: PutRequest = Request::into_inner(request);
                let mut kept = lock(&kept);
                kept.push_back(message.data);
                let surplus = kept.len().saturating_sub(KEPT);
                kept.drain(..surplus);
                Ok(Response::new(PutRequest::default()))
            }
        });
        methods.streaming_with(
            &ECHOES,
            GeneratedCodec,
            GeneratedCodec,
            |request: Request<Streaming<PutRequest>>, responses| async move {
                let mut messages = request.into_inner();
                let echoes = stream(async move |mut sender| {
                    while let Some(message) = messages.message().await? {
                        sender.send(message).await?;
                    }
                    Ok::<_, Status>(())
                });
                responses.send_all(Ok(Response::new(echoes))).await
            },
        );
    }
}

/// All servers and clients of this process share the limit of its memory for messages.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Sends a message with a field, and returns the field of the response.
async fn unary(
    channel: &LocalChannel,
    method: &'static MethodSpec,
    data: Bytes,
) -> Result<Bytes, CallError> {
    let request = Request::new(PutRequest { data }).with_timeout(PATIENCE);
    let reply = channel.unary_with(method, request, GeneratedCodec, GeneratedCodec);
    let reply: Response<PutRequest> = reply.await?;
    Ok(reply.into_inner().data)
}

struct Scene {
    _turn: MutexGuard<'static, ()>,
    server: ServerHandle,
    poller: LocalPoller,
    channel: LocalChannel,
    kept: Kept,
}

impl Scene {
    fn new(message_memory: u64, waits_for_memory: bool) -> Self {
        Self::over(&device(), message_memory, waits_for_memory)
    }

    fn over(device: &Device, message_memory: u64, waits_for_memory: bool) -> Self {
        // A test that failed has left nothing behind that others need.
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = Kept::default();
        let server = Server::builder(device)
            .message_memory(message_memory)
            .waits_for_memory(waits_for_memory)
            .add_service(Memory(Arc::clone(&kept)))
            .bind("127.0.0.1:0")
            .unwrap()
            .spawn();
        let intents = Intents {
            message_memory,
            waits_for_memory,
            ..Intents::default()
        };
        let poller = LocalPoller::builder(device)
            .intents(intents.clone())
            .build()
            .unwrap();
        let channel = poller.connect(&server.local_addr().to_string()).unwrap();
        Self {
            _turn,
            server,
            poller,
            channel,
            kept,
        }
    }

    fn call(&self, method: &'static MethodSpec, message: Bytes) -> Result<Bytes, CallError> {
        self.poller.block_on(unary(&self.channel, method, message))
    }

    /// Allocates registered memory, of which there is some after a while.
    fn allocate(&self, len: usize) -> Bytes {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut memory = self.poller.allocate(len);
            if memory.is_registered() {
                let bytes: Vec<_> = (0..len).map(|at| (at / 7) as u8).collect();
                memory.put_slice(&bytes);
                return memory.freeze();
            }
            assert!(Instant::now() < deadline, "there is no registered memory");
            self.call(&ECHO, Bytes::new()).unwrap();
        }
    }

    /// Returns the statistics of the client and of the server, after a call that lets the server
    /// update its gauges.
    fn stats(&self) -> [Stats; 2] {
        self.call(&ECHO, Bytes::new()).unwrap();
        [self.poller.stats(), self.server.stats()]
    }

    /// Waits until no memory is in use on either side.
    fn assert_all_back(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let stats = self.stats().map(|stats| stats.total());
            let in_use = |stats: &PollerStats| {
                let memory = &stats.memory;
                memory.posted + memory.in_flight + memory.held + memory.pinned
            };
            let [client, server] = stats.each_ref().map(|stats| stats.transfers);
            let has_arrived = client.sent == server.received && server.sent == client.received;
            // A handler of a call that was dropped may have come late.
            lock(&self.kept).clear();
            if has_arrived && stats.iter().all(|stats| in_use(stats) == 0) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "client: {:?} {client:?}, server: {:?} {server:?}",
                stats[0].memory,
                stats[1].memory
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends `message` and gets it back. Returns it, and what the client and the server have counted.
fn echo(scene: &Scene, message: Bytes) -> (Bytes, [Transfers; 2]) {
    let before = scene.stats();
    let reply = scene.call(&ECHO, message.clone()).unwrap();
    assert!(reply == message);
    let [client, server] = scene.stats();
    let since = [client.since(&before[0]), server.since(&before[1])];
    (reply, since.map(|stats| stats.total().transfers))
}

/// A field's tag and length.
const HEAD: u64 = 16;

#[test]
fn a_received_field_is_forwarded_without_a_copy() {
    const LEN: usize = 1 << 20;
    let scene = Scene::new(64 << 20, true);
    // The counters tell a copy: the bytes are on the heap. Over TCP, the kernel takes them there.
    let heap = Bytes::from((0..LEN).map(|at| (at / 5) as u8).collect::<Vec<_>>());
    let (received, [client, server]) = echo(&scene, heap);
    let is_copied = client.bytes_copied >= LEN as u64;
    assert_eq!(is_copied, device().name() != "tcp", "{client:?}");
    assert_forwarded(&server, LEN);
    // What the client has received goes on from it, and comes back, and a part of that too.
    let (again, both) = echo(&scene, received.clone());
    both.iter().for_each(|side| assert_forwarded(side, LEN));
    let part = 1000..LEN - 300_000;
    let (_, both) = echo(&scene, again.slice(part.clone()));
    both.iter()
        .for_each(|side| assert_forwarded(side, part.len()));
    // As memory that the client has allocated.
    let (_, both) = echo(&scene, scene.allocate(LEN));
    both.iter().for_each(|side| assert_forwarded(side, LEN));
    drop((received, again));
    scene.assert_all_back();
}

/// Bytes of an application that notices when they are dropped.
struct Watched {
    bytes: Vec<u8>,
    _used: Arc<()>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Over TCP, long fields are sent from where they lie, and are the application's again afterwards: also
/// those of a call that is dropped, and of a connection that ends.
#[test]
fn over_tcp_the_applications_bytes_are_sent_from_where_they_lie_and_come_back() {
    const LEN: usize = 3 << 20;
    let scene = Scene::over(&Device::open("tcp").unwrap(), 64 << 20, true);
    let used = Arc::new(());
    let watched = || {
        let bytes = (0..LEN).map(|at| (at / 5) as u8).collect();
        let _used = Arc::clone(&used);
        Bytes::from_owner(Watched { bytes, _used })
    };
    let (_, [client, _]) = echo(&scene, watched());
    assert_forwarded(&client, LEN);
    // With parts of its message before and behind.
    let part = watched().slice(1000..LEN - 300_000);
    let len = part.len();
    let (_, [client, _]) = echo(&scene, part);
    assert_forwarded(&client, len);
    for turns in 0..8 {
        let mut call = Box::pin(unary(&scene.channel, &KEEP, watched()));
        let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        for _ in 0..turns {
            scene.call(&ECHO, Bytes::new()).unwrap();
        }
        drop(call);
    }
    let assert_back = || {
        let deadline = Instant::now() + PATIENCE;
        while Arc::strong_count(&used) > 1 {
            assert!(Instant::now() < deadline, "they are kept");
            scene.call(&ECHO, Bytes::new()).unwrap();
        }
    };
    assert_back();
    scene.assert_all_back();
    let address = scene.server.local_addr().to_string();
    let other = scene.poller.connect(&address).unwrap();
    let mut call = Box::pin(unary(&other, &KEEP, watched()));
    let _ = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(call);
    drop(other);
    assert_back();
}

#[test]
fn each_connection_has_numbers_of_its_own() {
    const LEN: usize = 1 << 20;
    let scene = Scene::new(64 << 20, true);
    let address = scene.server.local_addr().to_string();
    let other = scene.poller.connect(&address).unwrap();
    assert_eq!(scene.poller.memory_by_connection(), []);
    let one = scene.call(&ECHO, vec![1; LEN].into()).unwrap();
    let two = [2, 3].map(|byte| {
        let call = unary(&other, &ECHO, vec![byte; LEN].into());
        scene.poller.block_on(call).unwrap()
    });
    let by_connection = scene.poller.memory_by_connection();
    let mut held: Vec<_> = by_connection.iter().map(|memory| memory.held).collect();
    held.sort_unstable();
    let of_one = LEN as u64..LEN as u64 + HEAD;
    assert!(of_one.contains(&held[0]), "{by_connection:?}");
    assert_eq!(held[1..], [2 * held[0]], "{by_connection:?}");
    assert_eq!(
        held.iter().sum::<u64>(),
        scene.stats()[0].total().memory.held
    );
    drop((one, two));
    scene.assert_all_back();
    assert_eq!(scene.poller.memory_by_connection(), []);
}

/// Two pollers keep fields. Neither has half of the memory, and both together would have more.
#[test]
fn fields_are_copied_when_all_pollers_together_keep_more_than_half_of_the_memory() {
    const LEN: u64 = 1_000_000;
    const MEMORY: u64 = 16 << 20;
    let scene = Scene::new(MEMORY, true);
    let address = scene.server.local_addr().to_string();
    let intents = Intents {
        message_memory: MEMORY,
        ..Intents::default()
    };
    let other = LocalPoller::builder(&device())
        .intents(intents)
        .build()
        .unwrap();
    let mut kept = Vec::new();
    // A connection may keep half of its quarter, and with it the message that exceeds that.
    for poller in [&other, &other, &scene.poller, &scene.poller] {
        let channel = poller.connect(&address).unwrap();
        for _ in 0..3 {
            let call = unary(&channel, &ECHO, vec![1; LEN as usize].into());
            kept.push(poller.block_on(call).unwrap());
        }
    }
    let copied = |stats: Stats| stats.total().transfers.bytes_copied_in;
    let all_copied = copied(other.stats()) + copied(scene.poller.stats());
    // The server has a message too for a while.
    let least_shared = MEMORY / 2 / LEN - 2;
    assert!(all_copied >= 12 * LEN - MEMORY / 2, "{all_copied}");
    assert!(all_copied <= (12 - least_shared) * LEN, "{all_copied}");
    drop(kept);
    let (_, [client, _]) = echo(&scene, vec![3; LEN as usize].into());
    assert!(client.bytes_copied_in < HEAD, "{client:?}");
}

/// Checks what a side has counted that sent and received a message with a field of this length: its
/// receiver has copied each byte once, by a READ, and nobody has copied it besides.
fn assert_forwarded(side: &Transfers, len: usize) {
    let len = len as u64;
    assert_eq!((side.sent, side.received), (1, 1), "{side:?}");
    assert!((len..len + HEAD).contains(&side.bytes_sent), "{side:?}");
    assert!(side.bytes_by_reference >= len, "{side:?}");
    assert!(side.bytes_copied < HEAD, "{side:?}");
    assert_eq!(side.bytes_fetched, side.bytes_received, "{side:?}");
    assert_eq!(side.bytes_in_fragments, 0, "{side:?}");
    assert!(side.bytes_copied_in < HEAD, "{side:?}");
}

/// A call that returns the fields that it has received.
type Call<'a> = Pin<Box<dyn Future<Output = Result<Vec<Bytes>, CallError>> + 'a>>;

fn begin_unary<'a>(scene: &'a Scene, message: Bytes, is_kept: bool) -> Call<'a> {
    let method = if is_kept { &KEEP } else { &ECHO };
    Box::pin(async move {
        let reply = unary(&scene.channel, method, message.clone()).await?;
        assert!(is_kept || reply == message);
        Ok(vec![reply])
    })
}

/// Length below which a stream's call keeps the fields that it receives: those of all calls together take
/// less memory than a connection may use.
const KEPT_OF_STREAM: usize = 32 * 1024;

/// Sends messages and receives them, at the same time.
fn begin_stream<'a>(scene: &'a Scene, messages: Vec<Bytes>) -> Call<'a> {
    let (mut sender, requests) = sender();
    let expected = messages.clone();
    let mut sending: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
        for message in messages {
            // The call may have failed, which its other half returns.
            if sender.send(PutRequest { data: message }).await.is_err() {
                return;
            }
        }
    });
    let mut receiving: Call<'a> = Box::pin(async move {
        let request = Request::new(requests).with_timeout(PATIENCE);
        let (channel, codec) = (&scene.channel, GeneratedCodec);
        let response = channel.streaming_with(&ECHOES, request, codec, codec);
        let mut echoes: Streaming<PutRequest> = response.await?.into_inner();
        let mut kept = Vec::new();
        for sent in expected {
            let received = echoes.message().await?.map(|message| message.data);
            assert!(received.as_ref() == Some(&sent));
            // Long fields that are kept until the call ends would let this very call wait for their memory.
            kept.extend(received.filter(|field| field.len() < KEPT_OF_STREAM));
        }
        assert!(echoes.message().await?.is_none());
        Ok(kept)
    });
    let mut is_sent = false;
    Box::pin(std::future::poll_fn(move |cx| {
        is_sent = is_sent || sending.as_mut().poll(cx).is_ready();
        receiving.as_mut().poll(cx)
    }))
}

/// Polls all calls, for so many turns. Returns the outcomes of those that have ended.
fn poll_all(
    scene: &Scene,
    calls: &mut VecDeque<Call<'_>>,
    turns: u64,
) -> Vec<Result<Vec<Bytes>, CallError>> {
    let mut ended = Vec::new();
    let mut left = turns;
    scene
        .poller
        .block_on(std::future::poll_fn(|cx: &mut Context<'_>| {
            calls.retain_mut(|call| match call.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(outcome) => {
                    ended.push(outcome);
                    false
                }
            });
            left = left.saturating_sub(1);
            if left == 0 || calls.is_empty() {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    ended
}

fn random_message(scene: &Scene, random: &Random) -> Bytes {
    let len = match random.below(6) {
        0 => random.below(64),
        1 => 3900 + random.below(400),
        2 => random.below(70_000),
        3 | 4 => random.below(400_000),
        _ => random.below(1_500_000),
    } as usize;
    if random.happens(300) {
        // On the heap, if there is no registered memory now.
        let mut memory = scene.poller.allocate(len);
        memory.put_slice(&vec![len as u8; len]);
        return memory.freeze();
    }
    Bytes::from(vec![len as u8; len])
}

/// Makes random calls, drops some of them in the middle and some of their fields late, and some of
/// both on other threads.
fn run(seed: u64) {
    let random = Random::new(seed);
    let waits_for_memory = random.happens(700);
    let scene = Scene::new(
        [8, 24, 96][random.below(3) as usize] << 20,
        waits_for_memory,
    );
    let mut calls: VecDeque<Call<'_>> = VecDeque::new();
    let mut kept: VecDeque<Bytes> = VecDeque::new();
    let mut threads = Vec::new();
    let judge = |outcome: Result<Vec<Bytes>, CallError>, kept: &mut VecDeque<Bytes>| {
        match outcome {
            Ok(fields) => kept.extend(fields),
            // Fields that are kept may take all memory, until a call has waited for as long as it may.
            Err(error) => assert_eq!(error.code(), Code::ResourceExhausted, "{error}"),
        }
    };
    for _ in 0..60 {
        match random.below(8) {
            0..=2 if calls.len() < 6 => {
                let forwarded = kept.front().filter(|_| random.happens(300)).cloned();
                let message = forwarded.unwrap_or_else(|| random_message(&scene, &random));
                calls.push_back(begin_unary(&scene, message, random.happens(300)));
            }
            3 if calls.len() < 6 => {
                let count = random.below(5);
                let messages = (0..count).map(|_| random_message(&scene, &random));
                calls.push_back(begin_stream(&scene, messages.collect()));
            }
            4 if random.happens(400) => drop(calls.pop_front()),
            5 => drop(kept.pop_front()),
            6 => {
                let fields: Vec<_> = kept.drain(..kept.len() / 2).collect();
                threads.push(thread::spawn(move || drop(fields)));
            }
            _ => {
                for outcome in poll_all(&scene, &mut calls, 1 + random.below(60)) {
                    judge(outcome, &mut kept);
                }
            }
        }
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
    // Without these fields, the calls that wait for memory get some.
    lock(&scene.kept).clear();
    kept.clear();
    if random.happens(500) {
        // Fields that are kept meanwhile would let others wait for their memory in vain.
        while !calls.is_empty() {
            for outcome in poll_all(&scene, &mut calls, 50) {
                judge(outcome, &mut kept);
            }
            kept.clear();
            lock(&scene.kept).clear();
        }
    }
    drop(calls);
    lock(&scene.kept).clear();
    threads.push(thread::spawn(move || drop(kept)));
    for thread in threads {
        thread.join().unwrap();
    }
    scene.assert_all_back();
}

proptest! {
    // A failure prints its seed. What the server does meanwhile differs from run to run.
    #![proptest_config(ProptestConfig {
        cases: 24,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn all_memory_is_back_after_any_calls(seed in any::<u64>()) {
        run(seed);
    }
}
