//! Bytes of the application whose destructors use the poller that sends them. The destructors run when
//! nothing of the poller is borrowed, or on a thread that is no poller's.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes};
use prost::EncodeError;
use rpc_core::{
    Allocate, Caller, Chunks, Codec, DecodeError, Idempotency, LengthChanged, LocalPoller,
    MethodKind, MethodSpec, Methods, ProstCodec, Request, Response, Server, Service, Status,
};
use rpc_transport_verbs::Device;

const PATIENCE: Duration = Duration::from_secs(60);

const GET: MethodSpec = MethodSpec::new(
    "test.Fields/Get",
    MethodKind::Unary,
    Idempotency::Unknown,
    "bytes",
    "bytes",
);

/// A message of many fields, each of which is encoded as a reference.
struct Fields(Vec<Bytes>);

/// Writes the fields one behind the other, and reads them as one.
#[derive(Clone, Copy)]
struct Raw;

impl Codec<Fields> for Raw {
    fn encoded_len(message: &Fields) -> usize {
        message.0.iter().map(Bytes::len).sum()
    }

    fn encode(message: &Fields, out: &mut [u8]) -> Result<(), LengthChanged> {
        let fields = message.0.concat();
        match fields.len() == out.len() {
            true => out.copy_from_slice(&fields),
            false => return Err(LengthChanged),
        }
        Ok(())
    }

    fn encode_to(message: &Fields, out: &mut impl BufMut) -> Result<(), EncodeError> {
        message.0.iter().for_each(|field| out.put_slice(field));
        Ok(())
    }

    fn encode_chunks(
        message: &Fields,
        _len: usize,
        _allocate: Allocate<'_>,
    ) -> Result<Chunks, LengthChanged> {
        let mut chunks = Chunks::new();
        for field in &message.0 {
            chunks.push_reference(field.clone());
        }
        Ok(chunks)
    }

    fn decode(bytes: &[u8]) -> Result<Fields, DecodeError> {
        Ok(Fields(vec![Bytes::copy_from_slice(bytes)]))
    }
}

thread_local! {
    /// The poller of this thread, once it has run a handler.
    static POLLER: RefCell<Option<LocalPoller>> = const { RefCell::new(None) };
}

/// The names of the threads on which owners were dropped.
type Drops = Arc<Mutex<Vec<Option<String>>>>;

/// The owner of a field's bytes.
struct Owner {
    bytes: Vec<u8>,
    drops: Drops,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(poller) = POLLER.with_borrow(Clone::clone) {
            drop(poller.allocate(5_000));
        }
        let name = thread::current().name().map(str::to_owned);
        let mut drops = self.drops.lock().unwrap_or_else(PoisonError::into_inner);
        drops.push(name);
    }
}

/// Returns so many fields of this length.
struct Get {
    count: usize,
    len: usize,
    drops: Drops,
}

impl Service for Get {
    fn name(&self) -> &'static str {
        "test.Fields"
    }

    fn register(&self, methods: &mut Methods) {
        let (count, len, drops) = (self.count, self.len, Arc::clone(&self.drops));
        methods.unary_with(&GET, ProstCodec, Raw, move |_: Request<()>| {
            POLLER.set(LocalPoller::current());
            let field = || {
                let (bytes, drops) = (vec![7; len], Arc::clone(&drops));
                Bytes::from_owner(Owner { bytes, drops })
            };
            let fields = Fields((0..count).map(|_| field()).collect());
            async { Ok::<_, Status>(Response::new(fields)) }
        });
    }
}

/// Gets `count` fields of `len` bytes over a device, and returns the names of the threads on which the
/// server's were dropped.
fn get(device: &str, count: usize, len: usize) -> Vec<Option<String>> {
    let device = Device::open(device).unwrap();
    let drops = Drops::default();
    let service = Get {
        count,
        len,
        drops: Arc::clone(&drops),
    };
    let server = Server::builder(&device).add_service(service);
    let server = server.bind("127.0.0.1:0").unwrap().spawn();
    let poller = LocalPoller::new(&device).unwrap();
    let channel = poller.connect(&server.local_addr().to_string()).unwrap();
    let request = Request::new(()).with_timeout(PATIENCE);
    let reply = channel.unary_with::<_, _, (), Fields>(&GET, request, ProstCodec, Raw);
    let fields = poller.block_on(reply).unwrap().into_inner().0;
    assert!(fields == [vec![7; count * len]]);
    let start = Instant::now();
    loop {
        let dropped = drops.lock().unwrap_or_else(PoisonError::into_inner).len();
        if dropped >= count {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{dropped} of {count} dropped");
        poller.turn();
    }
    drop((channel, poller));
    server.shutdown().unwrap();
    drops.lock().unwrap().clone()
}

/// Fields that are too short to be sent from where they lie are copied, many of them into one piece.
#[test]
fn fields_that_share_a_piece_are_dropped_while_nothing_is_borrowed() {
    let name = std::env::var("VERBLINE_DEVICE").unwrap_or_else(|_| "soft".to_owned());
    for device in [&*name, "tcp"] {
        for len in [5_000, 16 * 1024] {
            assert_eq!(get(device, 200, len).len(), 200, "{device}, {len} bytes");
        }
    }
}

/// Over TCP, longer fields are sent from where they lie. A poll finds that the peer has them.
#[test]
fn fields_that_are_sent_from_where_they_lie_are_dropped_once_and_not_inside_of_a_poll() {
    let elsewhere = Some("verbline-lent".to_owned());
    for (count, len) in [(1, 32 * 1024), (1, 3 << 20), (40, 100_000)] {
        let drops = get("tcp", count, len);
        assert_eq!(drops, vec![elsewhere.clone(); count], "{len} bytes");
    }
}
