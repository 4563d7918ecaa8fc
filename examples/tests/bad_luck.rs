//! Production failures of a server and its clients in separate processes: kill -9, SIGSTOP, garbage
//! on the handshake port, a blocked poller.

mod echo_process;

use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use echo_process::{
    BLOCK, COUNTERS, CommandEcho, NEVER, Process, all, call, connect, device, server,
};
use proto::echo::{EchoClient, EchoServer};
use rpc_core::transport::ConnectError;
use rpc_core::{Cause, Code, Execution, Intents, Keepalive, LocalPoller, Server};

#[test]
#[ignore = "the other tests run it, as the server's process"]
fn server_process() {
    echo_process::serve();
}

#[test]
#[ignore = "the other tests run it, as a client's process"]
#[allow(clippy::print_stdout, reason = "its parent waits for the line")]
fn client_process() {
    let (poller, echo) = connect(&std::env::var("VERBLINE_TEST_SERVER").unwrap());
    // Calls that are never answered, and responses that the client never fetches.
    let mut calls: Vec<_> = (0..64)
        .map(|n| Box::pin(call(&echo, if n % 2 == 0 { NEVER } else { b"x" })))
        .collect();
    poller.block_on(poll_fn(|cx| {
        for call in &mut calls {
            let _ = call.as_mut().poll(cx);
        }
        Poll::Ready(())
    }));
    for _ in 0..10_000 {
        poller.turn();
    }
    println!("\nin the middle of {} calls", calls.len());
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn calls_between_two_processes_of_every_length() {
    let (_server, address) = Process::server();
    let (poller, echo) = connect(&address);
    for len in [0, 1, 63, 64, 200, 220, 240, 241, 1000, 4000] {
        let payload: Vec<u8> = (0..len).map(|n: u32| n as u8).collect();
        assert_eq!(
            poller.block_on(call(&echo, &payload)).unwrap(),
            payload,
            "{len} bytes"
        );
    }
    let payloads: Vec<Vec<u8>> = (0..2000u32)
        .map(|n| vec![n as u8; (n as usize * 7) % 4000])
        .collect();
    let answers = poller.block_on(all(payloads.iter().map(|payload| call(&echo, payload))));
    for (answer, payload) in answers.into_iter().zip(&payloads) {
        assert_eq!(&answer.unwrap(), payload);
    }
}

#[test]
fn clients_killed_in_the_middle_of_calls_leave_nothing_behind_in_the_server() {
    let (_server, address) = Process::server();
    let (poller, echo) = connect(&address);
    // Together they have more calls in flight, and more connections, than the server has room for.
    // With a kernel software device in an emulated guest, a client takes seconds to get this far.
    let rounds = if device().name() == "soft" { 8 } else { 2 };
    for round in 0..rounds {
        let clients: Vec<_> = (0..10)
            .map(|_| Process::start("client_process", &address, "in the middle").0)
            .collect();
        for client in clients {
            client.kill();
        }
        assert_eq!(
            poller.block_on(call(&echo, b"on")).unwrap(),
            b"on",
            "round {round}"
        );
    }
    let counters = String::from_utf8(poller.block_on(call(&echo, COUNTERS)).unwrap()).unwrap();
    assert!(
        counters.ends_with(" 0"),
        "frames found no receive: {counters}"
    );
}

#[test]
fn when_the_server_is_killed_every_call_in_flight_ends_and_says_that_it_may_have_run() {
    let (server, address) = Process::server();
    let (poller, echo) = connect(&address);
    assert_eq!(poller.block_on(call(&echo, b"first")).unwrap(), b"first");
    let mut calls: Vec<_> = (0..32).map(|_| Box::pin(call(&echo, NEVER))).collect();
    poller.block_on(poll_fn(|cx| {
        for call in &mut calls {
            assert!(call.as_mut().poll(cx).is_pending());
        }
        Poll::Ready(())
    }));
    for _ in 0..1000 {
        poller.turn();
    }
    server.kill();
    let killed = Instant::now();
    let mut sent = 0;
    for outcome in poller.block_on(all(calls)) {
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(matches!(error.cause(), Cause::Disconnected(_)), "{error:?}");
        sent += u32::from(error.execution() == Execution::MayHaveRun);
    }
    // One window of calls had been sent before; the others still waited for a credit.
    assert!((1..=32).contains(&sent), "{sent} calls may have run");
    // Well above the promised second, because the machine may be busy with other work.
    assert!(
        killed.elapsed() < Duration::from_secs(5),
        "it took {:?}",
        killed.elapsed()
    );
    let error = poller.block_on(call(&echo, b"late")).unwrap_err();
    assert_eq!(
        (error.code(), error.execution()),
        (Code::Unavailable, Execution::NeverSent)
    );
}

/// The server is stopped, not dead. Without the keepalive, calls would wait for it forever.
#[test]
fn calls_in_flight_to_a_stopped_server_end_when_the_keepalive_is_set() {
    let (server, address) = Process::server();
    let intents = Intents {
        keepalive: Some(Keepalive {
            every: Duration::from_millis(50),
            gone_after: Duration::from_millis(300),
        }),
        ..Intents::default()
    };
    let poller = LocalPoller::builder(&device())
        .intents(intents.clone())
        .build()
        .unwrap();
    assert!(poller.limits().to_string().contains("keepalive"));
    let echo = EchoClient::new(poller.connect(&address).unwrap());
    assert!(poller.block_on(call(&echo, b"warm")).is_ok());
    // The poller is busy for longer than the keepalive timeout, but alive.
    assert!(poller.block_on(call(&echo, BLOCK)).is_ok());
    server.stop();
    for outcome in poller.block_on(all((0..200).map(|_| call(&echo, NEVER)))) {
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.to_string().contains("has been silent"), "{error}");
    }
}

