//! Calls between a client and a server, step by step, including misuse.

use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rpc_core::BlockOnInTurn;
use rpc_core::transport::ConnectError;
use rpc_core::{
    Caller, Cause, Code, Execution, Intents, Limits, LocalChannel, LocalPoller, Request, Response,
    Status,
};
use rpc_core_testing::{Faults, LoopbackNode, Network, Node, Pair};

use crate::support::{ABSENT, ECHO, FAIL, GROW, Gate, HELD, PANIC, call, register, send};

fn pair() -> (Pair, Gate) {
    pair_with(&Intents::default())
}

fn pair_with(intents: &Intents) -> (Pair, Gate) {
    let gate = Gate::default();
    (
        Pair::with(intents, Faults::none(), 0, |methods| {
            register(methods, &gate)
        }),
        gate,
    )
}

/// Polls a future once, like an executor that is inside a turn.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures
        .into_iter()
        .map(|future| (Box::pin(future), None))
        .collect();
    std::future::poll_fn(|cx| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(cx)
            {
                *output = Some(ready);
            }
        }
        if futures.iter().all(|(_, output)| output.is_some()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    futures
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}

#[test]
fn a_call_is_answered() {
    let (pair, _) = pair();
    let channel = pair.connect();
    assert_eq!(
        pair.run(call(&channel, &ECHO, *b"hello")).unwrap(),
        b"hello"
    );
    assert_eq!(pair.run(call(&channel, &ECHO, [])).unwrap(), b"");
    pair.assert_nothing_left();
}

#[test]
fn many_calls_at_once_find_their_own_answers_whatever_the_window() {
    for max_in_flight in [1, 2, 7, 128] {
        let (pair, _) = pair_with(&Intents {
            max_in_flight,
            ..Intents::default()
        });
        let channel = pair.connect();
        let calls = (0u32..300).map(|n| call(&channel, &ECHO, n.to_le_bytes()));
        for (n, answer) in (0u32..).zip(pair.run(all(calls))) {
            assert_eq!(answer.unwrap(), n.to_le_bytes());
        }
        pair.assert_nothing_left();
    }
}

#[test]
fn metadata_and_every_part_of_a_status_travel() {
    let (pair, _) = pair();
    let channel = pair.connect();
    let mut request = Request::new(b"the details".to_vec());
    request.metadata_mut().insert("trace-id", "77").unwrap();
    let error = pair.run(send(&channel, &FAIL, request)).unwrap_err();
    let status = error.status().expect("the server's own status");
    assert_eq!(error.execution(), Execution::Answered);
    assert_eq!(
        (status.code(), status.message()),
        (Code::Aborted, "as asked")
    );
    assert_eq!(status.details(), b"the details");
    assert_eq!(status.metadata().get("trace-id"), Some("77"));
    assert_eq!(status.metadata().get_bin("seen-bin"), Some(&[0, 1][..]));
    pair.assert_nothing_left();
}

#[test]
fn a_method_that_the_server_lacks_fails_its_own_call_and_is_not_sent() {
    let (pair, _) = pair();
    let channel = pair.connect();
    let sent = pair.client().poller().stats().total().transport.sends;
    let error = pair.run(call(&channel, &ABSENT, *b"x")).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unimplemented, Execution::NeverSent)
    );
    assert!(
        matches!(error.cause(), Cause::Unimplemented { path } if *path == ABSENT.path),
        "{error}"
    );
    assert_eq!(pair.client().poller().stats().total().transport.sends, sent);
    assert!(pair.run(call(&channel, &ECHO, *b"y")).is_ok());
    pair.assert_nothing_left();
}

