//! Handshakes and records over bytes: of both sides here, and with rustls' own buffers at the other side.

use std::io::{Read, Write};

use proptest::prelude::*;
use rustls::{ClientConnection, ServerConnection};
use tls_testing::{Authority, named};

use super::bytes::{Side, both, open_all, shake};
use super::{AsIdentity, AsRoots};
use crate::{
    ALPN, ClientAuth, ClientTls, Expect, Handshake, HandshakeError, KEYS_AT_ONCE, MAX_PLAIN,
    MAX_RECORD, Progress, RECORDS_PER_KEY, RecordError, Records, Secured, ServerTls,
};

#[test]
fn a_handshake_may_come_byte_by_byte_and_tells_each_who_the_other_is() {
    let (client, server) = both();
    for piece in [1, 7, 100_000] {
        let (mut client, mut server) = shake(&client, &server, piece);
        let name = |secured: &Secured| secured.peer.as_ref().unwrap().dns_names()[0].clone();
        assert_eq!(name(&client), "localhost");
        assert_eq!(name(&server), "client.example");
        for (from, to) in [(0, 1), (1, 0)] {
            let sides = [&mut client.records, &mut server.records];
            let mut sealed = Vec::new();
            sides[from].seal(b"hello", &mut sealed).unwrap();
            assert_eq!(open_all(sides[to], &mut sealed).unwrap(), b"hello");
        }
    }
}

/// What is said in the same moment as the end of the handshake is not lost.
#[test]
fn what_comes_with_the_end_of_the_handshake_is_left_for_the_records() {
    let (client, server) = both();
    let client = Handshake::of_client(&client, "localhost").unwrap();
    let server = Handshake::of_server(&server).unwrap();
    let mut hello = Vec::new();
    let Ok(Progress::Waits(client)) = client.advance(&mut Vec::new(), &mut hello) else {
        panic!("it waits for the server");
    };
    let mut answer = Vec::new();
    let Ok(Progress::Waits(server)) = server.advance(&mut hello, &mut answer) else {
        panic!("it waits for the client");
    };
    let mut last = Vec::new();
    let Ok(Progress::Done(mut client)) = client.advance(&mut answer, &mut last) else {
        panic!("the client is done");
    };
    client.records.seal(b"first", &mut last).unwrap();
    client.records.seal(b"second", &mut last).unwrap();
    let whole = last.len();
    client.records.seal(b"third", &mut last).unwrap();
    let late = last.split_off(whole + 4);
    let Ok(Progress::Done(mut server)) = server.advance(&mut last, &mut Vec::new()) else {
        panic!("the server is done");
    };
    last.extend(late);
    let plain = open_all(&mut server.records, &mut last).unwrap();
    assert_eq!(plain, b"firstsecondthird");
}

/// A flipped bit, a record that is repeated, left out or cut short by its header: none is opened, and no
/// other one after it.
#[test]
fn whatever_is_changed_on_the_way_ends_the_connection() {
    let (client, server) = both();
    let sealed = |records: &mut Records, text: &[u8]| {
        let mut sealed = Vec::new();
        records.seal(text, &mut sealed).unwrap();
        sealed
    };
    let (mut client_side, _) = shake(&client, &server, 4096);
    let len = sealed(&mut client_side.records, b"first").len();
    for bit in 0..len * 8 {
        let (mut client, mut server) = shake(&client, &server, 4096);
        let mut first = sealed(&mut client.records, b"first");
        first[bit / 8] ^= 1 << (bit % 8);
        // A longer length waits for more, which is here.
        first.extend_from_slice(&[0; MAX_RECORD]);
        let error = open_all(&mut server.records, &mut first).unwrap_err();
        let expected = [
            RecordError::Forged,
            RecordError::Length,
            RecordError::Content,
        ];
        assert!(expected.contains(&error), "bit {bit}: {error}");
    }
    let (mut client, mut server) = shake(&client, &server, 4096);
    let first = sealed(&mut client.records, b"first");
    let mut second = sealed(&mut client.records, b"second");
    let mut twice = [&first[..], &first[..]].concat();
    assert_eq!(
        open_all(&mut server.records, &mut twice),
        Err(RecordError::Forged)
    );
    let _ = open_all(&mut server.records, &mut second).unwrap_err();
    // Back to its sender.
    let mut mirrored = sealed(&mut client.records, b"third");
    assert_eq!(
        open_all(&mut client.records, &mut mirrored),
        Err(RecordError::Forged)
    );
}

