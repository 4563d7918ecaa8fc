//! The accounts of handshakes of hosts.

use std::net::{TcpListener, TcpStream};

use proptest::prelude::*;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The stages of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Rejected,
    Incoming,
    Challenged,
    Welcomed,
    Admitted,
}

impl Stage for At {
    fn rank(self) -> Rank {
        match self {
            Self::Rejected => Rank::Rejected,
            Self::Incoming | Self::Challenged => Rank::Unproven,
            Self::Welcomed => Rank::Welcomed,
            Self::Admitted => Rank::Admitted,
        }
    }

    fn has_deadline(self) -> bool {
        self != Self::Admitted
    }
}

/// By the numbers of their hosts.
type Handshakes = Strangers<u8, At>;

fn handshakes(total: usize, of_one: usize) -> Handshakes {
    Handshakes::new(Limits {
        total,
        of_one,
        time: TIMEOUT,
    })
}

/// Lets time pass until so many seconds are over.
fn pass(handshakes: &mut Handshakes, now: &mut Instant, seconds: u64) {
    while handshakes.running() < Duration::from_secs(seconds) {
        handshakes.advance(*now);
        *now += TICK;
    }
}

/// Adds a client as the control thread does. Returns what it found.
fn connect(handshakes: &mut Handshakes, token: u64, host: u8) -> Room {
    let room = handshakes.room_for(host);
    if let Room::InPlaceOf(victim) = room {
        assert!(handshakes.entries.contains_key(&victim));
        handshakes.remove(victim);
    }
    if room != Room::None {
        handshakes.enter(token, host, At::Incoming);
    }
    room
}

#[test]
fn at_its_limit_a_host_loses_its_oldest_and_no_other_host_loses_any() {
    let mut handshakes = handshakes(100, 3);
    connect(&mut handshakes, 1, 1);
    for token in 2..5 {
        assert_eq!(connect(&mut handshakes, token, 2), Room::Free);
    }
    assert_eq!(connect(&mut handshakes, 5, 2), Room::InPlaceOf(2));
    // A completed stage counts.
    handshakes.enter(3, 2, At::Welcomed);
    assert_eq!(connect(&mut handshakes, 6, 2), Room::InPlaceOf(4));
}

/// A hello with a GID that anyone can list makes a handshake `Challenged`.
#[test]
fn a_flood_of_unproven_hellos_takes_no_place_of_a_client_that_has_just_connected() {
    const LIMIT: u64 = 50;
    let mut handshakes = handshakes(1000, LIMIT as usize);
    let flood = |handshakes: &mut Handshakes, token| {
        let room = connect(handshakes, token, 1);
        handshakes.enter(token, 1, At::Challenged);
        room
    };
    for token in 1..=LIMIT {
        assert_eq!(flood(&mut handshakes, token), Room::Free);
    }
    let honest = LIMIT + 1;
    assert_eq!(connect(&mut handshakes, honest, 1), Room::InPlaceOf(1));
    for token in 2..=LIMIT {
        let room = flood(&mut handshakes, LIMIT + token);
        assert_eq!(room, Room::InPlaceOf(token));
    }
    // The challenge makes it no younger.
    handshakes.enter(honest, 1, At::Challenged);
    assert_eq!(handshakes.room_for(1), Room::InPlaceOf(honest));
    handshakes.enter(honest, 1, At::Admitted);
    assert_eq!(handshakes.room_for(1), Room::InPlaceOf(LIMIT + 2));
}

#[test]
fn at_the_common_limit_the_host_with_most_handshakes_loses_one() {
    let mut handshakes = handshakes(6, 100);
    connect(&mut handshakes, 1, 1);
    for token in 2..7 {
        connect(&mut handshakes, token, 2);
    }
    assert_eq!(connect(&mut handshakes, 7, 3), Room::InPlaceOf(2));
    assert_eq!(connect(&mut handshakes, 8, 1), Room::InPlaceOf(3));
    assert_eq!(connect(&mut handshakes, 9, 2), Room::InPlaceOf(4));
}

#[test]
fn who_waits_for_this_side_ends_only_for_a_host_with_fewer_and_the_newest_first() {
    let mut handshakes = handshakes(3, 100);
    for token in 1..4 {
        connect(&mut handshakes, token, 1);
        handshakes.enter(token, 1, At::Admitted);
    }
    assert!(!handshakes.awaits_time());
    pass(&mut handshakes, &mut Instant::now(), 1000);
    assert_eq!(handshakes.expired(), None);
    assert_eq!(connect(&mut handshakes, 4, 1), Room::None);
    assert_eq!(connect(&mut handshakes, 5, 2), Room::InPlaceOf(3));
    handshakes.enter(5, 2, At::Admitted);
    assert_eq!(connect(&mut handshakes, 6, 2), Room::None);
    handshakes.enter(1, 1, At::Rejected);
    assert_eq!(connect(&mut handshakes, 7, 2), Room::InPlaceOf(1));
}

