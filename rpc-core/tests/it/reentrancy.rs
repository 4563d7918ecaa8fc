//! Application code that uses its poller from inside: handlers, wakers, destructors and messages
//! that connect, call, and drop calls. Nothing of the poller may be borrowed while they run.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use rpc_core::{CallError, Caller, Code, Intents, LocalChannel, MethodSpec};
use rpc_core::{Request, Response, Status};
use rpc_core_testing::{Faults, Network, Node};

use crate::support::{ECHO, Gate, HELD, call, method, register};

const REENTER: MethodSpec = method("test.Reentrant/Reenter");
const AWAIT: MethodSpec = method("test.Reentrant/Await");

type Call = Pin<Box<dyn Future<Output = Result<Vec<u8>, CallError>>>>;

/// What application code reaches from inside the poller.
struct World {
    node: Rc<Node>,
    channel: LocalChannel,
    /// Calls that were begun from inside. The test runs them to their end.
    begun: RefCell<Vec<Call>>,
    /// A call that is dropped from inside.
    doomed: RefCell<Option<Call>>,
    entered: Cell<u32>,
}

thread_local! {
    // Wakers are `Send`, so they find the world here.
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn poll_once(call: &mut Call) -> bool {
    call.as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
}

fn begin(channel: &LocalChannel, method: &'static MethodSpec, len: usize) -> Call {
    let channel = channel.clone();
    let mut begun: Call = Box::pin(async move { call(&channel, method, vec![1; len]).await });
    assert!(poll_once(&mut begun));
    begun
}

/// Does everything that an application may do from inside its poller.
fn reenter() {
    let Some(world) = WORLD.with_borrow(Clone::clone) else {
        return;
    };
    // A short message and a long one, which are sent in different ways.
    for len in [1, 300] {
        let kept = begin(&world.channel, &ECHO, len);
        world.begun.borrow_mut().push(kept);
        drop(begin(&world.channel, &ECHO, len));
    }
    let doomed = world
        .doomed
        .borrow_mut()
        .replace(begin(&world.channel, &HELD, 1));
    drop(doomed);
    let connected = world.node.poller().connect("itself").unwrap();
    drop(begin(&connected, &ECHO, 1));
    drop(connected);
    // Inside a turn this does nothing.
    world.node.poller().turn();
    assert!(!world.node.poller().stats().pollers.is_empty());
    // Not before: what panics has not entered.
    world.entered.set(world.entered.get() + 1);
}

#[derive(Debug)]
struct ReenterOnDrop;

impl Drop for ReenterOnDrop {
    fn drop(&mut self) {
        reenter();
    }
}

/// A waker that reenters the poller when it is woken, and when its last clone is dropped.
struct Reentrant {
    _inside: ReenterOnDrop,
}

impl Wake for Reentrant {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        reenter();
    }
}

/// A message whose own code reenters the poller.
#[derive(Clone, Debug, Default, PartialEq)]
struct Nested {
    len: usize,
}

impl Message for Nested {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        reenter();
        prost::encoding::bytes::encode(1, &vec![7u8; self.len], buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        reenter();
        let mut bytes = Vec::<u8>::new();
        if tag == 1 {
            prost::encoding::bytes::merge(wire_type, &mut bytes, buf, ctx)?;
        }
        self.len = bytes.len();
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        prost::encoding::bytes::encoded_len(1, &vec![7u8; self.len])
    }

    fn clear(&mut self) {}
}

const NESTED: MethodSpec = method("test.Reentrant/Nested");
const FAILING: MethodSpec = method("test.Reentrant/Failing");

/// The source of a status, which reenters the poller when it is dropped.
#[derive(Debug)]
struct ReentrantError {
    _inside: ReenterOnDrop,
}

impl fmt::Display for ReentrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reentrant")
    }
}

impl Error for ReentrantError {}

/// A node that serves its own calls, so that both sides of a call are on one poller.
fn world() -> (Network, Rc<World>, Gate) {
    let gate = Gate::default();
    let mut network = Network::new(Faults::none(), 0);
    let node = network.add("itself", &Intents::default(), |methods| {
        register(methods, &gate);
        methods.unary(&REENTER, |request: Request<Vec<u8>>| async {
            reenter();
            // Dropped when the future completes.
            let _inside = ReenterOnDrop;
            Ok(Response::new(request.into_inner()))
        });
        let awaited = gate.clone();
        methods.unary(&AWAIT, move |request: Request<Vec<u8>>| {
            let gate = awaited.clone();
            async move {
                let _inside = ReenterOnDrop;
                gate.pass().await;
                reenter();
                Ok(Response::new(request.into_inner()))
            }
        });
        methods.unary(&FAILING, |_: Request<Vec<u8>>| async {
            let _inside = ReenterOnDrop;
            let source = Arc::new(ReentrantError { _inside });
            Err::<Response<Vec<u8>>, _>(Status::internal("as asked").with_source(source))
        });
        methods.unary(&NESTED, |request: Request<Nested>| async {
            Ok(Response::new(request.into_inner()))
        });
    });
    let channel = node.poller().connect("itself").unwrap();
    let world = Rc::new(World {
        node,
        channel,
        begun: RefCell::default(),
        doomed: RefCell::default(),
        entered: Cell::new(0),
    });
    WORLD.set(Some(Rc::clone(&world)));
    (network, world, gate)
}