#[test]
fn nothing_is_lost_when_the_server_is_stopped_for_two_seconds() {
    let (server, address) = Process::server();
    let (poller, echo) = connect(&address);
    assert!(poller.block_on(call(&echo, b"warm")).is_ok());
    server.stop();
    let mut calls = pin!(all((0..200u32).map(|n| {
        let echo = &echo;
        async move { call(echo, &n.to_le_bytes()).await }
    })));
    let stopped = Instant::now();
    let mut cx = Context::from_waker(Waker::noop());
    while stopped.elapsed() < Duration::from_secs(2) {
        assert!(
            calls.as_mut().poll(&mut cx).is_pending(),
            "a stopped server answers nothing"
        );
    }
    server.signal(rustix::process::Signal::CONT);
    for (n, answer) in (0..200u32).zip(poller.block_on(calls)) {
        assert_eq!(answer.unwrap(), n.to_le_bytes());
    }
}

#[test]
fn no_server_no_protocol_and_no_address_are_each_said_clearly() {
    let poller = LocalPoller::new(&device()).unwrap();
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let error = poller.connect(&free).unwrap_err();
    assert!(
        matches!(&error, ConnectError::Unreachable { address, .. } if *address == free),
        "{error}"
    );
    let error = poller.connect("not an address").unwrap_err();
    assert!(
        matches!(&error, ConnectError::Address { address, .. } if address == "not an address"),
        "{error}"
    );

    let web = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.read(&mut [0; 64]);
    });
    let error = poller.connect(&address).unwrap_err();
    assert!(
        matches!(&error, ConnectError::NotVerbline { address: of, .. } if *of == address),
        "{error}"
    );
    answering.join().unwrap();

    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let impatient = LocalPoller::builder(&device())
        .connect_timeout(Duration::from_millis(200))
        .build()
        .unwrap();
    let error = impatient.connect(&address).unwrap_err();
    assert!(
        matches!(&error, ConnectError::TimedOut { timeout, .. } if timeout.as_millis() == 200),
        "{error}"
    );
}

#[test]
fn garbage_silence_and_half_closed_sockets_at_the_handshakes_port_harm_nobody() {
    let (_server, address) = Process::server();
    let (poller, echo) = connect(&address);
    let mut sockets = Vec::new();
    for n in 0..30 {
        let mut socket = TcpStream::connect(&address).unwrap();
        match n % 3 {
            0 => {
                let _ = socket.write_all(&[n; 500]);
            }
            1 => socket.shutdown(Shutdown::Write).unwrap(),
            _ => {}
        }
        sockets.push(socket);
        assert_eq!(poller.block_on(call(&echo, &[n])).unwrap(), [n]);
    }
    let (other_poller, other) = connect(&address);
    assert_eq!(other_poller.block_on(call(&other, b"new")).unwrap(), b"new");
}