/// Refused on the way of short messages, and on that of messages which do not fit an inline frame.
#[test]
fn a_message_longer_than_the_limit_is_refused_with_the_limit_and_the_settings_name() {
    // The prefix of a field has 2 bytes, or 3 from 128 bytes on.
    for (max_message_len, longer, prefix_len) in [(20, 30, 2), (1000, 2000, 3)] {
        let (pair, _) = pair_with(&Intents {
            max_message_len,
            ..Intents::default()
        });
        let channel = pair.connect();
        let request = vec![1; longer];
        let error = pair.run(call(&channel, &ECHO, request)).unwrap_err();
        assert_eq!(
            (error.code(), error.execution()),
            (Code::ResourceExhausted, Execution::NeverSent)
        );
        assert!(
            matches!(
                error.cause(),
                Cause::RequestTooLong { message_len, .. } if *message_len == longer + prefix_len
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains("max_message_len"), "{error}");

        let request = Request::new(longer as u64);
        let grown = pair.run(channel.unary::<u64, Vec<u8>>(&GROW, request));
        let error = grown.unwrap_err();
        assert_eq!(
            (error.code(), error.execution()),
            (Code::ResourceExhausted, Execution::Answered)
        );
        let response_len = (longer + prefix_len).to_string();
        assert!(error.to_string().contains(&response_len), "{error}");
        assert!(error.to_string().contains("max_message_len"), "{error}");

        let fits = max_message_len - prefix_len;
        let request = Request::new(fits as u64);
        let grown = pair.run(channel.unary::<u64, Vec<u8>>(&GROW, request));
        assert_eq!(grown.unwrap().into_inner().len(), fits);
        pair.assert_nothing_left();
    }
}

#[test]
fn an_error_with_the_code_ok_is_an_error_all_the_same() {
    let pair = Pair::new(|methods| {
        methods.unary(&ECHO, |_: Request<Vec<u8>>| async {
            Err::<Response<Vec<u8>>, _>(Status::new(Code::Ok, "all is well"))
        });
    });
    let channel = pair.connect();
    let error = pair.run(call(&channel, &ECHO, *b"x")).unwrap_err();
    assert_eq!(error.code(), Code::Unknown);
    assert_eq!(error.status().unwrap().message(), "all is well");
    pair.assert_nothing_left();
}

/// A value that panics when dropped.
struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("went off");
    }
}

#[test]
fn a_handler_may_panic_with_what_panics_again() {
    let pair = Pair::new(|methods| {
        methods.unary(&ECHO, |_: Request<Vec<u8>>| async {
            std::panic::panic_any(PanicOnDrop);
            #[allow(unreachable_code)]
            Ok(Response::new(Vec::<u8>::new()))
        });
        methods.unary(&HELD, |_: Request<Vec<u8>>| async {
            let _dropped_with_its_future = PanicOnDrop;
            std::future::pending::<Result<Response<Vec<u8>>, _>>().await
        });
        methods.unary(&FAIL, |request: Request<Vec<u8>>| async {
            Ok(Response::new(request.into_inner()))
        });
    });
    let channel = pair.connect();
    let error = pair.run(call(&channel, &ECHO, *b"x")).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(5));
    let mut held = pin!(send(&channel, &HELD, request));
    assert!(poll_once(held.as_mut()).is_pending());
    pair.network().settle();
    pair.network().advance(Duration::from_millis(6));
    assert_eq!(pair.run(held).unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(pair.run(call(&channel, &FAIL, *b"x")).unwrap(), b"x");
    pair.assert_nothing_left();
}

#[test]
fn a_status_too_long_for_a_slot_keeps_its_code() {
    let (pair, _) = pair_with(&Intents {
        max_message_len: 100,
        ..Intents::default()
    });
    let mut network = Network::new(Faults::none(), 0);
    let long = crate::support::method("test.Test/Long");
    let long: &'static _ = Box::leak(Box::new(long));
    network.add(
        "server",
        &Intents {
            max_message_len: 100,
            ..Intents::default()
        },
        |methods| {
            methods.unary(long, |_: Request<Vec<u8>>| async {
                Err::<Response<Vec<u8>>, _>(Status::data_loss("ü".repeat(1000)))
            });
        },
    );
    let client = network.add("client", &Intents::default(), |_| ());
    let channel = client.poller().connect("server").unwrap();
    let error = network
        .try_run(call(&channel, long, *b"x"))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code(), Code::DataLoss);
    assert!(error.status().unwrap().message().starts_with("üü"));
    network.assert_nothing_left();
    pair.assert_nothing_left();
}

#[test]
fn a_request_or_an_answer_that_does_not_decode_fails_that_call() {
    let (pair, _) = pair();
    let channel = pair.connect();
    // A length-delimited field where the server expects a varint.
    let error = pair
        .run(channel.unary::<Vec<u8>, Vec<u8>>(&GROW, Request::new(vec![1, 2])))
        .unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Internal, Execution::NotStarted)
    );
    let error = pair
        .run(channel.unary::<Vec<u8>, u64>(&ECHO, Request::new(vec![1, 2])))
        .unwrap_err();
    assert!(matches!(error.cause(), Cause::Undecodable(_)), "{error:?}");
    assert_eq!(error.execution(), Execution::Answered);
    assert!(pair.run(call(&channel, &ECHO, *b"y")).is_ok());
    pair.assert_nothing_left();
}

