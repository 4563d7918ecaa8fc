//! What an idle connection keeps: memory on the heap, and the pages that its rings have touched.

use std::fs;

use rpc_core::{
    Caller, Idempotency, LocalPoller, MethodKind, MethodSpec, Methods, Request, Response, Server,
    Service, Status,
};

use crate::transport_harness::device;
use crate::{alone, bytes_on_heap};

/// The most that an idle connection may keep on each side, on average of both. On `soft` it is 13 KiB now: a page of
/// each of its two rings, and the rest on the heap.
const MOST: usize = 14 << 10;

/// Nearly as many as a poller has room for by default.
const CONNECTIONS: usize = 60;

const ECHO: MethodSpec = MethodSpec::new(
    "test.Echo/Echo",
    MethodKind::Unary,
    Idempotency::Unknown,
    "uint64",
    "uint64",
);

struct Echo;

impl Service for Echo {
    fn name(&self) -> &'static str {
        "test.Echo"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&ECHO, |request: Request<u64>| async move {
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
    }
}

/// Returns the bytes of the pages of this process's rings that have been touched. Each ring is mapped by
/// both of its sides.
fn bytes_in_rings() -> usize {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ring = false;
    let mut bytes = 0;
    for line in maps.lines() {
        if let Some(kib) = line.strip_prefix("Rss:") {
            let kib = kib.trim().strip_suffix(" kB").unwrap();
            bytes += usize::from(is_ring) * kib.parse::<usize>().unwrap() * 1024;
        } else if line.contains(" r") && line.contains('-') {
            is_ring = line.contains("/memfd:verbline-ring");
        }
    }
    bytes
}

#[test]
fn an_idle_connection_keeps_at_most_14_kib_on_average_of_both_sides() {
    let _alone = alone();
    let device = device();
    let server = Server::builder(&device)
        .add_service(Echo)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let poller = LocalPoller::new(&device).unwrap();
    let address = server.local_addr().to_string();
    let connect = || {
        let channel = poller.connect(&address).unwrap();
        let reply = poller.block_on(channel.unary::<u64, u64>(&ECHO, Request::new(7)));
        assert_eq!(reply.unwrap().into_inner(), 7);
        channel
    };
    let first = connect();
    let (heap, rings) = (bytes_on_heap(), bytes_in_rings());
    let channels: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
    let heap = (bytes_on_heap() - heap) / (2 * CONNECTIONS);
    let rings = (bytes_in_rings() - rings) / (2 * CONNECTIONS);
    // Over TCP there are none.
    let expected = poller.limits().address.contains("shared memory");
    assert_eq!(
        rings >= 8 << 10,
        expected,
        "{rings} bytes: two rings, each mapped by both sides"
    );
    assert!(
        heap + rings <= MOST,
        "{heap} bytes on the heap and {rings} of rings"
    );
    drop((first, channels));
    server.shutdown().unwrap();
}
