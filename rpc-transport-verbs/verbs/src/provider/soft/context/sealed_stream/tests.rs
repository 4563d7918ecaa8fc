use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;
use crate::provider::soft::context::test_records::{END, TestRecords};
use crate::record_layer::BadRecord;

/// A stream, and the peer's end of its connection.
struct Pair {
    stream: SealedStream,
    peer: UnixStream,
    peer_layer: TestRecords,
}

impl Pair {
    fn new() -> Self {
        Self::after(TestRecords::default(), ReadAhead::default())
    }

    fn after(layer: TestRecords, read_ahead: ReadAhead) -> Self {
        let (ours, peer) = UnixStream::pair().unwrap();
        peer.set_nonblocking(true).unwrap();
        Self {
            stream: SealedStream::new(ours.into(), Box::new(layer), read_ahead),
            peer,
            peer_layer: TestRecords::default(),
        }
    }

    fn peer_sends(&mut self, plain: &[u8]) {
        let sealed = sealed(&mut self.peer_layer, plain);
        self.peer.write_all(&sealed).unwrap();
    }

    /// Reads as a link does, until nothing more is to be expected.
    fn read_all(&mut self, room: usize) -> (Vec<u8>, Result<usize, Errno>) {
        let mut all = Vec::new();
        loop {
            match read(&mut self.stream, &[room]) {
                (_, end @ (Ok(0) | Err(_))) => return (all, end),
                (bytes, _) => all.extend(bytes),
            }
        }
    }

    /// Opens what the stream has sent so far.
    fn peer_reads(&mut self, sealed: &mut Vec<u8>, plain: &mut Vec<u8>) {
        // The error says that there is no more.
        let _ = self.peer.read_to_end(sealed);
        while let Some(opened) = self.peer_layer.open(sealed).unwrap() {
            plain.extend(&sealed[opened.plain]);
            sealed.drain(..opened.len);
        }
    }
}

fn sealed(layer: &mut TestRecords, plain: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    layer.seal(plain, &mut sealed).unwrap();
    sealed
}

/// Reads once, into parts of these lengths.
fn read(stream: &mut SealedStream, lengths: &[usize]) -> (Vec<u8>, Result<usize, Errno>) {
    let mut memory: Vec<Vec<u8>> = lengths.iter().map(|len| vec![0; *len]).collect();
    let parts: Vec<Part> = memory.iter_mut().map(|part| part_of(part)).collect();
    // SAFETY: the parts are vectors of this function, which are not used meanwhile.
    let read = unsafe { stream.read(&parts) };
    let mut bytes = memory.concat();
    bytes.truncate(read.unwrap_or(0));
    (bytes, read)
}

fn write(stream: &mut SealedStream, bytes: &[u8]) -> Result<usize, Errno> {
    let (one, other) = bytes.split_at(bytes.len() / 3);
    let parts = [one, other].map(|bytes| Part {
        start: NonNull::from(bytes).cast(),
        len: bytes.len(),
    });
    // SAFETY: the parts are `bytes`.
    unsafe { stream.write(&parts) }
}

fn part_of(bytes: &mut [u8]) -> Part {
    Part {
        len: bytes.len(),
        start: NonNull::from(bytes).cast(),
    }
}

fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

#[test]
fn nothing_is_opened_before_its_last_byte() {
    let mut pair = Pair::new();
    let mut layer = TestRecords::default();
    for plain in [&b"a"[..], b"bc", b"def", &[7; 17]] {
        let mut record = Vec::new();
        layer.seal_one(plain, &mut record);
        let (last, first) = record.split_last().unwrap();
        for byte in first {
            pair.peer.write_all(&[*byte]).unwrap();
            assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::AGAIN));
            assert!(!pair.stream.holds_unread());
        }
        pair.peer.write_all(&[*last]).unwrap();
        let found = (plain.to_vec(), Ok(plain.len()));
        assert_eq!(read(&mut pair.stream, &[64]), found);
    }
}