#[test]
fn a_handler_that_panics_answers_internal_and_harms_nobody_else() {
    let (pair, gate) = pair();
    let channel = pair.connect();
    let mut held = pin!(call(&channel, &HELD, *b"held"));
    assert!(poll_once(held.as_mut()).is_pending());
    for _ in 0..3 {
        let error = pair.run(call(&channel, &PANIC, *b"1234")).unwrap_err();
        assert_eq!(
            (error.code(), error.execution()),
            (Code::Internal, Execution::Answered)
        );
        // The panic's message stays at the server.
        assert_eq!(
            error.message(),
            "the handler panicked; the server's log has the reason"
        );
    }
    gate.open();
    assert_eq!(pair.run(held).unwrap(), b"held");
    pair.assert_nothing_left();
}

#[test]
fn a_deadline_that_has_passed_before_the_call_sends_nothing() {
    let (pair, _) = pair();
    let channel = pair.connect();
    let request = Request::new(vec![1]).with_timeout(Duration::ZERO);
    let error = pair.run(send(&channel, &ECHO, request)).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::DeadlineExceeded, Execution::NeverSent)
    );
    pair.assert_nothing_left();
}

#[test]
fn a_deadline_that_passes_during_the_call_ends_it_on_both_sides() {
    let (pair, gate) = pair();
    let channel = pair.connect();
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(5));
    let mut late = pin!(send(&channel, &HELD, request));
    assert!(poll_once(late.as_mut()).is_pending());
    pair.network().settle();
    assert_eq!(gate.entered(), 1);
    pair.network().advance(Duration::from_millis(6));
    let error = pair.run(late).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(error.execution(), Execution::MayHaveRun);
    // The handler was dropped. Its response arrived at the abandoned call and was discarded.
    assert_eq!(gate.dropped(), 1);
    pair.assert_nothing_left();
}

#[test]
fn a_deadline_that_does_not_pass_leaves_no_timer() {
    let (pair, gate) = pair();
    let channel = pair.connect();
    let request = Request::new(vec![1]).with_timeout(Duration::from_secs(5));
    let mut held = pin!(send(&channel, &HELD, request));
    assert!(poll_once(held.as_mut()).is_pending());
    pair.network().settle();
    gate.open();
    assert_eq!(pair.run(held).unwrap(), [1]);
    pair.assert_nothing_left();
}

#[test]
fn a_deadline_that_passes_after_the_answer_has_come_does_not_matter() {
    let (pair, _) = pair();
    let channel = pair.connect();
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(5));
    let mut answered = pin!(send(&channel, &ECHO, request));
    assert!(poll_once(answered.as_mut()).is_pending());
    pair.network().settle();
    pair.network().advance(Duration::from_secs(1));
    assert_eq!(pair.run(answered).unwrap(), [1]);
    pair.assert_nothing_left();
}

#[test]
fn a_deadline_that_passes_while_the_call_waits_for_a_credit_sends_nothing() {
    let (pair, gate) = pair_with(&Intents {
        max_in_flight: 1,
        ..Intents::default()
    });
    let channel = pair.connect();
    let mut first = pin!(call(&channel, &HELD, *b"first"));
    assert!(poll_once(first.as_mut()).is_pending());
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(5));
    let mut second = pin!(send(&channel, &ECHO, request));
    assert!(poll_once(second.as_mut()).is_pending());
    pair.network().advance(Duration::from_millis(6));
    let error = pair.run(second).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::DeadlineExceeded, Execution::NeverSent)
    );
    gate.open();
    assert!(pair.run(first).is_ok());
    pair.assert_nothing_left();
}

#[test]
fn the_server_sees_the_deadline_and_answers_expired_calls_before_it_decodes_them() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    let pair = Pair::new(|methods| {
        methods.unary(&ECHO, move |request: Request<Vec<u8>>| {
            log.borrow_mut().push(request.deadline());
            async { Ok(Response::new(request.into_inner())) }
        });
    });
    let channel = pair.connect();
    let now = pair.network().clock().now();
    let request = Request::new(vec![1]).with_timeout(Duration::from_millis(5));
    pair.run(send(&channel, &ECHO, request)).unwrap();
    assert_eq!(*seen.borrow(), [Some(now + Duration::from_millis(5))]);
    assert!(pair.run(call(&channel, &ECHO, *b"x")).is_ok());
    assert_eq!(seen.borrow()[1], None);
    pair.assert_nothing_left();
}

