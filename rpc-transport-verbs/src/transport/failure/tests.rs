//! The details of a queue pair's failure are reported to every call that was in flight on it.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Poll, Waker};
use std::time::Duration;

use rpc_core::transport::{
    AllocateError, CloseReason, ConnectError, Connected, ConnectionId, CounterReader, Dialer,
    Event, Fabric, HeapMemory, PeerClock, ReserveError, SendError, SlotsByState, Transport,
};
use rpc_core::{
    Caller, Cause, Code, Execution, Idempotency, Intents, Limits, LocalPoller, MethodKind,
    MethodSpec, Methods, Request, Response, Server, Service, Status,
};
use rpc_core_testing::Clock;
use verbline_verbs::{AsyncEvent, QpNum};

use crate::Device;
use crate::connect::client::Dialed;
use crate::transport::device_event::DeviceEvent;
use crate::transport::notices::Notice;
use crate::transport::{RecvBuf, SendBuf, VerbsTransport};

const NEVER: MethodSpec = MethodSpec::new(
    "test.Silent/Never",
    MethodKind::Unary,
    Idempotency::Unknown,
    "uint64",
    "uint64",
);

struct Silent;

impl Service for Silent {
    fn name(&self) -> &'static str {
        "test.Silent"
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(&NEVER, |request: Request<u64>| async move {
            poll_fn(|_| Poll::<()>::Pending).await;
            Ok::<_, Status>(Response::new(request.into_inner()))
        });
    }
}

/// A transport whose device reports, on request, that the queue pair has failed.
struct Breakable {
    transport: VerbsTransport,
    breaks: Rc<Cell<bool>>,
}

impl Transport for Breakable {
    type SendBuf = SendBuf;
    type RecvBuf = RecvBuf;
    type Dialed = Dialed;
    type Memory = HeapMemory;

    fn limits(&self) -> &Limits {
        self.transport.limits()
    }
    fn counter_reader(&self) -> Arc<dyn CounterReader> {
        self.transport.counter_reader()
    }
    fn slots_by_state(&self) -> SlotsByState {
        self.transport.slots_by_state()
    }
    fn dialer(&self, was_protected: Arc<AtomicBool>) -> Arc<dyn Dialer<Dialed>> {
        self.transport.dialer(was_protected)
    }
    fn adopt(&mut self, dialed: Dialed) -> Result<Connected, ConnectError> {
        self.transport.adopt(dialed)
    }
    fn send_inline<R>(
        &mut self,
        connection: ConnectionId,
        frame: &mut [u8],
        complete: impl FnOnce(&mut [u8]) -> Option<R>,
    ) -> Result<Option<R>, ReserveError> {
        self.transport.send_inline(connection, frame, complete)
    }
    fn reserve(&mut self, connection: ConnectionId, len: usize) -> Result<SendBuf, ReserveError> {
        self.transport.reserve(connection, len)
    }
    fn send(&mut self, connection: ConnectionId, buf: SendBuf) -> Result<(), SendError> {
        self.transport.send(connection, buf)
    }
    fn cancel(&mut self, buf: SendBuf) {
        self.transport.cancel(buf);
    }
    fn flush(&mut self) {
        self.transport.flush();
    }
    fn set_promised(&mut self, receives: u32) {
        self.transport.set_promised(receives);
    }
    fn poll(&mut self) -> Option<Event<RecvBuf>> {
        if self.breaks.take() {
            let lane = self.transport.lane(0).expect("there is one lane");
            let (_, connection) = lane.connections.at(0).expect("there is one connection");
            let qp_num = connection.queue_pair.qp_num();
            let event = DeviceEvent::new("soft", AsyncEvent::QpFatal { qp_num });
            let told = lane
                .notice_sender
                .send(Notice::QueuePairFailed(qp_num, event));
            told.expect("the transport is there");
        }
        self.transport.poll()
    }
    fn release(&mut self, buf: RecvBuf) {
        self.transport.release(buf);
    }
    fn allocate(&mut self, len: usize) -> Result<HeapMemory, AllocateError> {
        Ok(HeapMemory::new(len))
    }

    fn peer_clock(&self, connection: ConnectionId) -> Option<PeerClock> {
        self.transport.peer_clock(connection)
    }
    fn close(&mut self, connection: ConnectionId) {
        self.transport.close(connection);
    }
    fn waker(&self) -> Waker {
        self.transport.waker()
    }
    fn arm(&mut self) {
        self.transport.arm();
    }
    fn wait(&mut self, timeout: Option<Duration>) {
        self.transport.wait(timeout);
    }
}

#[test]
fn the_end_of_a_queue_pair_is_told_to_every_call_in_flight_with_all_that_is_known_of_it() {
    let device = Device::open("soft").unwrap();
    let server = Server::builder(&device)
        .add_service(Silent)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let breaks = Rc::new(Cell::new(false));
    let transport = Breakable {
        transport: device.open(&Intents::default()).unwrap(),
        breaks: Rc::clone(&breaks),
    };
    let poller = LocalPoller::over(transport, Clock::system());
    let channel = poller.connect(&server.local_addr().to_string()).unwrap();
    let mut calls: Vec<_> = (0..16)
        .map(|n| Box::pin(channel.unary::<u64, u64>(&NEVER, Request::new(n))))
        .collect();
    poller.block_on(poll_fn(|cx| {
        for call in &mut calls {
            assert!(call.as_mut().poll(cx).is_pending());
        }
        Poll::Ready(())
    }));
    while server.stats().total().handlers.awaited == 0 {
        poller.turn();
        std::thread::yield_now();
    }
    breaks.set(true);
    let qp_num = QpNum(0);
    let meaning = AsyncEvent::QpFatal { qp_num }.explanation().meaning;
    for call in calls {
        let error = poller.block_on(call).unwrap_err();
        let Cause::Disconnected(CloseReason::Failed(post_mortem)) = error.cause() else {
            panic!("{error}");
        };
        assert_eq!(error.code(), Code::Unavailable);
        if error.execution() == Execution::NeverSent {
            // The call was waiting for a credit. It gets the same details.
            assert!(error.to_string().ends_with("was never sent"), "{error}");
        } else {
            assert!(error.to_string().ends_with("may have run"), "{error}");
        }
        let text = post_mortem.to_string();
        for part in [meaning, "(now in ", ", its peer is ", "; port "] {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
        assert!(error.to_string().contains(&text), "{error}");
    }
    let stats = poller.stats().total();
    assert_eq!(stats.connections.failed, 1);
    assert_eq!(stats.in_flight(), 0);
}
