//! The services of the processes, and records of their calls.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rpc_core::{
    CallError, Caller, Idempotency, LocalChannel, MethodKind, MethodSpec, Methods, Request,
    Response, Status,
};
use rpc_core_testing::Clock;

const fn method(path: &'static str) -> MethodSpec {
    MethodSpec::new(
        path,
        MethodKind::Unary,
        Idempotency::Unknown,
        "bytes",
        "bytes",
    )
}

pub(crate) const ECHO: MethodSpec = method("faults.Faults/Echo");
pub(crate) const HELD: MethodSpec = method("faults.Faults/Held");
pub(crate) const FAIL: MethodSpec = method("faults.Faults/Fail");

/// The request of a call: the id that identifies its handler's runs, the length of the response,
/// and the edges over which it is forwarded. The rest is padding, of which each byte follows from its
/// position.
///
/// ```text
///  0    8             12    13
/// ┌────┬─────────────┬─────┬──────────────┬─────────┐
/// │ id │ response_len│ hops│ edge of each │ padding │
/// └────┴─────────────┴─────┴──────────────┴─────────┘
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: u64,
    pub(crate) response_len: u32,
    /// The remaining edges of the route.
    pub(crate) hops: Vec<u8>,
    pub(crate) padding: u32,
}

impl Order {
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = self.id.to_le_bytes().to_vec();
        bytes.extend(self.response_len.to_le_bytes());
        bytes.push(self.hops.len() as u8);
        bytes.extend(&self.hops);
        pad(&mut bytes, self.padding, 0x5a);
        bytes.into()
    }

    /// Returns `None` if the bytes are not a valid order, as in a message that was mixed up.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (response_len, rest) = rest.split_first_chunk()?;
        let (hop_count, rest) = rest.split_first()?;
        let (hops, padding) = rest.split_at_checked(usize::from(*hop_count))?;
        is_padding(padding, 0x5a).then_some(Self {
            id: u64::from_le_bytes(*id),
            response_len: u32::from_le_bytes(*response_len),
            hops: hops.to_vec(),
            padding: padding.len() as u32,
        })
    }

    /// Returns the only correct response.
    pub(crate) fn response(&self) -> Bytes {
        let mut bytes = self.id.to_le_bytes().to_vec();
        let start = bytes[0];
        pad(&mut bytes, self.response_len, start);
        bytes.into()
    }
}

/// Appends `len` bytes, each of which follows from its position and `start`.
fn pad(bytes: &mut Vec<u8>, len: u32, start: u8) {
    bytes.extend((0..len).map(|at| padding_at(at, start)));
}

fn is_padding(bytes: &[u8], start: u8) -> bool {
    let mut expected = (0..bytes.len() as u32).map(|at| padding_at(at, start));
    bytes.iter().all(|byte| Some(*byte) == expected.next())
}

/// Pieces of a message have lengths that no period of this divides: a piece in the wrong place is
/// noticed.
fn padding_at(at: u32, start: u8) -> u8 {
    (at % 251) as u8 ^ (at >> 12) as u8 ^ start
}

/// How late a handler may begin: the errors of the measured clocks, over some hops.
const MOST_LATE: Duration = Duration::from_millis(10);

/// State shared by all handlers of a world.
#[derive(Clone, Default)]
pub(crate) struct Services(Rc<Shared>);

#[derive(Default)]
struct Shared {
    /// How often each order's handler was started, by the number of remaining hops.
    runs: RefCell<HashMap<(u64, usize), u32>>,
    /// By order, when its caller gives up.
    deadlines: RefCell<HashMap<u64, Instant>>,
    /// The time that all processes share, and how far handlers advance it.
    work: RefCell<Option<(Clock, Duration)>>,
    held: RefCell<Vec<Waker>>,
    is_open: Cell<bool>,
    /// By edge.
    channels: RefCell<Vec<Option<LocalChannel>>>,
    mixed_up: RefCell<Option<String>>,
}

impl Services {
    pub(crate) fn with_edges(count: usize) -> Self {
        let services = Self::default();
        services.0.channels.replace(vec![None; count]);
        services
    }

    /// Makes every handler work for `each`.
    pub(crate) fn work(&self, clock: &Clock, each: Duration) {
        *self.0.work.borrow_mut() = Some((clock.clone(), each));
    }

    /// Records when the caller of an order gives up.
    pub(crate) fn set_deadline(&self, id: u64, deadline: Instant) {
        self.0.deadlines.borrow_mut().insert(id, deadline);
    }