/// What was opened and not taken is known, and comes without the socket.
#[test]
fn what_is_held_is_known() {
    let mut pair = Pair::new();
    pair.peer_sends(b"abcdef");
    assert_eq!(read(&mut pair.stream, &[1]).0, b"a");
    assert!(pair.stream.holds_unread());
    // Behind what is held.
    pair.peer_sends(b"gh");
    assert_eq!(read(&mut pair.stream, &[2, 9]).0, b"bcdef");
    assert!(!pair.stream.holds_unread());
    assert_eq!(read(&mut pair.stream, &[64]).0, b"gh");
    assert!(!pair.stream.holds_unread());
    assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::AGAIN));
}

/// What was read ahead may be the first part of a record, and as long as the memory to read into.
#[test]
fn a_record_of_which_any_part_was_read_ahead_is_opened() {
    let mut layer = TestRecords::default();
    let plain = bytes_of(MAX_PLAIN);
    let mut record = Vec::new();
    layer.seal_one(&plain, &mut record);
    for cut in [
        0,
        1,
        LEAST_READ - 1,
        LEAST_READ,
        LEAST_READ + 1,
        record.len() - 1,
    ] {
        let (ahead, later) = record.split_at(cut);
        let read_ahead = ReadAhead {
            opened: Vec::new(),
            sealed: ahead.to_vec(),
        };
        let mut pair = Pair::after(TestRecords::default(), read_ahead);
        assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::AGAIN), "{cut}");
        pair.peer.write_all(later).unwrap();
        let mut found = Vec::new();
        while found.len() < plain.len() {
            let (some, len) = read(&mut pair.stream, &[MAX_PLAIN]);
            assert!(matches!(len, Ok(1..)), "{cut}: {len:?}");
            found.extend(some);
        }
        assert!(found == plain, "{cut}");
    }
}

/// A read that finds less than it asks for may be followed by another, if the socket had more than
/// one read takes from it.
#[test]
fn what_the_socket_still_has_is_expected() {
    let mut pair = Pair::new();
    let all = bytes_of(MOST_READ + 1000);
    pair.peer_sends(&all);
    let (mut found, _) = read(&mut pair.stream, &[2 * MOST_READ]);
    assert!(found.len() < LEAST_READ);
    let mut reads = 1;
    while pair.stream.may_have_more() {
        assert!(!pair.stream.holds_unread());
        found.extend(read(&mut pair.stream, &[2 * MOST_READ]).0);
        reads += 1;
    }
    assert!(found == all, "{} bytes of {}", found.len(), all.len());
    assert!(reads <= 4, "its memory grows: {reads} reads");
    // From now on, one read takes as much as one takes at most.
    pair.peer_sends(&all);
    let (first, _) = read(&mut pair.stream, &[2 * MOST_READ]);
    assert!(first.len() > MOST_READ / 2);
}

/// A record that is longer than the memory of a connection that has read little: its rest is in the socket.
#[test]
fn a_long_record_is_read_whole_by_a_connection_that_has_read_little() {
    for len in [LEAST_READ - 6, LEAST_READ, 4 * LEAST_READ - 6, MAX_PLAIN] {
        let mut pair = Pair::new();
        let mut record = Vec::new();
        pair.peer_layer.seal_one(&bytes_of(len), &mut record);
        pair.peer.write_all(&record).unwrap();
        let (found, _) = read(&mut pair.stream, &[2 * MOST_READ]);
        assert!(found == bytes_of(len), "{} bytes of {len}", found.len());
    }
}

