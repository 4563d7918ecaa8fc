//! Long messages between processes, while memory is short, and when a peer is killed, is stopped, or
//! gives up in the middle: each call ends in a clear status, and all memory is back afterwards.

mod blob_process;
mod echo_process;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use blob_process::{Client, DROP, KEEP, KEEP_DIGEST, KIB, MIB, PARTS, PATIENCE, Settings, is_free};
use echo_process::{Process, all};
use rpc_core::{CallError, Cause, Code, Execution};
use rustix::process::Signal;

/// Bytes of a message that takes so many turns that it can be met in the middle.
const LONG: usize = 8 * MIB;

/// What a client process does with a message of [`LONG`] bytes.
const PUT: &str = "put";
const GET: &str = "get";

#[test]
#[ignore = "the other tests run it, as the server's process"]
fn server_process() {
    blob_process::serve();
}

/// Stops itself in the middle of a call of `VERBLINE_TEST_CALL`. When it is continued, it ends the
/// call, and the server keeps a message of it.
#[test]
#[ignore = "the other tests run it, as a client's process"]
#[allow(clippy::print_stdout, reason = "its parent waits for the line")]
fn client_process() {
    let client = Client::connect(&std::env::var("VERBLINE_TEST_SERVER").unwrap());
    let call = begin(&client, std::env::var("VERBLINE_TEST_CALL").unwrap() == PUT);
    println!("\nin the middle");
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, Signal::STOP).unwrap();
    client.poller.block_on(call).unwrap();
    client.poller.block_on(client.put(KEEP, MIB)).unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

/// Starts a client's process, and returns once it has stopped.
fn stopped_client(address: &str, call: &str) -> Process {
    let environment = [
        ("VERBLINE_TEST_SERVER", address),
        ("VERBLINE_TEST_CALL", call),
    ];
    let (process, _) = Process::start_with("client_process", &environment, "in the middle");
    process.stop();
    process
}

type Call<'a> = Pin<Box<dyn Future<Output = Result<(), CallError>> + 'a>>;

/// Makes a call until some of its message has been sent or has arrived, but not all.
fn begin(client: &Client, is_put: bool) -> Call<'_> {
    let mut call: Call<'_> = match is_put {
        true => Box::pin(client.put(DROP, LONG)),
        false => Box::pin(client.get(LONG)),
    };
    let mut cx = Context::from_waker(Waker::noop());
    let before = client.stats();
    client.turn_until("the message begins", || {
        assert!(call.as_mut().poll(&mut cx).is_pending(), "it has ended");
        let now = client.stats();
        match is_put {
            true => now.transfers.bytes_sent > before.transfers.bytes_sent,
            false => now.transfers.bytes_received > before.transfers.bytes_received,
        }
    });
    call
}

/// Checks that a call does not end for some time, in which its poller takes turns.
fn assert_waits(client: &Client, call: &mut Call<'_>, time: Duration) {
    let start = Instant::now();
    let mut cx = Context::from_waker(Waker::noop());
    while start.elapsed() < time {
        assert!(call.as_mut().poll(&mut cx).is_pending(), "it has ended");
        client.poller.turn();
    }
}

const A_WHILE: Duration = Duration::from_millis(300);

#[test]
fn when_the_server_is_killed_in_the_middle_the_call_ends_and_all_memory_is_back() {
    for is_put in [true, false] {
        let (server, address) = Settings::AMPLE.server();
        let client = Client::connect(&address);
        let call = begin(&client, is_put);
        server.kill();
        let error = client.poller.block_on(call).unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert_eq!(error.execution(), Execution::MayHaveRun, "{error}");
        assert!(matches!(error.cause(), Cause::Disconnected(_)), "{error:?}");
        client.turn_until("the memory is back", || is_free(&client.stats().memory));
    }
}