/// rustls' own connection understands the records, and is understood, through changes of keys that either
/// side begins.
#[test]
fn another_implementation_understands_each_record_and_each_key() {
    let (client_tls, server_tls) = both();
    let name = client_tls.server_name("localhost").unwrap();
    let mut theirs = ClientConnection::new(client_tls.config(), name).unwrap();
    let mut ours = Side::Begins(Handshake::of_server(&server_tls).unwrap());
    let mut waiting = Vec::new();
    while theirs.is_handshaking() || matches!(ours, Side::Begins(_)) {
        let mut said = Vec::new();
        while theirs.wants_write() {
            theirs.write_tls(&mut said).unwrap();
        }
        let (next, answer) = ours.take(&said, 4096, &mut waiting).unwrap();
        ours = next;
        feed(&answer, |mut bytes| {
            theirs.read_tls(&mut bytes).unwrap();
            theirs.process_new_packets().unwrap();
        });
    }
    let Side::Done(mut ours) = ours else {
        unreachable!("it is done");
    };
    ours.records.use_each_key_for(3);
    for round in 0..20_u8 {
        if round % 5 == 4 {
            theirs.refresh_traffic_keys().unwrap();
        }
        let text = vec![round; usize::from(round) * 900 + 1];
        theirs.writer().write_all(&text).unwrap();
        let mut sealed = Vec::new();
        while theirs.wants_write() {
            theirs.write_tls(&mut sealed).unwrap();
        }
        assert_eq!(open_all(&mut ours.records, &mut sealed).unwrap(), text);
        let mut sealed = Vec::new();
        for text in text.chunks(MAX_PLAIN) {
            ours.records.seal(text, &mut sealed).unwrap();
        }
        feed(&sealed, |mut bytes| {
            theirs.read_tls(&mut bytes).unwrap();
            theirs.process_new_packets().unwrap();
        });
        let mut received = vec![0; text.len()];
        theirs.reader().read_exact(&mut received).unwrap();
        assert_eq!(received, text);
    }
    let mut end = Vec::new();
    ours.records.seal_end(&mut end).unwrap();
    feed(&end, |mut bytes| {
        theirs.read_tls(&mut bytes).unwrap();
        theirs.process_new_packets().unwrap();
    });
    assert_eq!(theirs.reader().read(&mut [0]).unwrap(), 0);
    theirs.send_close_notify();
    let mut end = Vec::new();
    theirs.write_tls(&mut end).unwrap();
    let opened = ours.records.open(&mut end).unwrap().unwrap();
    assert!(opened.is_end && opened.plain.is_empty());
}

/// A client may ask for new keys at once: its message arrives together with the end of its handshake.
#[test]
fn new_keys_that_are_asked_for_with_the_end_of_the_handshake_are_told_of() {
    let (client_tls, server_tls) = both();
    let name = client_tls.server_name("localhost").unwrap();
    let mut theirs = ClientConnection::new(client_tls.config(), name).unwrap();
    let mut ours = Side::Begins(Handshake::of_server(&server_tls).unwrap());
    let mut waiting = Vec::new();
    let mut ours = loop {
        if !theirs.is_handshaking() {
            theirs.refresh_traffic_keys().unwrap();
            theirs.writer().write_all(b"first").unwrap();
        }
        let mut said = Vec::new();
        while theirs.wants_write() {
            theirs.write_tls(&mut said).unwrap();
        }
        let (next, answer) = ours.take(&said, said.len(), &mut waiting).unwrap();
        feed(&answer, |mut bytes| {
            theirs.read_tls(&mut bytes).unwrap();
            theirs.process_new_packets().unwrap();
        });
        match next {
            Side::Begins(_) => ours = next,
            Side::Done(done) => break done,
        }
    };
    let plain = open_all(&mut ours.records, &mut waiting).unwrap();
    assert_eq!(plain, b"first");
    let mut sealed = Vec::new();
    ours.records.seal(b"second", &mut sealed).unwrap();
    theirs.read_tls(&mut &sealed[..]).unwrap();
    theirs.process_new_packets().unwrap();
    let mut received = [0; 6];
    theirs.reader().read_exact(&mut received).unwrap();
    assert_eq!(&received, b"second");
}

/// A peer may change its key as often as it likes, if it uses each for some records, or the keys before it.
#[test]
fn a_peer_that_changes_its_key_all_the_time_is_ended() {
    let (client, server) = both();
    let long = u64::from(RECORDS_PER_KEY) - 1;
    let at_once = KEYS_AT_ONCE as usize - 1;
    let one_in_many = |len: u64| [&[len][..], &vec![1; at_once]].concat();
    // The records of each key, without the one that tells of the next, again and again.
    for (records_of_keys, is_permitted) in [
        (vec![1], false),
        (vec![long - 1], false),
        (vec![long], true),
        (one_in_many(long), false),
        (one_in_many(long * 33), true),
    ] {
        let (mut client, mut server) = shake(&client, &server, 4096);
        let all = records_of_keys.iter().cycle().take(100 * at_once);
        let mut keys = 0;
        let opened = all.copied().try_for_each(|records| {
            client.records.use_each_key_for(records);
            keys += 1;
            (0..records).try_for_each(|_| {
                let mut sealed = Vec::new();
                client.records.seal(&[7], &mut sealed).unwrap();
                let plain = open_all(&mut server.records, &mut sealed)?;
                assert_eq!(plain, [7]);
                Ok(())
            })
        });
        match is_permitted {
            true => opened.unwrap(),
            false => {
                assert_eq!(opened, Err(RecordError::ShortKeys), "{records_of_keys:?}");
                assert!(keys > KEYS_AT_ONCE, "{records_of_keys:?}: {keys} keys");
            }
        }
    }
}