#[test]
fn each_stage_that_waits_for_the_client_has_its_own_deadline() {
    let mut handshakes = handshakes(10, 10);
    let mut now = Instant::now();
    let mut pass = |handshakes: &mut Handshakes, seconds| pass(handshakes, &mut now, seconds);
    handshakes.enter(1, 1, At::Incoming);
    pass(&mut handshakes, 1);
    handshakes.enter(2, 1, At::Incoming);
    pass(&mut handshakes, 4);
    assert_eq!(handshakes.expired(), None);
    // A stage that goes on does not begin again.
    handshakes.enter(1, 1, At::Incoming);
    pass(&mut handshakes, 5);
    assert_eq!(handshakes.expired(), Some(1));
    handshakes.enter(1, 1, At::Admitted);
    pass(&mut handshakes, 6);
    assert_eq!(handshakes.expired(), Some(2));
    handshakes.remove(2);
    pass(&mut handshakes, 600);
    assert_eq!(handshakes.expired(), None);
    handshakes.enter(1, 1, At::Welcomed);
    pass(&mut handshakes, 604);
    assert_eq!(handshakes.expired(), None);
    pass(&mut handshakes, 605);
    assert_eq!(handshakes.expired(), Some(1));
    handshakes.remove(1);
    assert!(handshakes.origins.is_empty() && handshakes.ranks.is_empty());
    assert!(handshakes.deadlines.is_empty() && handshakes.entries.is_empty());
}

/// It stays readable meanwhile, and would wake the thread again and again.
#[test]
fn a_listener_that_pauses_wakes_nobody_until_its_time_is_over() {
    const LISTENER: u64 = 7;
    let mut handshakes = handshakes(10, 10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(LISTENER);
    epoll::add(&set, &listener, data, epoll::EventFlags::IN).unwrap();
    let wakes = || {
        let mut events = Vec::with_capacity(1);
        let at_once = Timespec::default();
        epoll::wait(&set, spare_capacity(&mut events), Some(&at_once)).unwrap();
        events.len() == 1
    };
    assert!(wakes() && !handshakes.awaits_time());
    handshakes.pause(&set, &listener, LISTENER);
    // An event that epoll cannot be asked not to tell may have it paused again.
    handshakes.pause(&set, &listener, LISTENER);
    assert!(!wakes() && handshakes.awaits_time());
    let start = Instant::now();
    handshakes.advance(start);
    handshakes.advance(start + PAUSE / 2);
    assert_eq!(handshakes.rested(), None);
    handshakes.advance(start + PAUSE);
    assert_eq!(handshakes.rested(), Some(LISTENER));
    assert!(handshakes.rested().is_none() && !handshakes.awaits_time());
    resume(&set, &listener, LISTENER);
    assert!(wakes());
}

#[test]
fn only_errors_that_last_make_a_listener_pause() {
    use io::ErrorKind::{ConnectionAborted, Interrupted, PermissionDenied, WouldBlock};
    assert_eq!(accepted(Ok(1)).unwrap(), Some(1));
    for kind in [WouldBlock, ConnectionAborted, Interrupted] {
        assert_eq!(accepted::<()>(Err(kind.into())).unwrap(), None);
    }
    let lasting = accepted::<()>(Err(PermissionDenied.into()));
    assert_eq!(lasting.unwrap_err().kind(), PermissionDenied);
}

proptest! {
    /// Compared with a model that looks through a list: the limits hold, and the handshake that
    /// ends is one of the host that has most.
    #[test]
    fn the_limits_hold_and_the_right_one_ends(
        steps in prop::collection::vec((0..6_u8, 0..4_u8, 0..64_usize), 0..300),
    ) {
        let mut handshakes = handshakes(8, 5);
        // Token, host, stage, and the number of the step that reached the stage's rank.
        let mut model: Vec<(u64, u8, At, usize)> = Vec::new();
        for (number, (action, from, index)) in steps.into_iter().enumerate() {
            let token = number as u64 + 1;
            let count = |model: &[(u64, u8, At, usize)], host| {
                model.iter().filter(|entry| entry.1 == host).count()
            };
            if action >= 3 {
                let room = connect(&mut handshakes, token, from);
                if let Room::InPlaceOf(victim) = room {
                    let at = model.iter().position(|entry| entry.0 == victim).unwrap();
                    let (_, host, stage, began) = model[at];
                    let most = (0..4).map(|host| count(&model, host)).max().unwrap();
                    let own = count(&model, from);
                    let largest = if own >= 5 { own } else { most };
                    prop_assert_eq!(count(&model, host), largest);
                    prop_assert!(own < 5 || host == from);
                    prop_assert!(stage != At::Admitted || own + 1 < most);
                    for &(_, other, other_stage, other_began) in &model {
                        let (rank, other_rank) = (stage.rank(), other_stage.rank());
                        if other == host && other_rank == rank && rank != Rank::Admitted {
                            prop_assert!(began <= other_began);
                        }
                        prop_assert!(other != host || rank <= other_rank);
                    }
                    model.remove(at);
                }
                if room != Room::None {
                    model.push((token, from, At::Incoming, number));
                }
            } else if !model.is_empty() {
                let at = index % model.len();
                let stage = match (action, from) {
                    (0, 1) => At::Challenged,
                    (0, _) => At::Admitted,
                    (1, _) => At::Welcomed,
                    _ => At::Rejected,
                };
                if from == 0 {
                    handshakes.remove(model.remove(at).0);
                } else if model[at].2 != stage {
                    handshakes.enter(model[at].0, model[at].1, stage);
                    if model[at].2.rank() != stage.rank() {
                        model[at].3 = number;
                    }
                    model[at].2 = stage;
                }
            }
            prop_assert_eq!(handshakes.entries.len(), model.len());
            prop_assert!(model.len() <= 8);
            prop_assert!((0..4).all(|host| count(&model, host) <= 5));
        }
    }
}