#[test]
fn while_a_poller_is_blocked_the_reserve_is_posted_and_nobody_finds_no_receive() {
    // Few connections with many calls each: together they hold credits for nearly all receives.
    let server = Server::builder(&device())
        .add_service(EchoServer::per_poller(|| CommandEcho))
        .connections(10)
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    let clients: Vec<_> = (0..10).map(|_| connect(&address)).collect();
    let count = |payload: Vec<u8>| -> Vec<u64> {
        String::from_utf8(payload)
            .unwrap()
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect()
    };
    let (poller, echo) = &clients[0];
    // Windows grow with use. Let all clients use theirs, then spend the credits while the poller is
    // blocked.
    for round in 0..4 {
        for (poller, echo) in &clients {
            let answers = poller.block_on(all((0..128u32).map(|_| call(echo, b"grow"))));
            assert!(
                answers.into_iter().all(|answer| answer.is_ok()),
                "round {round}"
            );
        }
    }
    let before = count(poller.block_on(call(echo, COUNTERS)).unwrap());
    let mut blocked = pin!(call(echo, BLOCK));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(blocked.as_mut().poll(&mut cx).is_pending());
    let mut spent: Vec<_> = clients
        .iter()
        .map(|(_, echo)| {
            Box::pin(all(
                (0..128u32).map(move |n| async move { call(echo, &n.to_le_bytes()).await })
            ))
        })
        .collect();
    let mut done: Vec<_> = spent.iter().map(|_| None).collect();
    // Each client starts all of its calls and then takes one turn, so all credits are spent at
    // once.
    for ((poller, _), spend) in clients.iter().zip(&mut spent) {
        poller.block_on(poll_fn(|cx| {
            assert!(
                spend.as_mut().poll(cx).is_pending(),
                "the poller is blocked"
            );
            Poll::Ready(())
        }));
        poller.turn();
    }
    while done.iter().any(Option::is_none) {
        for (spend, done) in spent
            .iter_mut()
            .zip(&mut done)
            .filter(|(_, done)| done.is_none())
        {
            if let Poll::Ready(answers) = spend.as_mut().poll(&mut cx) {
                *done = Some(answers);
            }
        }
    }
    for answers in done.into_iter().flatten() {
        for (n, answer) in (0u32..).zip(answers) {
            assert_eq!(answer.unwrap(), n.to_le_bytes());
        }
    }
    assert_eq!(poller.block_on(blocked).unwrap(), BLOCK);
    let after = count(poller.block_on(call(echo, COUNTERS)).unwrap());
    assert!(after[0] > before[0], "no limit event: {before:?} {after:?}");
    assert!(
        after[1] > before[1],
        "no reserve was posted: {before:?} {after:?}"
    );
    assert_eq!(after[2], 0, "frames found no receive");
    server.shutdown().unwrap();
}

#[test]
fn a_server_that_is_shut_down_lets_its_address_go_and_its_clients_know() {
    let server = server().spawn();
    let address = server.local_addr().to_string();
    let (poller, echo) = connect(&address);
    assert!(poller.block_on(call(&echo, b"x")).is_ok());
    server.shutdown().unwrap();
    assert_eq!(
        poller.block_on(call(&echo, b"x")).unwrap_err().code(),
        Code::Unavailable
    );
    assert!(poller.connect(&address).is_err());
}

#[test]
fn several_pollers_share_the_connections() {
    let server = Server::builder(&device())
        .add_service(EchoServer::per_poller(|| CommandEcho))
        .pollers(2)
        .cores([])
        .bind("127.0.0.1:0")
        .unwrap()
        .spawn();
    let address = server.local_addr().to_string();
    let clients: Vec<_> = (0..6).map(|_| connect(&address)).collect();
    for (n, (poller, echo)) in (0u8..).zip(&clients) {
        assert_eq!(poller.block_on(call(echo, &[n])).unwrap(), [n]);
    }
    server.shutdown().unwrap();
}