/// Calls dropped or leaked when new, waiting, in flight or answered lose nothing, except that a
/// leaked call keeps its entry in the call table. Even that entry holds no slot when slots are
/// needed.
#[test]
fn a_calls_future_may_be_dropped_in_every_state() {
    let (pair, gate) = pair_with(&Intents {
        max_in_flight: 2,
        ..Intents::default()
    });
    let channel = pair.connect();
    drop(call(&channel, &ECHO, *b"new"));
    {
        let mut answered = pin!(call(&channel, &ECHO, *b"answered"));
        assert!(poll_once(answered.as_mut()).is_pending());
        pair.network().settle();
    }
    {
        let mut in_flight = [(); 2].map(|()| Box::pin(call(&channel, &HELD, *b"in flight")));
        let mut waiting = pin!(call(&channel, &ECHO, *b"waiting"));
        for call in &mut in_flight {
            assert!(poll_once(call.as_mut()).is_pending());
        }
        assert!(poll_once(waiting.as_mut()).is_pending());
        pair.network().settle();
    }
    gate.open();
    pair.assert_nothing_left();
    assert_eq!(
        pair.run(call(&channel, &ECHO, *b"after")).unwrap(),
        b"after"
    );
}

#[test]
fn forgotten_futures_do_not_keep_slots_when_others_need_them() {
    let (pair, _) = pair();
    let receives = pair.client().limits().promisable_receives();
    let channel = pair.connect();
    // Far more calls than there are receives for their responses.
    for n in 0..receives * 3 {
        let mut forgotten = Box::pin(call(&channel, &ECHO, n.to_le_bytes()));
        assert!(poll_once(forgotten.as_mut()).is_pending());
        pair.network().settle();
        std::mem::forget(forgotten);
    }
    assert_eq!(
        pair.run(call(&channel, &ECHO, *b"after")).unwrap(),
        b"after"
    );
    assert!(pair.client().slot_counts().held <= receives);
    assert_eq!(
        pair.client().slot_counts().rnr + pair.server().slot_counts().rnr,
        0
    );
}

#[test]
fn a_handler_may_call_its_own_server() {
    for max_in_flight in [1, 8] {
        let intents = Intents {
            max_in_flight,
            ..Intents::default()
        };
        let mut network = Network::new(Faults::none(), 0);
        network.add("server", &intents, |methods| {
            register(methods, &Gate::default());
            methods.unary(&ABSENT, |request: Request<Vec<u8>>| async move {
                let own = LocalPoller::current().expect("handlers run on a poller");
                let channel = own
                    .connect("server")
                    .map_err(|error| Status::internal(error.to_string()))?;
                let mut answer = call(&channel, &ECHO, request.into_inner()).await?;
                answer.push(b'!');
                Ok(Response::new(answer))
            });
        });
        let client = network.add("client", &intents, |_| ());
        let channel = client.poller().connect("server").unwrap();
        for _ in 0..5 {
            assert_eq!(
                network
                    .try_run(call(&channel, &ABSENT, *b"hi"))
                    .unwrap()
                    .unwrap(),
                b"hi!"
            );
        }
        network.assert_nothing_left();
    }
}

/// A calls B, whose handler calls A, whose handler calls B again. There is one connection in each
/// direction, with a window of one. A waiting handler holds no receive, so no call waits forever.
#[test]
fn calls_that_call_back_do_not_deadlock_with_a_window_of_one() {
    const HOP: rpc_core::MethodSpec = crate::support::method("test.Test/Hop");
    let mut network = Network::new(Faults::none(), 0);
    let channels: Rc<RefCell<HashMap<&str, LocalChannel>>> = Rc::default();
    let mut nodes = Vec::new();
    // Twelve receives for four connections: three each, two of them for frames without a credit. The
    // remainder is too small for any window to grow.
    let limits = |node: &Node| Limits {
        receives_posted: 12,
        receives_reserved: 0,
        max_connections: 4,
        ..node.limits()
    };
    let model = network.add("model", &Intents::default(), |_| ());
    for (name, other) in [("a", "b"), ("b", "a")] {
        let channels = Rc::clone(&channels);
        nodes.push(network.add_sized(name, limits(&model), |methods| {
            methods.unary(&HOP, move |request: Request<u64>| {
                let channel = channels.borrow()[other].clone();
                async move {
                    let hops = request.into_inner();
                    if hops == 0 {
                        return Ok(Response::new(0u64));
                    }
                    let deeper = channel
                        .unary::<u64, u64>(&HOP, Request::new(hops - 1))
                        .await?;
                    Ok(Response::new(deeper.into_inner() + 1))
                }
            });
        }));
    }
    channels
        .borrow_mut()
        .insert("b", nodes[0].poller().connect("b").unwrap());
    channels
        .borrow_mut()
        .insert("a", nodes[1].poller().connect("a").unwrap());
    let client = network.add("client", &Intents::default(), |_| ());
    let channel = client.poller().connect("a").unwrap();
    for _ in 0..3 {
        let answer = network
            .try_run(channel.unary::<u64, u64>(&HOP, Request::new(3)))
            .expect("no deadlock");
        assert_eq!(answer.unwrap().into_inner(), 3);
    }
    network.assert_nothing_left();
    channels.borrow_mut().clear();
}

