//! A poller sleeps on all its lanes at once.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rpc_core::transport::Transport;
use verbline_verbs::QpNum;

use super::transport_harness::{PATIENCE, Side, step_until};
use super::{ROCE, SOFT, Server, kind_of, side_with};
use crate::transport::notices::Notice;

/// Arms and polls until no earlier event is left that would end a wait.
fn make_ready_to_sleep(side: &mut Side) {
    let nap = Duration::from_millis(20);
    loop {
        side.transport.arm();
        if side.turn() == 0 {
            let start = Instant::now();
            side.transport.wait(Some(nap));
            if start.elapsed() >= nap {
                break;
            }
        }
    }
    side.transport.arm();
    assert_eq!(side.turn(), 0);
}

/// Waits for a wakeup. Only a lost wakeup makes the wait reach the time limit.
fn wait(side: &mut Side, what: &str) {
    let start = Instant::now();
    side.transport.wait(Some(PATIENCE));
    assert!(start.elapsed() < PATIENCE, "asleep for ever: {what}");
}

#[test]
fn a_sleeper_is_woken_by_whichever_of_its_devices_has_something() {
    let mut server = Server::with(&[ROCE, SOFT]);
    let mut clients = [ROCE, SOFT].map(|kind| {
        let mut client = side_with(&[kind]);
        let (at_client, at_server) = server.accept(&mut client);
        assert_eq!(kind_of(&mut server.side, at_server), kind);
        (client, at_client, at_server)
    });
    for round in 0..10 {
        let (client, at_client, at_server) = &mut clients[round % 2];
        make_ready_to_sleep(&mut server.side);
        client.send(*at_client, b"wake up").unwrap();
        client.transport.flush();
        wait(&mut server.side, "a frame");
        step_until(&mut [&mut server.side], "the frame", |sides| {
            !sides[0].received.is_empty()
        });
        assert_eq!(server.side.received.pop().unwrap().0, *at_server);
    }
}

#[test]
fn a_notice_wakes_a_sleeper_whenever_it_comes() {
    let mut side = side_with(&[ROCE, SOFT]);
    let notice_senders: Vec<_> = side
        .transport
        .lanes()
        .map(|it| it.notice_sender.clone())
        .collect();
    make_ready_to_sleep(&mut side);
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..1000 {
                barrier.wait();
                for _ in 0..round * 7919 % 3000 {
                    std::hint::spin_loop();
                }
                // A notice for a queue pair that does not exist: it is received and ignored.
                let notice = Notice::LastReceiveTaken(QpNum(1));
                notice_senders[round % 2].send(notice).unwrap();
            }
        });
        for round in 0..1000 {
            barrier.wait();
            for _ in 0..round * 104_729 % 3000 {
                std::hint::spin_loop();
            }
            side.transport.arm();
            assert_eq!(side.turn(), 0);
            wait(&mut side, "a notice");
        }
    });
}
