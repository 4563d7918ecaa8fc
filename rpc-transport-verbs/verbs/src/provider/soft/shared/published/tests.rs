use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::wake::Mapped;

fn notes() -> Mapped<ContextNotes> {
    let memory = Mapping::for_tests(size_of::<ContextNotes>());
    Mapped::new(Arc::new(memory)).unwrap()
}

const QUEUE_PAIR: PublishedQueuePair = PublishedQueuePair {
    number: QpNum(7),
    remote: QpNum(8),
    domain: 3,
    depth: 2,
};

fn region(index: u32) -> PublishedKey {
    PublishedKey {
        key: RemoteKey(0x0012_3000 | index),
        domain: 3,
        only_through: None,
        arena: 5,
        offset: 0,
        start: 0x7000,
        len: 100,
    }
}

fn window(index: u32) -> PublishedKey {
    PublishedKey {
        key: RemoteKey(WINDOW_BIT | 0x0120_0000 | index << TAG_BITS | 0x42),
        domain: 3,
        only_through: Some(QpNum(7)),
        arena: 6,
        offset: 4096,
        start: 0,
        len: 50,
    }
}

fn read(key: &PublishedKey, at: u64, len: u64) -> ReadRequest {
    ReadRequest {
        memory: RemoteMemory {
            addr: key.start.wrapping_add(at),
            key: key.key,
        },
        len,
        outstanding: 1,
        from: QpNum(8),
        to: QpNum(7),
        to_index: 9,
    }
}

fn place(published: &Published, request: &ReadRequest) -> Option<(u64, u64)> {
    let found = published.find(request)?;
    Some((found.arena, found.offset))
}

#[test]
fn each_reason_to_leave_a_read_to_the_owner_is_seen() {
    let notes = notes();
    let published = &notes.published;
    let (region, window) = (region(4), window(300));
    published.publish_key(&region);
    published.publish_key(&window);
    let whole = read(&region, 0, 100);
    assert_eq!(place(published, &whole), None, "no queue pair");
    published.publish_queue_pair(9, Some(QUEUE_PAIR));
    assert_eq!(place(published, &whole), Some((5, 0)));
    assert_eq!(place(published, &read(&region, 99, 1)), Some((5, 99)));
    assert_eq!(place(published, &read(&window, 20, 30)), Some((6, 4116)));
    for (request, why) in [
        (read(&region, 1, 100), "past the end"),
        (read(&region, u64::MAX, 1), "before the start"),
        (read(&region, 0, u64::MAX), "too long"),
        (read(&window, 0, 51), "past the end of the window"),
        (
            ReadRequest {
                from: QpNum(9),
                ..whole
            },
            "another connection",
        ),
        (
            ReadRequest {
                to: QpNum(9),
                ..whole
            },
            "another queue pair",
        ),
        (
            ReadRequest {
                to_index: 8,
                ..whole
            },
            "another index",
        ),
        (
            ReadRequest {
                to_index: usize::MAX,
                ..whole
            },
            "no such index",
        ),
        (
            ReadRequest {
                outstanding: 3,
                ..whole
            },
            "too many at a time",
        ),
    ] {
        assert_eq!(place(published, &request), None, "{why}");
    }
    let wrong_key = |key| {
        let mut request = whole;
        request.memory.key = RemoteKey(key);
        place(published, &request)
    };
    assert_eq!(wrong_key(region.key.0 ^ 1 << 20), None, "an old key");
    assert_eq!(wrong_key(region.key.0 + 1), None, "another index");
    assert_eq!(wrong_key(region.key.0 | 0xfff), None, "no record");
    assert_eq!(wrong_key(u32::MAX), None, "no record of a window");
    assert_eq!(wrong_key(0), None, "an empty record");
    for queue_pair in [
        PublishedQueuePair {
            domain: 4,
            ..QUEUE_PAIR
        },
        PublishedQueuePair {
            number: QpNum(6),
            ..QUEUE_PAIR
        },
    ] {
        published.publish_queue_pair(9, Some(queue_pair));
        assert_eq!(place(published, &whole), None);
        let through = ReadRequest {
            to: queue_pair.number,
            ..read(&window, 0, 1)
        };
        assert_eq!(
            place(published, &through),
            None,
            "another queue pair's window"
        );
    }
    published.publish_queue_pair(9, None);
    assert_eq!(place(published, &whole), None, "not connected any more");
}

#[test]
fn a_read_of_no_bytes_needs_a_queue_pair_and_no_key() {
    let notes = notes();
    let published = &notes.published;
    let nothing = read(&region(4), 5000, 0);
    assert!(published.find(&nothing).is_none());
    published.publish_queue_pair(9, Some(QUEUE_PAIR));
    let permission = published.find(&nothing).unwrap();
    let after = published.permits_after_copy(&nothing, &permission);
    assert!(after);
}