#[test]
fn records_without_bytes_are_not_the_end_until_there_are_too_many() {
    let mut pair = Pair::new();
    for _ in 0..2 {
        for _ in 0..MOST_EMPTY - 1 {
            let mut empty = Vec::new();
            pair.peer_layer.seal_one(&[], &mut empty);
            pair.peer.write_all(&empty).unwrap();
            assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::AGAIN));
        }
        let mut record = Vec::new();
        pair.peer_layer.seal_one(b"x", &mut record);
        pair.peer.write_all(&record).unwrap();
        assert_eq!(read(&mut pair.stream, &[64]).0, b"x");
    }
    let mut many = Vec::new();
    for _ in 0..MOST_EMPTY {
        pair.peer_layer.seal_one(&[], &mut many);
    }
    pair.peer.write_all(&many).unwrap();
    assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::BADMSG));
}

/// What comes before the end, or before a record that nobody sealed, is taken first.
#[test]
fn the_end_comes_last() {
    let bad = [0, 1, 0, 0, 0, 0, 0];
    for (last, end) in [(&END[..], Ok(0)), (&bad, Err(Errno::BADMSG))] {
        let mut pair = Pair::new();
        pair.peer_sends(b"abc");
        pair.peer.write_all(last).unwrap();
        assert_eq!(read(&mut pair.stream, &[1]).0, b"a");
        assert_eq!(read(&mut pair.stream, &[2]).0, b"bc");
        assert!(pair.stream.holds_unread() && pair.stream.may_have_more());
        for _ in 0..2 {
            assert_eq!(read(&mut pair.stream, &[64]).1, end);
        }
    }
    let mut pair = Pair::new();
    pair.peer_sends(b"abc");
    drop(pair.peer);
    assert_eq!(read(&mut pair.stream, &[64]).0, b"abc");
    assert_eq!(read(&mut pair.stream, &[64]).1, Ok(0));
}

#[test]
fn a_record_that_was_changed_anywhere_is_not_opened() {
    let record = sealed(&mut TestRecords::default(), &[5; 40]);
    for at in 0..record.len() {
        let mut changed = record.clone();
        changed[at] ^= 1;
        let mut pair = Pair::new();
        pair.peer.write_all(&changed).unwrap();
        let (bytes, end) = pair.read_all(64);
        assert!(bytes.len() < 40 && bytes.iter().all(|byte| *byte == 5));
        // A changed length may also say that more is to come.
        assert!(matches!(end, Err(Errno::BADMSG | Errno::AGAIN)));
    }
}

/// A layer that opens nothing of what it gets.
#[derive(Debug)]
struct Waits;

impl RecordLayer for Waits {
    fn seal_with(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]),
        _: &mut Vec<u8>,
    ) -> Result<(), BadRecord> {
        Err(BadRecord("it seals and opens nothing"))
    }

    fn seal_end(&mut self, _: &mut Vec<u8>) -> Result<(), BadRecord> {
        Err(BadRecord("it seals and opens nothing"))
    }

    fn open(&mut self, _: &mut [u8]) -> Result<Option<Opened>, BadRecord> {
        Ok(None)
    }
}

#[test]
fn a_record_has_a_maximum_length() {
    let mut pair = Pair::new();
    pair.stream.layer = Box::new(Waits);
    pair.peer.write_all(&[0; MAX_RECORD - 1]).unwrap();
    assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::AGAIN));
    pair.peer.write_all(&[0]).unwrap();
    assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::BADMSG));
    assert_eq!(write(&mut pair.stream, b"x"), Err(Errno::BADMSG));
}

/// A layer that says what cannot be.
#[derive(Debug)]
struct Lies(Opened);

impl RecordLayer for Lies {
    fn seal_with(
        &mut self,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]),
        _: &mut Vec<u8>,
    ) -> Result<(), BadRecord> {
        Err(BadRecord("it seals and opens nothing"))
    }

    fn seal_end(&mut self, _: &mut Vec<u8>) -> Result<(), BadRecord> {
        Err(BadRecord("it seals and opens nothing"))
    }

    fn open(&mut self, _: &mut [u8]) -> Result<Option<Opened>, BadRecord> {
        Ok(Some(self.0.clone()))
    }
}

