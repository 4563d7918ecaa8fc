use super::*;

fn host(last: u8) -> Option<Host> {
    Some(Host::from(std::net::SocketAddr::from((
        [192, 0, 2, last],
        1,
    ))))
}

/// Uses memory as long as there is some, in steps. Returns the bytes of each.
fn fill<const N: usize>(capacity: u64, step: u64) -> [u64; N] {
    let (mut own, mut grows) = ([0; N], true);
    while grows {
        grows = false;
        for at in 0..N {
            if is_within_share(own[at], own.iter().sum(), step, capacity) {
                own[at] += step;
                grows = true;
            }
        }
    }
    own
}

#[test]
fn one_host_uses_three_quarters_and_many_leave_something() {
    assert_eq!(fill::<1>(1000, 1), [750]);
    let [a, b] = fill::<2>(7000, 1);
    assert!(
        (2999..=3000).contains(&a) && (2999..=3000).contains(&b),
        "{a}, {b}"
    );
    let many = fill::<20>(61_000, 10);
    assert!(
        many.iter().all(|own| (2980..=3000).contains(own)),
        "{many:?}"
    );
    // A host that comes afterwards has room.
    assert!(is_within_share(0, many.iter().sum(), 500, 61_000));
    assert!(!is_within_share(u64::MAX, u64::MAX, u64::MAX, u64::MAX));
}

#[test]
fn connections_of_a_host_share_until_nothing_of_it_is_left() {
    let memory = PeerMemory::default();
    let (a, b, other) = (memory.of(host(1)), memory.of(host(1)), memory.of(host(2)));
    assert!(std::ptr::eq(*a, *b) && !std::ptr::eq(*a, *other));
    let unknown = [memory.of(None), memory.of(None)];
    assert!(!std::ptr::eq(*unknown[0], *unknown[1]));
    let charge = a.charge(Use::Heap, 10);
    drop((a, b, unknown));
    let (again, new) = (memory.of(host(1)), memory.of(host(3)));
    assert_eq!(again.bytes.of(Use::Heap), 10, "it is still in use");
    drop((charge, again, new));
    for last in 10..100 {
        drop(memory.of(host(last)));
    }
    let hosts = memory.0.lock();
    let all = hosts.known.len() + hosts.unknown.len() + hosts.free.len();
    assert!(all <= 5, "{all} for at most five at a time");
    assert!(hosts.known.contains_key(&host(2).unwrap()));
}

#[test]
fn the_end_of_a_burst_is_told_once_as_much_is_free() {
    static ENDS: AtomicU64 = AtomicU64::new(0);
    let memory = PeerMemory::default();
    memory.on_burst_end(|| _ = ENDS.fetch_add(1, Ordering::Relaxed));
    let ends = || ENDS.load(Ordering::Relaxed);
    let host = memory.of(None);
    let mut charge = host.charge(Use::Heap, 0);
    for _ in 0..10 {
        charge.set(BURST - 1);
        charge.set(0);
    }
    assert_eq!(ends(), 0, "little");
    charge.set(10 * BURST);
    charge.set(6 * BURST);
    assert_eq!(ends(), 0, "most of it is still in use");
    charge.set(5 * BURST);
    assert_eq!(ends(), 1);
    charge.set(4 * BURST);
    charge.set(5 * BURST);
    assert_eq!(ends(), 1);
    charge.set(BURST);
    assert_eq!(ends(), 2);
    drop(charge);
    assert_eq!(ends(), 3);
}

#[test]
fn a_message_is_kept_once_it_has_arrived() {
    let memory = PeerMemory::default().of(None);
    let mut message = memory.charge(Use::Arriving, 100);
    assert!(!memory.has_registered(1, 100));
    message.arrived();
    assert_eq!(
        (memory.bytes.of(Use::Arriving), memory.bytes.of(Use::Kept)),
        (0, 100)
    );
    assert!(memory.has_registered(100, 100), "one message always may");
    drop(message);
    assert_eq!(memory.bytes.registered(), 0);
}

#[test]
fn hosts_that_leave_much_unread_do_not_take_the_heap_of_others() {
    let memory = PeerMemory::default();
    memory.limit_heap(1000);
    let (host, other) = (memory.of(host(1)), memory.of(host(2)));
    let mut message = host.charge(Use::Unread, 200);
    assert!(!host.has_much_unread());
    message.set(201);
    assert!(host.has_much_unread());
    assert!(!other.has_much_unread());
    message.set(10_000);
    assert!(!other.has_much_unread(), "it has left nothing unread");
    let second = other.charge(Use::Unread, 1);
    assert!(other.has_much_unread());
    assert!(host.has_heap(750) && other.has_heap(750));
    drop((message, second));
    assert!(!host.has_much_unread());
}