    pub(crate) fn register(&self, methods: &mut Methods) {
        for method in [&ECHO, &HELD, &FAIL] {
            let this = self.clone();
            methods.unary(method, move |request: Request<Bytes>| {
                let this = this.clone();
                async move { this.serve(method, request).await }
            });
        }
    }

    async fn serve(
        &self,
        method: &'static MethodSpec,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, Status> {
        let Some(mut order) = Order::parse(request.get_ref()) else {
            let message = request.get_ref();
            let start = &message[..message.len().min(20)];
            let mixed_up = format!("a handler got {} bytes: {start:?}", message.len());
            self.0.mixed_up.borrow_mut().get_or_insert(mixed_up);
            return Err(Status::internal("no order"));
        };
        *self
            .0
            .runs
            .borrow_mut()
            .entry((order.id, order.hops.len()))
            .or_default() += 1;
        self.check_deadline(&order);
        if let Some((clock, each)) = &*self.0.work.borrow() {
            clock.advance(*each);
        }
        if *method == HELD {
            self.wait_until_woken().await;
        }
        if order.hops.is_empty() {
            return match *method == FAIL {
                true => Err(Status::aborted("as asked")),
                false => Ok(Response::new(order.response())),
            };
        }
        let edge = usize::from(order.hops.remove(0));
        let Some(channel) = self.channel(edge) else {
            return Err(Status::unavailable("there is no channel onwards"));
        };
        let mut forwarded = Request::new(order.encode());
        if let Some(deadline) = request.deadline() {
            forwarded = forwarded.with_deadline(deadline);
        }
        send(&channel, method, forwarded)
            .await
            .map(Response::new)
            // The code alone: the sentence of an error would change the frame's length, and with it
            // the seed's outcome, whenever it is worded anew.
            .map_err(|error| Status::new(error.code(), "in a nested call"))
    }

    /// Checks that the handler of an order does not begin after the order's deadline, by more than
    /// the errors of the clocks on its way.
    fn check_deadline(&self, order: &Order) {
        let Some((clock, _)) = &*self.0.work.borrow() else {
            return;
        };
        let deadline = self.0.deadlines.borrow().get(&order.id).copied();
        let Some(deadline) = deadline else {
            return;
        };
        let late = clock.now().saturating_duration_since(deadline);
        if late > MOST_LATE {
            let id = order.id;
            let too_late = format!("call {id} began {late:?} after its deadline");
            self.0.mixed_up.borrow_mut().get_or_insert(too_late);
        }
    }

    /// Waits until `wake_held` is called once, or until the gate is open.
    async fn wait_until_woken(&self) {
        let mut waited = false;
        poll_fn(|cx| {
            if waited || self.0.is_open.get() {
                return Poll::Ready(());
            }
            waited = true;
            self.0.held.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Wakes all held calls.
    pub(crate) fn wake_held(&self) {
        for waker in self.0.held.take() {
            waker.wake();
        }
    }

    /// Opens the gate: calls are no longer held.
    pub(crate) fn open(&self) {
        self.0.is_open.set(true);
        self.wake_held();
    }

    pub(crate) fn channel(&self, edge: usize) -> Option<LocalChannel> {
        self.0.channels.borrow()[edge].clone()
    }

    /// Replaces the channel of an edge. Returns the previous one.
    pub(crate) fn set_channel(
        &self,
        edge: usize,
        channel: Option<LocalChannel>,
    ) -> Option<LocalChannel> {
        std::mem::replace(&mut self.0.channels.borrow_mut()[edge], channel)
    }

    pub(crate) fn runs(&self, id: u64, hops_left: usize) -> u32 {
        self.0
            .runs
            .borrow()
            .get(&(id, hops_left))
            .copied()
            .unwrap_or(0)
    }

    /// Returns an order whose handler was started more than once at the same hop.
    pub(crate) fn repeated(&self) -> Option<(u64, u32)> {
        let runs = self.0.runs.borrow();
        let repeated = runs.iter().filter(|(_, runs)| **runs > 1);
        repeated.map(|((id, _), runs)| (*id, *runs)).min()
    }

    pub(crate) fn mixed_up(&self) -> Option<String> {
        self.0.mixed_up.borrow().clone()
    }
}

pub(crate) async fn send(
    channel: &LocalChannel,
    method: &'static MethodSpec,
    request: Request<Bytes>,
) -> Result<Bytes, CallError> {
    let response = channel.unary::<Bytes, Bytes>(method, request).await;
    response.map(Response::into_inner)
}