#[test]
fn what_changes_during_the_copy_is_seen_after_it() {
    let notes = notes();
    let published = &notes.published;
    let (region, window) = (region(4), window(0));
    let start = || {
        published.publish_queue_pair(9, Some(QUEUE_PAIR));
        published.publish_key(&region);
        published.publish_key(&window);
    };
    for key in [region, window] {
        let request = read(&key, 0, 10);
        let after = |change: &dyn Fn()| {
            start();
            let permission = published.find(&request).unwrap();
            change();
            published.permits_after_copy(&request, &permission)
        };
        assert!(after(&|| {}));
        let withdraw = || published.withdraw_key(key.key);
        assert!(!after(&withdraw));
        let renew = || {
            published.withdraw_key(key.key);
            published.publish_key(&key);
        };
        assert!(!after(&renew));
        let reset = || published.publish_queue_pair(9, None);
        assert!(!after(&reset));
        let reconnect = || {
            reset();
            published.publish_queue_pair(9, Some(QUEUE_PAIR));
        };
        assert!(!after(&reconnect));
        let both = || {
            reset();
            withdraw();
        };
        assert!(!after(&both));
    }
}

/// An object whose index has no record is left to the owner, and disturbs no other.
#[test]
fn what_has_no_record_is_not_published() {
    let notes = notes();
    let published = &notes.published;
    published.publish_queue_pair(QUEUE_PAIRS, Some(QUEUE_PAIR));
    published.publish_queue_pair(9, Some(QUEUE_PAIR));
    for key in [region(REGIONS as u32), window(WINDOWS as u32)] {
        published.publish_key(&key);
        assert_eq!(place(published, &read(&key, 0, 1)), None);
        published.withdraw_key(key.key);
    }
    let (last_region, last_window) = (region(REGIONS as u32 - 1), window(WINDOWS as u32 - 1));
    for key in [last_region, last_window] {
        published.publish_key(&key);
        assert_eq!(
            place(published, &read(&key, 1, 1)),
            Some((key.arena, key.offset + 1))
        );
    }
}

fn scribble(notes: &Mapped<ContextNotes>, at: usize, bytes: &[u8]) {
    let mapping = notes.mapping();
    let at = at % (mapping.len() - bytes.len() + 1);
    for (index, byte) in bytes.iter().enumerate() {
        // SAFETY: `at` was limited so that all of `bytes` lies within the mapping, which `notes`
        // keeps.
        let to = unsafe {
            mapping
                .start()
                .add(at + index)
                .cast::<std::sync::atomic::AtomicU8>()
        };
        // SAFETY: the byte is mapped while `notes` lives, and every access to it is atomic.
        unsafe { to.as_ref() }.store(*byte, std::sync::atomic::Ordering::Relaxed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn what_was_published_is_found(
        domain: u32, only: bool, arena: u64, offset in 0_u64..1 << 40,
        start: u64, len in 1_u64..1 << 31, at: u64, tag: u8, serial in 0_u32..2048,
    ) {
        let notes = notes();
        let published = &notes.published;
        let key = PublishedKey {
            key: RemoteKey(WINDOW_BIT | serial << 20 | 17 << TAG_BITS | u32::from(tag)),
            domain,
            only_through: only.then_some(QpNum(7)),
            arena,
            offset,
            start,
            len,
        };
        published.publish_key(&key);
        published.publish_queue_pair(9, Some(PublishedQueuePair { domain, ..QUEUE_PAIR }));
        let at = at % len;
        let found = place(published, &read(&key, at, len - at));
        prop_assert_eq!(found, Some((arena, offset + at)));
        prop_assert_eq!(place(published, &read(&key, at, len - at + 1)), None);
    }

    /// A hostile owner writes what it likes, wherever it likes: a look ends, and what it finds is
    /// within the claimed key.
    #[test]
    fn garbage_is_left_to_the_owner_or_is_one_key(
        forged in proptest::collection::vec((any::<usize>(), any::<[u8; 24]>()), 0..40),
        words in any::<[u64; 6]>(), numbers in any::<[u64; 2]>(), sequences in any::<[u64; 2]>(),
        addr: u64, key: u32, len: u64, outstanding: u8, to_index in 0_usize..3000,
    ) {
        let notes = notes();
        let published = &notes.published;
        for (at, bytes) in &forged {
            scribble(&notes, *at, bytes);
        }
        let request = ReadRequest {
            memory: RemoteMemory { addr, key: RemoteKey(key) },
            len,
            outstanding,
            from: QpNum((numbers[0] >> 32) as u32),
            to: QpNum(numbers[0] as u32),
            to_index,
        };
        // The records that the request names, as a plausible forgery.
        if let Some(record) = published.key_record(request.memory.key) {
            let mut words = words;
            words[0] = two(key, numbers[1] as u32);
            words[1] = two(PERMITS_READS, if sequences[1] % 2 == 0 { 0 } else { words[1] as u32 });
            record.write(words);
        }
        if let Some(record) = published.queue_pairs.get(to_index) {
            record.0.write(numbers);
        }
        if let Some(permission) = published.find(&request) {
            prop_assert!(len == 0 || permission.offset >= words[3]);
            prop_assert!(u32::from(outstanding) <= (numbers[1] >> 32) as u32);
            let after = published.permits_after_copy(&request, &permission);
            prop_assert!(after);
        }
    }
}