/// Runs everything that was begun from inside, and checks that nothing is left.
fn finish(network: &Network, world: Rc<World>, gate: &Gate, at_least: u32) {
    WORLD.take();
    assert!(world.entered.get() >= at_least, "{}", world.entered.get());
    drop(world.doomed.take());
    gate.open();
    for begun in world.begun.take() {
        let answer = network.try_run(begun).expect("the call ends");
        assert!(!answer.unwrap().is_empty());
    }
    drop(world);
    network.assert_nothing_left();
}

#[test]
fn a_handler_uses_its_own_poller_when_it_runs_and_when_it_is_dropped() {
    let (network, world, gate) = world();
    for len in [1, 300] {
        let answer = network.try_run(call(&world.channel, &REENTER, vec![2; len]));
        assert_eq!(answer.unwrap().unwrap().len(), len);
    }
    let mut awaits = begin(&world.channel, &AWAIT, 1);
    network.settle();
    gate.open();
    let answer = network.try_run(poll_fn(|cx| awaits.as_mut().poll(cx)));
    assert!(answer.unwrap().is_ok());
    finish(&network, world, &gate, 6);
}

#[test]
fn a_status_uses_the_poller_when_it_is_dropped() {
    let (network, world, gate) = world();
    let answer = network.try_run(call(&world.channel, &FAILING, *b"x"));
    assert_eq!(answer.unwrap().unwrap_err().code(), Code::Internal);
    finish(&network, world, &gate, 1);
}

#[test]
fn a_handler_whose_deadline_passes_uses_its_poller_when_it_is_dropped() {
    let (network, world, gate) = world();
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(1));
    let channel = world.channel.clone();
    let mut late = Box::pin(async move { crate::support::send(&channel, &AWAIT, request).await });
    let mut cx = Context::from_waker(Waker::noop());
    assert!(late.as_mut().poll(&mut cx).is_pending());
    network.settle();
    network.advance(Duration::from_secs(1));
    assert!(network.try_run(late).unwrap().is_err());
    finish(&network, world, &gate, 1);
}

#[test]
fn a_waker_uses_the_poller_that_wakes_it_and_that_drops_it() {
    let (network, world, gate) = world();
    let waker = || {
        Waker::from(Arc::new(Reentrant {
            _inside: ReenterOnDrop,
        }))
    };
    // A call that completes, one that is polled again with another waker, and one that is dropped.
    let (mut completes, mut again, mut dropped): (Call, Call, Call) = {
        let begin = |len: usize| -> Call {
            let channel = world.channel.clone();
            Box::pin(async move { call(&channel, &ECHO, vec![3; len]).await })
        };
        (begin(1), begin(1), begin(1))
    };
    for call in [&mut completes, &mut again, &mut dropped] {
        let waker = waker();
        assert!(
            call.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    let other = waker();
    assert!(
        again
            .as_mut()
            .poll(&mut Context::from_waker(&other))
            .is_pending()
    );
    drop(other);
    drop(dropped);
    network.settle();
    for call in [completes, again] {
        assert!(network.try_run(call).unwrap().is_ok());
    }
    finish(&network, world, &gate, 4);
}

#[test]
fn a_call_that_waits_for_its_turn_reenters_when_it_is_woken_or_gives_up() {
    let (network, world, gate) = world();
    // More calls than credits: most of them wait.
    let mut calls: Vec<Call> = Vec::new();
    for _ in 0..200 {
        let channel = world.channel.clone();
        let mut waits: Call = Box::pin(async move { call(&channel, &ECHO, *b"waits").await });
        let waker = Waker::from(Arc::new(Reentrant {
            _inside: ReenterOnDrop,
        }));
        // The first wakers would begin too many calls.
        WORLD.take();
        let polled = waits.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        drop(waker);
        calls.push(waits);
    }
    WORLD.set(Some(Rc::clone(&world)));
    let rest = calls.split_off(150);
    drop(calls);
    for call in rest {
        assert!(network.try_run(call).unwrap().is_ok());
    }
    finish(&network, world, &gate, 1);
}

#[test]
fn a_message_uses_the_poller_while_it_is_encoded_and_decoded() {
    let (network, world, gate) = world();
    for len in [1, 300] {
        let nested = world
            .channel
            .unary::<Nested, Nested>(&NESTED, Request::new(Nested { len }));
        let answer = network.try_run(nested).unwrap().unwrap();
        assert_eq!(answer.into_inner().len, len);
    }
    finish(&network, world, &gate, 8);
}

#[test]
fn a_future_that_block_on_runs_may_drop_and_begin_calls() {
    let (network, world, gate) = world();
    let mut polls = 0;
    let output = world.node.poller().block_on(poll_fn(|_| {
        reenter();
        polls += 1;
        Poll::Ready(polls)
    }));
    assert_eq!(output, 1);
    finish(&network, world, &gate, 1);
}
