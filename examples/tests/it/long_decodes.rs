//! A client whose messages take long to decode does not keep the others of its poller waiting.
//!
//! `cargo test --release -p examples --test it long_decodes -- --nocapture` prints the poller's time.
#![allow(
    clippy::print_stdout,
    reason = "prints measurements for the person who runs the test"
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use rpc_core::codegen::v1::prost::encoding::{DecodeContext, WireType, hash_map, uint64};
use rpc_core::codegen::v1::prost::{DecodeError, EncodeError, Message};
use rpc_core::{
    BytesCodec, Caller, Channel, Codec, Idempotency, LengthChanged, MethodKind, MethodSpec,
    Methods, ProstCodec, Request, Response, Server, Service, block_on,
};
use rpc_transport_verbs::Device;
use rustix::time::{ClockId, clock_gettime};

const fn spec(path: &'static str) -> MethodSpec {
    MethodSpec::new(
        path,
        MethodKind::Unary,
        Idempotency::Unknown,
        "any",
        "uint64",
    )
}

/// Returns the processor time of the poller's thread.
const TIME: MethodSpec = spec("test.Decodes/Time");
/// Returns the number of entries.
const COUNT: MethodSpec = spec("test.Decodes/Count");
/// The same, but the message is decoded on the poller's thread.
const COUNT_AT_ONCE: MethodSpec = spec("test.Decodes/CountAtOnce");

/// `map<uint64, uint64>` as field 1.
#[derive(Default)]
struct Entries(HashMap<u64, u64>);

impl Message for Entries {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        let (key, value) = (uint64::encode, uint64::encode);
        let lens = (uint64::encoded_len, uint64::encoded_len);
        hash_map::encode(key, lens.0, value, lens.1, 1, &self.0, buf);
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        hash_map::merge(uint64::merge, uint64::merge, &mut self.0, buf, context)
    }

    fn encoded_len(&self) -> usize {
        hash_map::encoded_len(uint64::encoded_len, uint64::encoded_len, 1, &self.0)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// prost, without an estimate of what a decode takes.
struct AtOnce;

impl Codec<Entries> for AtOnce {
    fn encoded_len(message: &Entries) -> usize {
        message.encoded_len()
    }

    fn encode(message: &Entries, out: &mut [u8]) -> Result<(), LengthChanged> {
        ProstCodec::encode(message, out)
    }

    fn encode_to(message: &Entries, out: &mut impl BufMut) -> Result<(), EncodeError> {
        ProstCodec::encode_to(message, out)
    }

    fn decode(bytes: &[u8]) -> Result<Entries, rpc_core::DecodeError> {
        ProstCodec::decode(bytes)
    }
}

struct Decodes;

impl Service for Decodes {
    fn name(&self) -> &'static str {
        "test.Decodes"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&TIME, |_: Request<u64>| async {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            let time = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            Ok(Response::new(time))
        });
        let count = |request: Request<Entries>| async move {
            Ok(Response::new(request.into_inner().0.len() as u64))
        };
        methods.unary_with(&COUNT, ProstCodec, ProstCodec, count);
        methods.unary_with(&COUNT_AT_ONCE, AtOnce, ProstCodec, count);
    }
}

const ENTRIES: u64 = 300_000;

/// Messages that one client sends while another one looks at the poller.
const MESSAGES: usize = 5;

/// Returns the longest time that the poller's thread has worked between two short calls.
fn longest_between_short_calls(method: &'static MethodSpec) -> Duration {
    let device = Device::best().expect("the software device always exists");
    let server = Server::builder(&device)
        .add_service(Decodes)
        .bind("127.0.0.1:0")
        .expect("the server starts");
    let server = server.spawn();
    let address = server.local_addr().to_string();
    let connect = || block_on(Channel::builder(&device, &address).connect()).unwrap();
    let (good, other) = (connect(), connect());
    let entries = (0..ENTRIES).map(|key| (key << 20, 1)).collect();
    let message = Bytes::from(Entries(entries).encode_to_vec());
    let has_ended = AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..MESSAGES {
                let request = Request::new(message.clone());
                let response = other.unary_with(method, request, BytesCodec, ProstCodec);
                let count: u64 = block_on(response).unwrap().into_inner();
                assert_eq!(count, ENTRIES);
            }
            has_ended.store(true, Ordering::Relaxed);
        });
        let time = || -> u64 {
            let response = good.unary(&TIME, Request::new(0_u64));
            block_on(response).unwrap().into_inner()
        };
        let (mut before, mut longest) = (time(), 0);
        while !has_ended.load(Ordering::Relaxed) {
            let now = time();
            longest = longest.max(now - before);
            before = now;
        }
        Duration::from_nanos(longest)
    });
    server.shutdown().expect("the server stops");
    longest
}

#[test]
fn a_message_that_takes_long_to_decode_does_not_keep_its_poller() {
    let at_once = longest_between_short_calls(&COUNT_AT_ONCE);
    let beside = longest_between_short_calls(&COUNT);
    println!(
        "the poller worked for at most {at_once:?} between two calls, and {beside:?} with decodes beside it"
    );
    // Processor time of one thread: other threads of a busy machine take none of it.
    assert!(beside < at_once / 2, "{beside:?}, {at_once:?}");
}