#[test]
fn a_layer_that_says_what_cannot_be_ends_the_stream() {
    for (start, end, len) in [(0, 0, 0), (0, 5, 4), (0, 9, 9), (3, 2, 4)] {
        let mut pair = Pair::new();
        pair.stream.layer = Box::new(Lies(Opened {
            plain: start..end,
            len,
            is_end: false,
        }));
        pair.peer.write_all(&[0; 8]).unwrap();
        assert_eq!(read(&mut pair.stream, &[64]).1, Err(Errno::BADMSG));
    }
}

/// A peer that reads nothing is kept a bounded number of bytes, and gets all of them when it reads.
#[test]
fn what_a_full_socket_does_not_take_is_kept_and_bounded() {
    let mut pair = Pair::new();
    let all = bytes_of(4 * 1024 * 1024);
    let mut written = 0;
    let (mut records, mut plain) = (Vec::new(), Vec::new());
    while written < all.len() {
        let result = write(&mut pair.stream, &all[written..]);
        assert!(pair.stream.unsent.len() < 2 * MOST_SENT);
        match result {
            Ok(len) => {
                assert!(len > 0);
                written += len;
            }
            Err(error) => {
                assert_eq!(error, Errno::AGAIN);
                assert!(pair.stream.holds_unsent());
                pair.peer_reads(&mut records, &mut plain);
            }
        }
    }
    while pair.stream.flush() == Err(Errno::AGAIN) {
        pair.peer_reads(&mut records, &mut plain);
    }
    assert!(!pair.stream.holds_unsent());
    pair.peer_reads(&mut records, &mut plain);
    assert!(plain == all && records.is_empty());
}

/// What a write has sealed counts as written, though the socket takes none of it. To seal it again would
/// give the peer the same bytes twice.
#[test]
fn what_was_sealed_and_cannot_be_sent_is_not_sealed_again() {
    let Pair {
        mut stream, peer, ..
    } = Pair::new();
    drop(peer);
    let message = bytes_of(100);
    assert_eq!(write(&mut stream, &message), Ok(message.len()));
    assert!(stream.holds_unsent());
    let unsent = stream.unsent.len();
    assert_eq!(write(&mut stream, &message), Err(Errno::PIPE));
    assert_eq!(stream.unsent.len(), unsent);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    /// However the records are cut on their way, wherever reading ahead has ended, and whatever rooms
    /// the link has for the bytes: they come as they were sent.
    #[test]
    fn bytes_come_as_they_were_sent(
        messages in proptest::collection::vec(0_usize..400, 1..6),
        ahead in 0_usize..3000,
        opened_ahead in 0_usize..5,
        cuts in proptest::collection::vec(1_usize..300, 1..20),
        rooms in proptest::collection::vec(1_usize..200, 1..6),
    ) {
        let mut layer = TestRecords::default();
        let plain = bytes_of(messages.iter().sum());
        let mut records = Vec::new();
        let mut start = 0;
        for len in messages {
            records.extend(sealed(&mut layer, &plain[start..][..len]));
            start += len;
        }
        let later = records.split_off(ahead.min(records.len()));
        let (mut layer, mut opened) = (TestRecords::default(), Vec::new());
        for _ in 0..opened_ahead {
            if let Some(first) = layer.open(&mut records).unwrap() {
                opened.extend(&records[first.plain]);
                records.drain(..first.len);
            }
        }
        let mut pair = Pair::after(layer, ReadAhead { opened, sealed: records });
        let mut rest = &later[..];
        let mut cuts = cuts.into_iter().cycle();
        let mut found = Vec::new();
        loop {
            match read(&mut pair.stream, &rooms) {
                (bytes, Ok(_)) => found.extend(bytes),
                (_, Err(error)) => {
                    prop_assert_eq!(error, Errno::AGAIN);
                    prop_assert!(!pair.stream.holds_unread());
                    if rest.is_empty() {
                        break;
                    }
                    let (now, after) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                    pair.peer.write_all(now).unwrap();
                    rest = after;
                }
            }
        }
        prop_assert_eq!(found, plain);
    }
}