#[test]
fn when_the_server_is_stopped_in_the_middle_the_call_goes_on_afterwards() {
    let (server, address) = Settings::AMPLE.server();
    let client = Client::connect(&address);
    for is_put in [true, false] {
        let mut call = begin(&client, is_put);
        server.stop();
        assert_waits(&client, &mut call, A_WHILE);
        server.signal(Signal::CONT);
        client.poller.block_on(call).unwrap();
        client.wait_until_all_is_back();
    }
}

#[test]
fn a_client_that_is_killed_in_the_middle_leaves_no_memory_behind_in_the_server() {
    let (_server, address) = Settings::AMPLE.server();
    let observer = Client::connect(&address);
    for call in [PUT, GET] {
        let client = stopped_client(&address, call);
        observer.wait_for_message(call == PUT);
        client.kill();
        observer.wait_until_all_is_back();
    }
}

#[test]
fn a_client_that_is_stopped_in_the_middle_holds_up_nobody_and_goes_on_afterwards() {
    let (_server, address) = Settings::AMPLE.server();
    let other = Client::connect(&address);
    for call in [PUT, GET] {
        let client = stopped_client(&address, call);
        for _ in 0..20 {
            other.small_call();
        }
        other.poller.block_on(other.put(DROP, LONG)).unwrap();
        other.poller.block_on(other.get(LONG)).unwrap();
        other.wait_for_message(call == PUT);
        let deadline = Instant::now() + PATIENCE;
        // The message that it keeps, and not the one of the call before, which waits for its handler.
        while !(MIB..LONG).contains(&(other.server_memory().held as usize)) {
            // More than once, because it may have been stopped before it stopped itself.
            client.signal(Signal::CONT);
            assert!(Instant::now() < deadline, "{call}");
        }
        other.forget();
        other.wait_until_all_is_back();
    }
}

/// A server closes the connection of a client that does not release its response for 30 s, and this
/// client's thread may do something else for longer.
#[test]
fn a_client_that_takes_no_turns_after_a_call_has_released_the_response() {
    let (_server, address) = Settings::AMPLE.server();
    let (client, other) = (Client::connect(&address), Client::connect(&address));
    for round in 0..200 {
        let len = 3 * MIB + round * 1000;
        client.poller.block_on(client.get(len)).unwrap();
        other.wait_until_all_is_back();
    }
}

#[test]
fn a_call_that_is_dropped_in_the_middle_gives_all_memory_back_on_both_sides() {
    let (_server, address) = Settings::AMPLE.server();
    let client = Client::connect(&address);
    for _ in 0..3 {
        for is_put in [true, false] {
            let start = Instant::now();
            drop(begin(&client, is_put));
            client.wait_until_all_is_back();
            // The peer releases the pieces by itself, long before the time limit for it has passed.
            let took = start.elapsed();
            assert!(took < Duration::from_secs(20), "{took:?}");
        }
    }
    client.poller.block_on(client.put(DROP, LONG)).unwrap();
    client.poller.block_on(client.get(LONG)).unwrap();
    client.wait_until_all_is_back();
}

/// Little memory: messages of the lengths [`KEPT`] use up the seven eighths of it that are for messages
/// that arrive. It counts blocks, so the figures are a little more than theirs.
const LITTLE: Settings = Settings {
    max_message_len: 8 * MIB,
    message_memory: 19 * MIB,
    waits: true,
};

/// Messages that the application keeps, each of its own connection. When the last of them arrives, less
/// than half of the memory is kept, so its field is not copied either. The others have blocks of 2 MiB.
const KEPT: [usize; 5] = [
    MIB + 64 * KIB,
    MIB + 64 * KIB,
    MIB + 64 * KIB,
    MIB + 64 * KIB,
    8 * MIB - KIB,
];

/// Connects clients whose messages the server keeps, until it has no memory left. Returns each with the
/// bytes that the server keeps for it.
fn keep_all_memory(address: &str) -> Vec<(Client, u64)> {
    let mut all = 0;
    let keep = |len| {
        let keeper = Client::connect(address);
        keeper.poller.block_on(keeper.put(KEEP, len)).unwrap();
        let before = std::mem::replace(&mut all, keeper.server_memory().held);
        assert!(all - before > len as u64, "{before} {all}");
        (keeper, all - before)
    };
    KEPT.map(keep).into()
}

