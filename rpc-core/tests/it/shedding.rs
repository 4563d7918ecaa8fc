//! A server at its limit of concurrent calls rejects further ones at little cost: no message is
//! decoded, and no credit is lost.

use std::cell::Cell;
use std::rc::Rc;

use crate::support::{ECHO, Gate, HELD, call, method, register};
use rpc_core::{Code, Execution, Intents, Request, Response, Status};
use rpc_core_testing::{Faults, Pair};

const COUNTED: rpc_core::MethodSpec = method("test.Test/Counted");

fn limited(calls: u32, intents: &Intents) -> (Pair, Gate, Rc<Cell<u32>>) {
    let (gate, decoded) = (Gate::default(), Rc::new(Cell::new(0)));
    let pair = Pair::with(intents, Faults::none(), 0, |methods| {
        register(methods, &gate);
        let decoded = Rc::clone(&decoded);
        methods.unary(&COUNTED, move |_: Request<Vec<u8>>| {
            decoded.set(decoded.get() + 1);
            async { Ok::<_, Status>(Response::new(Vec::<u8>::new())) }
        });
        methods.limit_concurrent_calls(calls);
    });
    (pair, gate, decoded)
}

#[test]
fn the_call_after_the_last_that_fits_is_shed_before_it_is_decoded() {
    let (pair, gate, decoded) = limited(3, &Intents::default());
    let channel = pair.connect();
    let mut held: Vec<_> = (0..3u8)
        .map(|n| Box::pin(call(&channel, &HELD, [n])))
        .collect();
    for call in &mut held {
        assert!(pair.network().try_run(call).is_none());
    }
    assert_eq!(gate.entered(), 3);
    // More calls than there are credits, from this connection and from another.
    let other = pair.connect();
    for n in 0..300u32 {
        let channel = if n % 2 == 0 { &channel } else { &other };
        let error = pair.run(call(channel, &COUNTED, "")).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert_eq!(error.execution(), Execution::NotStarted);
        let message = error.to_string();
        assert!(message.contains("limit of 3 "), "{message}");
        assert!(message.contains("`max_concurrent_calls`"), "{message}");
    }
    assert_eq!(decoded.get(), 0);
    gate.open();
    for (n, call) in (0..).zip(held) {
        assert_eq!(pair.run(call).unwrap(), [n]);
    }
    pair.run(call(&other, &COUNTED, "")).unwrap();
    assert_eq!(decoded.get(), 1);
    pair.assert_nothing_left();
}

#[test]
fn calls_that_do_not_await_are_never_at_work_together() {
    let (pair, ..) = limited(1, &Intents::default());
    let channel = pair.connect();
    let calls: Vec<_> = (0..100u8)
        .map(|n| Box::pin(call(&channel, &ECHO, [n])))
        .collect();
    for (n, call) in (0..).zip(calls) {
        assert_eq!(pair.run(call).unwrap(), [n]);
    }
    pair.assert_nothing_left();
}

#[test]
fn a_call_frees_its_capacity_however_it_ends() {
    let (pair, gate, _) = limited(1, &Intents::default());
    let channel = pair.connect();
    for _ in 0..3 {
        // The call ends because its connection closes.
        let other = pair.connect();
        let mut held = Box::pin(call(&other, &HELD, ""));
        assert!(pair.network().try_run(&mut held).is_none());
        let error = pair.run(call(&channel, &ECHO, "")).unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted);
        drop(held);
        drop(other);
        pair.network().settle();
        pair.run(call(&channel, &ECHO, "")).unwrap();
        // The call ends because its deadline passes.
        let request = Request::new(Vec::new()).with_timeout(std::time::Duration::from_millis(1));
        let mut held = Box::pin(crate::support::send(&channel, &HELD, request));
        assert!(pair.network().try_run(&mut held).is_none());
        pair.network().advance(std::time::Duration::from_millis(2));
        assert_eq!(pair.run(held).unwrap_err().code(), Code::DeadlineExceeded);
        pair.run(call(&channel, &ECHO, "")).unwrap();
    }
    gate.open();
    pair.assert_nothing_left();
}