#[test]
fn block_on_inside_a_turn_is_an_error_and_not_a_hang() {
    let mut network = Network::new(Faults::none(), 0);
    let outcome = Rc::new(RefCell::new(None));
    let log = Rc::clone(&outcome);
    network.add("server", &Intents::default(), |methods| {
        methods.unary(&ECHO, move |request: Request<Vec<u8>>| {
            let own = LocalPoller::current().expect("handlers run on a poller");
            let log = Rc::clone(&log);
            async move {
                *log.borrow_mut() = Some(own.try_block_on(async { 7 }));
                // `block_on` panics, which fails only this call.
                let panic = catch_unwind(AssertUnwindSafe(|| own.block_on(async {})));
                let Err(payload) = panic else {
                    return Ok(Response::new(request.into_inner()));
                };
                let message = payload.downcast_ref::<String>();
                assert_eq!(message, Some(&BlockOnInTurn.to_string()));
                resume_unwind(payload)
            }
        });
    });
    let client = network.add("client", &Intents::default(), |_| ());
    let channel = client.poller().connect("server").unwrap();
    let error = network
        .try_run(call(&channel, &ECHO, *b"x"))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert_eq!(*outcome.borrow(), Some(Err(BlockOnInTurn)));
    network.assert_nothing_left();
}

#[test]
fn old_and_new_sides_live_together() {
    // The server has one method that the client does not know, and lacks one that the client knows.
    const ADDED: rpc_core::MethodSpec = crate::support::method("test.Test/Added");
    let pair = Pair::new(|methods| {
        methods.unary(&ADDED, |_: Request<Vec<u8>>| async {
            Ok(Response::new(b"added".to_vec()))
        });
        methods.unary(&ECHO, |request: Request<Vec<u8>>| async {
            Ok(Response::new(request.into_inner()))
        });
    });
    let channel = pair.connect();
    assert_eq!(
        pair.run(call(&channel, &ECHO, *b"both know it")).unwrap(),
        b"both know it"
    );
    assert_eq!(
        pair.run(call(&channel, &HELD, *b"x")).unwrap_err().code(),
        Code::Unimplemented
    );
    pair.assert_nothing_left();
}

#[test]
fn a_server_that_is_not_there_is_a_clear_error() {
    let (pair, _) = pair();
    let error = pair.client().poller().connect("nowhere").unwrap_err();
    assert!(
        matches!(&error, ConnectError::Unreachable { address, .. } if address == "nowhere"),
        "{error}"
    );
    pair.assert_nothing_left();
}

#[test]
fn connections_beyond_the_limit_are_refused_with_the_settings_name() {
    let (pair, _) = pair_with(&Intents {
        connections: 2,
        ..Intents::default()
    });
    let (a, b) = (pair.connect(), pair.connect());
    let error = pair.client().poller().connect("server").unwrap_err();
    assert!(
        matches!(&error, ConnectError::Refused { reason, .. } if reason.contains("`connections`")),
        "{error}"
    );
    drop(a);
    pair.network().settle();
    let c = pair.connect();
    assert!(pair.run(call(&b, &ECHO, *b"b")).is_ok());
    assert!(pair.run(call(&c, &ECHO, *b"c")).is_ok());
    pair.assert_nothing_left();
}

#[test]
fn when_the_client_closes_its_handlers_at_work_are_dropped() {
    let (pair, gate) = pair();
    let channel = pair.connect();
    {
        let mut held = pin!(call(&channel, &HELD, *b"x"));
        assert!(poll_once(held.as_mut()).is_pending());
        pair.network().settle();
    }
    drop(channel);
    pair.network().settle();
    assert_eq!((gate.entered(), gate.dropped()), (1, 1));
    pair.assert_nothing_left();
}

#[test]
fn with_a_window_of_one_a_call_takes_one_frame_in_each_direction() {
    let gate = Gate::default();
    let intents = Intents {
        max_in_flight: 1,
        ..Intents::default()
    };
    let pair = Pair::with(&intents, Faults::none(), 0, |methods| {
        register(methods, &gate)
    });
    let channel = pair.connect();
    // A short response and one that needs a slot: either carries the credit of its request.
    for len in [1, 300] {
        for _ in 0..50 {
            assert!(pair.run(call(&channel, &ECHO, vec![1; len])).is_ok());
        }
    }
    for node in [pair.client(), pair.server()] {
        assert_eq!(node.poller().stats().total().transport.sends, 100);
    }
}