#[test]
fn while_the_application_keeps_all_memory_long_calls_wait_and_small_ones_go_on() {
    let (_server, address) = LITTLE.server();
    let keepers = keep_all_memory(&address);
    let client = Client::connect(&address);
    let mut calls = [MIB, 3 * MIB].map(|len| Box::pin(client.put(DROP, len)) as Call<'_>);
    for call in &mut calls {
        assert_waits(&client, call, A_WHILE);
    }
    for client in keepers.iter().map(|(keeper, _)| keeper).chain([&client]) {
        for _ in 0..50 {
            client.small_call();
        }
    }
    let late = client.put_within(DROP, MIB, Duration::from_millis(200));
    let error = client.poller.block_on(late).unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    for call in &mut calls {
        assert_waits(&client, call, A_WHILE);
    }
    client.forget();
    for outcome in client.poller.block_on(all(calls)) {
        outcome.unwrap();
    }
    client.wait_until_all_is_back();
}

#[test]
fn a_server_that_does_not_wait_for_memory_says_who_has_it() {
    let refusing = Settings {
        waits: false,
        ..LITTLE
    };
    let (_server, address) = refusing.server();
    let keepers = keep_all_memory(&address);
    let client = Client::connect(&address);
    let held = client.server_memory().held;
    let (keeper, of_keeper) = &keepers[0];
    for (caller, own) in [(&client, 0), (keeper, *of_keeper)] {
        let others = held - own;
        let error = caller.poller.block_on(caller.put(DROP, 3 * MIB));
        let error = error.unwrap_err();
        assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
        let said = error.to_string();
        for words in [
            format!("{own} by fields of its messages that the application keeps"),
            format!("{others} by other connections of its poller"),
            "`message_memory`".to_owned(),
        ] {
            assert!(said.contains(&words), "'{words}' is not in: {said}");
        }
        caller.small_call();
    }
    client.forget();
    client.poller.block_on(client.put(DROP, 3 * MIB)).unwrap();
    client.wait_until_all_is_back();
}

#[test]
fn short_fields_of_long_messages_are_copied_and_keep_no_memory() {
    let (_server, address) = LITTLE.server();
    let client = Client::connect(&address);
    for _ in 0..32 {
        client
            .poller
            .block_on(client.put(KEEP_DIGEST, MIB))
            .unwrap();
        assert_eq!(client.server_memory().held, 0);
    }
    client.wait_until_all_is_back();
}

/// The application keeps more than there is memory: from half of it on, fields are copied.
#[test]
fn fields_that_are_kept_for_long_leave_memory_to_others() {
    let (_server, address) = LITTLE.server();
    let keepers: Vec<_> = (0..2).map(|_| Client::connect(&address)).collect();
    for _ in 0..24 {
        for keeper in &keepers {
            keeper.poller.block_on(keeper.put(KEEP, MIB)).unwrap();
        }
    }
    // At most one more than made it half of the memory.
    let held = keepers[0].server_memory().held;
    let most = LITTLE.message_memory / 2 + 2 * MIB;
    assert!(held > 0 && held < most as u64, "{held}");
    keepers[1].forget();
    keepers[1].wait_until_all_is_back();
}

#[test]
fn messages_of_many_lengths_between_two_processes() {
    let (_server, address) = Settings::AMPLE.server();
    let client = Client::connect(&address);
    for len in [5 * KIB, 64 * KIB, MIB, 4 * MIB] {
        client.poller.block_on(client.put(DROP, len)).unwrap();
        client.poller.block_on(client.get(len)).unwrap();
        client.poller.block_on(client.put_parts(len)).unwrap();
        assert_eq!(
            client.poller.block_on(client.get_parts(len)).unwrap(),
            PARTS
        );
    }
    client.wait_until_all_is_back();
}
