use std::net::TcpListener;

use verbline_verbs::for_transport::Opened;

use super::*;

/// Records that are their length and their bytes. One with the length [`END`] is the last.
#[derive(Debug)]
pub(crate) struct Framed;

const END: [u8; 2] = [0xff; 2];

impl RecordLayer for Framed {
    fn seal_with(
        &mut self,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        sealed: &mut Vec<u8>,
    ) -> Result<(), BadRecord> {
        sealed.extend((len as u16).to_be_bytes());
        let start = sealed.len();
        sealed.resize(start + len, 0);
        fill(&mut sealed[start..]);
        Ok(())
    }

    fn seal_end(&mut self, sealed: &mut Vec<u8>) -> Result<(), BadRecord> {
        sealed.extend(END);
        Ok(())
    }

    fn open(&mut self, sealed: &mut [u8]) -> Result<Option<Opened>, BadRecord> {
        let Some(&prefix) = sealed.first_chunk() else {
            return Ok(None);
        };
        if prefix == END {
            return Ok(Some(Opened {
                plain: 0..0,
                len: 2,
                is_end: true,
            }));
        }
        let len = 2 + usize::from(u16::from_be_bytes(prefix));
        let is_end = false;
        let opened = Opened {
            plain: 2..len,
            len,
            is_end,
        };
        Ok((sealed.len() >= len).then_some(opened))
    }
}

pub(crate) fn record(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    Framed.seal(bytes, &mut sealed).unwrap();
    sealed
}

/// A stream whose socket does not block, and the peer's end, which does.
fn pair() -> (ControlStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    here.set_nonblocking(true).unwrap();
    (ControlStream::plain(here), listener.accept().unwrap().0)
}

fn secured(sealed: Vec<u8>) -> (ControlStream, TcpStream) {
    let (mut stream, peer) = pair();
    stream.secure(Box::new(Framed), sealed);
    (stream, peer)
}

/// Reads as long as there is something, and returns what it was and how it ended.
fn read_all(stream: &mut ControlStream) -> (Vec<u8>, Result<Arrived, StreamError>) {
    let mut all = Vec::new();
    loop {
        match stream.read(4096, &mut all) {
            Ok(Arrived::Bytes) => {}
            end => return (all, end),
        }
    }
}

/// Waits until the peer's bytes have come over loopback.
fn wait_for_bytes(stream: &ControlStream) {
    let mut files = [rustix::event::PollFd::new(
        &**stream.socket(),
        rustix::event::PollFlags::IN,
    )];
    assert_eq!(rustix::event::poll(&mut files, None).unwrap(), 1);
}

#[test]
fn records_come_in_any_pieces_and_what_was_read_ahead_comes_first() {
    let records = [record(b"first"), record(&[7; 10_000]), record(b"last")].concat();
    for cut in [0, 1, 2, 5, 7, 8, 5000, records.len()] {
        let (ahead, later) = records.split_at(cut);
        let (mut stream, mut peer) = secured(ahead.to_vec());
        peer.write_all(later).unwrap();
        drop(peer);
        let mut all = Vec::new();
        while all.len() < 5 + 10_000 + 4 {
            let (some, end) = read_all(&mut stream);
            all.extend(some);
            match end {
                Ok(Arrived::End) => break,
                Ok(Arrived::Bytes) => {}
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
        let expected = [&b"first"[..], &[7; 10_000], b"last"].concat();
        assert!(all == expected, "cut at {cut}: {} bytes", all.len());
    }
}

#[test]
fn what_is_peeked_at_is_read_later_and_more_of_it_is_waited_for() {
    let (mut stream, mut peer) = secured(Vec::new());
    let mut beginning = [0; 4];
    peer.write_all(&record(b"VB")).unwrap();
    wait_for_bytes(&stream);
    assert_eq!(stream.peek(&mut beginning).unwrap(), Some(2));
    peer.write_all(&record(b"LN, and more")).unwrap();
    wait_for_bytes(&stream);
    assert_eq!(stream.peek(&mut beginning).unwrap(), Some(4));
    assert_eq!(&beginning, b"VBLN");
    assert_eq!(stream.peek(&mut beginning).unwrap(), Some(4), "again");
    let (all, _) = read_all(&mut stream);
    assert_eq!(all, b"VBLN, and more");
    drop(peer);
    wait_for_bytes(&stream);
    assert_eq!(stream.peek(&mut beginning).unwrap(), None);
}

#[test]
fn an_end_in_a_record_is_one_and_nothing_behind_it_is_opened() {
    let (mut stream, mut peer) = secured(Vec::new());
    let end = [&record(b"last")[..], &END, &record(b"behind it")].concat();
    peer.write_all(&end).unwrap();
    wait_for_bytes(&stream);
    let (all, end) = read_all(&mut stream);
    assert_eq!(all, b"last");
    assert!(matches!(end, Ok(Arrived::End)), "{end:?}");
}

#[test]
fn a_peer_that_says_nothing_in_many_records_or_in_one_that_is_too_long_is_ended() {
    for records in [vec![0; 2 * MOST_EMPTY as usize], vec![0xfe; 20_000]] {
        let (mut stream, mut peer) = secured(Vec::new());
        peer.write_all(&records).unwrap();
        drop(peer);
        let mut all = Vec::new();
        let error = loop {
            match stream.read(4096, &mut all) {
                Ok(Arrived::Bytes) => {}
                Err(error) if error.is_transient() => {}
                other => break other.unwrap_err(),
            }
        };
        assert!(matches!(error, StreamError::Record(_)), "{error}");
        assert!(all.is_empty());
    }
}

/// A socket that takes part of a record: the rest follows, with the end behind it.
#[test]
fn what_the_socket_does_not_take_is_kept_and_sent_in_order() {
    let (mut stream, mut peer) = secured(Vec::new());
    rustix::net::sockopt::set_socket_send_buffer_size(stream.socket(), 4096).unwrap();
    let mut expected = Vec::new();
    let text = [7; 5000];
    while !stream.is_writing() {
        stream.write(&text).unwrap();
        expected.extend(record(&text));
    }
    stream.seal_end();
    expected.extend(END);
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        all
    });
    while stream.is_writing() {
        stream.flush().unwrap();
    }
    stream.shut_down_write().unwrap();
    assert!(reader.join().unwrap() == expected);
}

/// Nobody gets what was to be written when the connection has failed: it is not tried again and again.
#[test]
fn a_connection_that_has_failed_holds_nothing() {
    let (mut stream, peer) = pair();
    drop(peer);
    let mut failed = false;
    for _ in 0..1000 {
        failed |= stream.write(b"x").is_err();
        std::thread::yield_now();
        if failed {
            break;
        }
    }
    assert!(failed && !stream.is_writing());
    assert!(stream.flush().is_ok());
}