/// The client has both sides of its handshake before the server has seen its certificate. A server that
/// refuses it says so in an alert.
#[test]
fn a_server_that_refuses_a_client_says_why() {
    let authority = Authority::new("root");
    let server_tls = ServerTls::new(authority.issue_to("localhost").identity())
        .clients(authority.roots(), ClientAuth::Required);
    let nobody = ClientTls::new(authority.roots());

    let stranger = Authority::new("another root").issue_to("client.example");
    for (client_tls, wanted) in [
        (
            nobody.identity(stranger.identity()),
            "does not trust the authority",
        ),
        (nobody, "demands a certificate"),
    ] {
        let mut client = Side::Begins(Handshake::of_client(&client_tls, "localhost").unwrap());
        let mut server = Side::Begins(Handshake::of_server(&server_tls).unwrap());
        let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
        let mut to_client = Vec::new();
        let mut alert = loop {
            let (next, said) = client.take(&to_client, 4096, &mut at_client).unwrap();
            client = next;
            match server.take(&said, 4096, &mut at_server) {
                Ok((next, answer)) => (server, to_client) = (next, answer),
                Err((error, alert)) => {
                    let refused = matches!(error, HandshakeError::Tls { .. });
                    assert!(refused, "{error}");
                    break alert;
                }
            }
        };
        let Side::Done(mut client) = client else {
            panic!("the client believes that it is done");
        };
        let error = open_all(&mut client.records, &mut alert).unwrap_err();
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

/// A server of another protocol has a good certificate, and takes no part in ALPN.
#[test]
fn a_server_that_is_not_verblines_is_told_apart() {
    let (client_tls, server_tls) = both();
    let mut other = (*server_tls.config()).clone();
    other.alpn_protocols.clear();
    let mut theirs = ServerConnection::new(other.into()).unwrap();
    let mut ours = Side::Begins(Handshake::of_client(&client_tls, "localhost").unwrap());
    let mut waiting = Vec::new();
    let mut said = Vec::new();
    let error = loop {
        let to_server = match ours.take(&said, 4096, &mut waiting) {
            Ok((next, to_server)) => {
                ours = next;
                to_server
            }
            Err((error, _)) => break error,
        };
        feed(&to_server, |mut bytes| {
            theirs.read_tls(&mut bytes).unwrap();
            theirs.process_new_packets().unwrap();
        });
        said.clear();
        while theirs.wants_write() {
            theirs.write_tls(&mut said).unwrap();
        }
    };
    assert!(matches!(error, HandshakeError::NotVerbline), "{error}");
    assert_eq!(ALPN, b"verbline");
}

fn feed(mut bytes: &[u8], mut to: impl FnMut(&[u8])) {
    while !bytes.is_empty() {
        let (now, later) = bytes.split_at(bytes.len().min(4096));
        to(now);
        bytes = later;
    }
}

#[test]
fn a_certificate_for_another_name_is_refused_in_a_sentence() {
    let authority = Authority::new("root");
    let params = named("a.example");
    let server = ServerTls::new(authority.issue(&params).identity());
    let client = ClientTls::new(authority.roots());
    let client = client.server(Expect::Name("b.example".to_owned())).unwrap();
    let mut hello = Vec::new();
    let begun = Handshake::of_client(&client, "ignored").unwrap();
    let Ok(Progress::Waits(client)) = begun.advance(&mut Vec::new(), &mut hello) else {
        panic!("it waits");
    };
    let mut answer = Vec::new();
    let server = Handshake::of_server(&server).unwrap();
    assert!(matches!(
        server.advance(&mut hello, &mut answer),
        Ok(Progress::Waits(_))
    ));
    let mut alert = Vec::new();
    let error = client.advance(&mut answer, &mut alert).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("for other names")
            && text.contains("a.example")
            && text.contains("b.example"),
        "{text}"
    );
    assert!(!alert.is_empty(), "the server learns it, too");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No bytes make a handshake or the opening of records fail in another way than by an error, and none
    /// are opened.
    #[test]
    fn any_bytes_are_an_error_or_wait_for_more(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        like_tls: bool,
    ) {
        let (client_tls, server_tls) = both();
        let mut bytes = bytes;
        if like_tls {
            let len = (bytes.len().saturating_sub(5) as u16).to_be_bytes();
            for (byte, header) in bytes.iter_mut().zip([0x16, 3, 1, len[0], len[1]]) {
                *byte = header;
            }
        }
        let handshake = Handshake::of_server(&server_tls).unwrap();
        let progress = handshake.advance(&mut bytes.clone(), &mut Vec::new());
        prop_assert!(!matches!(progress, Ok(Progress::Done(_))));
        let handshake = Handshake::of_client(&client_tls, "localhost").unwrap();
        let progress = handshake.advance(&mut bytes.clone(), &mut Vec::new());
        prop_assert!(!matches!(progress, Ok(Progress::Done(_))));
        let (_, mut server) = shake(&client_tls, &server_tls, 4096);
        if let Some(first) = bytes.first_mut() {
            *first = 23;
        }
        prop_assert!(!matches!(server.records.open(&mut bytes), Ok(Some(_))));
    }
}
