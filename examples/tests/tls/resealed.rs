//! Peers that have the keys of their connection: what they may say reaches its end whatever the records look
//! like, and what they may not say ends their connection, and nothing else.

mod relay;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tls_testing::sealer::{ALERT, APPLICATION_DATA, HANDSHAKE, header};
use verbline::{Code, Keepalive};

use self::relay::{Connection, End, Habit, Random, Relay, Speaker, TICKET};
use super::strangers::{assert_no_panics, note_panics, random, while_another_calls};
use super::*;

/// How many connections a client has over each device.
fn connections_over(name: &str) -> usize {
    match name {
        "tcp" => 2,
        _ => 1,
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a name of an odd length. One in eight is long.
fn odd_name(random: &mut Random) -> String {
    let most = [200_000, 30, 300, 300, 3000, 3000, 3000, 20_000][random.below(8)];
    let letter = char::from(b'a' + random.below(26) as u8);
    letter.to_string().repeat(1 + random.below(most))
}

#[test]
fn calls_pass_in_records_of_any_lengths_with_what_says_nothing_between_them() {
    note_panics();
    let authority = Authority::new("root");
    thread::scope(|scope| {
        for (name, callers, calls) in [("tcp", 4, 100), ("soft", 1, 30)] {
            let authority = &authority;
            scope.spawn(move || call_in_odd_records(name, callers, calls, authority));
        }
    });
    assert_no_panics();
}

fn call_in_odd_records(name: &str, callers: usize, calls: usize, authority: &Authority) {
    let (server, address) = serve(&device(name).with_server_tls(server_tls(authority)));
    let tls = (server_tls(authority), client_tls(authority));
    let client = device(name).with_client_tls(tls.1.clone());
    let relay = Relay::new(&address, tls, Habit::Odd);
    // The connection of the handshake has something to say afterwards, too.
    let keepalive = Keepalive {
        every: Duration::from_millis(10),
        gone_after: PATIENCE,
    };
    let builder = Channel::builder(&client, &relay.address).keepalive(keepalive);
    let channel = block_on(builder.connect_timeout(PATIENCE).connect()).unwrap();
    thread::scope(|scope| {
        for _ in 0..callers {
            let greeter = GreeterClient::new(channel.clone());
            scope.spawn(move || {
                let mut random = Random::new();
                for _ in 0..calls {
                    let name = odd_name(&mut random);
                    let expected = format!("ada.example: {name}");
                    let reply = block_on(greeter.say_hello(HelloRequest { name })).unwrap();
                    assert!(reply.into_inner().message == expected, "another answer");
                }
            });
        }
    });
    let connections = relay.connections();
    assert_eq!(connections.len(), connections_over(name), "{name}");
    for (number, connection) in connections.iter().enumerate() {
        for to in [End::Client, End::Server] {
            let said = || connection.speaker_to(to).said;
            // The handshake, or the calls.
            let least = if number == 0 { 20 } else { 500 };
            // Keepalives go on, so chance brings all of them.
            wait_until("records of all kinds", || {
                let said = said();
                let has_all = said.empty > 0 && said.requests > 0 && said.updates > said.requests;
                said.records >= least && has_all && (to == End::Server || said.tickets > 0)
            });
            let end = connection.end();
            assert!(end.is_none(), "{name}, connection {number}: {end:?}");
        }
    }
    let reply = block_on(GreeterClient::new(channel).say_hello(HelloRequest::default()));
    assert_eq!(reply.unwrap().into_inner().message, "ada.example: ");
    let connections = server.stats().total().connections;
    assert_eq!((connections.accepted, connections.closed()), (1, 0));
    server.shutdown().unwrap();
}

/// Something that no peer may say: what it is called, and how it is said.
type Attack = (&'static str, fn(&mut Speaker) -> io::Result<()>);

const ATTACKS: [Attack; 18] = [
    ("empty records", |speaker| {
        (0..1000).try_for_each(|_| seal(speaker, APPLICATION_DATA, &[]))
    }),
    ("empty records with padding", |speaker| {
        (0..1000).try_for_each(|_| seal_inner(speaker, &[APPLICATION_DATA, 0, 0, 0]))
    }),
    ("new keys", |speaker| {
        (0..1000).try_for_each(|_| update_key(speaker, false))
    }),
    ("new keys that ask for others", |speaker| {
        (0..1000).try_for_each(|_| update_key(speaker, true))
    }),
    ("a byte too much", |speaker| {
        seal(speaker, APPLICATION_DATA, &[7; (1 << 14) + 1])
    }),
    (
        "a record that is longer than its padding may be",
        |speaker| seal(speaker, APPLICATION_DATA, &[7; 17_000]),
    ),
    ("padding without content", |speaker| {
        seal_inner(speaker, &[0; 40])
    }),
    ("an unknown kind of content", |speaker| {
        seal(speaker, 99, &random(100))
    }),
    ("a change of ciphers, sealed", |speaker| {
        seal(speaker, 20, &[1])
    }),
    ("a fatal alert", |speaker| seal(speaker, ALERT, &[2, 80])),
    ("half of an alert", |speaker| seal(speaker, ALERT, &[1])),
    ("a new key in a way that is not defined", |speaker| {
        seal(speaker, HANDSHAKE, &[24, 0, 0, 1, 2])?;
        speaker.sealer.update();
        Ok(())
    }),
    ("two new keys in one record", |speaker| {
        seal(speaker, HANDSHAKE, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0])?;
        speaker.sealer.update();
        Ok(())
    }),
    ("a request for a certificate", |speaker| {
        seal(speaker, HANDSHAKE, &[13, 0, 0, 3, 0, 0, 0])
    }),
    ("no message of the handshake", |speaker| {
        seal(speaker, HANDSHAKE, &[])
    }),
    ("more after its end", |speaker| {
        seal(speaker, ALERT, &[1, 0])?;
        seal(speaker, APPLICATION_DATA, &random(5000))
    }),
    ("the last record again", |speaker| {
        let last = speaker.last.clone();
        speaker.say(&last)
    }),
    ("a record in the clear", |speaker| {
        speaker.say(&[&header(APPLICATION_DATA, 100)[..], &random(100)].concat())
    }),
];

/// Only servers give tickets.
const OF_A_CLIENT: Attack = ("a session ticket of a client", |speaker| {
    seal(speaker, HANDSHAKE, &TICKET)
});

fn attacks_on(victim: End) -> Vec<Attack> {
    let mut attacks = ATTACKS.to_vec();
    attacks.extend((victim == End::Server).then_some(OF_A_CLIENT));
    attacks
}

fn seal(speaker: &mut Speaker, content_type: u8, content: &[u8]) -> io::Result<()> {
    let record = speaker.sealer.seal(content_type, content);
    speaker.say(&record)
}

fn seal_inner(speaker: &mut Speaker, inner: &[u8]) -> io::Result<()> {
    let record = speaker.sealer.seal_inner(inner.to_vec());
    speaker.say(&record)
}

fn update_key(speaker: &mut Speaker, is_requested: bool) -> io::Result<()> {
    let record = speaker.sealer.seal_key_update(is_requested);
    speaker.say(&record)
}

/// Whom an attack reaches, and over which of the connections.
#[derive(Clone, Copy, Debug)]
struct Target {
    device: &'static str,
    connection: usize,
    victim: End,
}

/// Clients of each device that are attacked side by side.
const AT_A_TIME: usize = 12;

#[test]
fn a_peer_that_breaks_the_rules_later_ends_its_own_connection_and_nothing_else() {
    let authority = Authority::new("root");
    let relays = (server_tls(&authority), client_tls(&authority));
    thread::scope(|scope| {
        for name in DEVICES {
            let (authority, relays) = (&authority, &relays);
            scope.spawn(move || {
                let targets = (0..connections_over(name)).flat_map(|connection| {
                    [End::Client, End::Server].map(|victim| Target {
                        device: name,
                        connection,
                        victim,
                    })
                });
                let attacks: Vec<_> = targets
                    .flat_map(|target| {
                        attacks_on(target.victim)
                            .into_iter()
                            .map(move |it| (target, it))
                    })
                    .collect();
                // Each attacked client connects twice.
                let accepted = 2 * attacks.len() as u64;
                while_another_calls(name, authority, accepted, |server, tls| {
                    let client = device(name).with_client_tls(tls.clone());
                    let next = Mutex::new(attacks.iter());
                    let be_attacked = || {
                        while let Some((target, attack)) = take(&next) {
                            let relay = Relay::new(server, relays.clone(), Habit::Plain);
                            be_attacked(*target, *attack, &client, &relay);
                        }
                    };
                    thread::scope(|scope| {
                        for _ in 0..AT_A_TIME {
                            scope.spawn(be_attacked);
                        }
                    });
                });
            });
        }
    });
}

/// Takes the next item, with the lock for this alone.
fn take<T>(items: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    items.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// Has a client attacked, or the server in its name, while it makes calls. The attacked side ends the connection,
/// the client connects again, and one call at most fails.
fn be_attacked(target: Target, (what, attack): Attack, client: &Device, relay: &Relay) {
    let builder = Channel::builder(client, &relay.address)
        .connect_timeout(PATIENCE)
        .reconnect_backoff(Duration::from_millis(1), Duration::from_millis(10));
    let greeter = GreeterClient::new(block_on(builder.connect()).unwrap());
    let mut random = Random::new();
    let mut call = || {
        let name = "x".repeat(1 + random.below(30_000));
        let expected = format!("ada.example: {name}");
        block_on(greeter.say_hello(HelloRequest { name })).map(|reply| {
            let is_right = reply.into_inner().message == expected;
            assert!(is_right, "{target:?}, {what}: another answer");
        })
    };
    for _ in 0..3 {
        call().unwrap();
    }
    let all = connections_over(target.device);
    let connections = relay.connections();
    assert_eq!(connections.len(), all, "it has connected once");
    let attacked = Arc::clone(&connections[target.connection]);
    let pause = Duration::from_micros(Random::new().below(3000) as u64);
    let attacks = thread::spawn(move || {
        thread::sleep(pause);
        // The victim may end the connection in the middle.
        attack(&mut attacked.speaker_to(target.victim))
    });
    let has_ended = |connection: &Arc<Connection>| connection.end().is_some();
    let (mut failed, mut later) = (Vec::new(), 0);
    wait_until(&format!("{target:?} ends the connection of {what}"), || {
        let is_new = relay.connections().len() == 2 * all && connections.iter().all(has_ended);
        match call() {
            Ok(()) => later += u32::from(is_new),
            Err(error) => failed.push(error),
        }
        later >= 3
    });
    let attacked = attacks.join().unwrap();
    let (end, how) = connections[target.connection].end().unwrap();
    assert_eq!(
        *end, target.victim,
        "{target:?}, {what}: {how} ({attacked:?})"
    );
    assert!(failed.len() <= 1, "{target:?}, {what}: {failed:?}");
    for error in failed {
        assert_eq!(
            error.code(),
            Code::Unavailable,
            "{target:?}, {what}: {error}"
        );
        // It says what was wrong with the record.
        let blames_version = error.message().contains("keepalives");
        assert!(!blames_version, "{target:?}, {what}: {error}");
    }
}
