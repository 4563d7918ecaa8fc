//! Handshakes whose bytes are changed on the way.

use proptest::prelude::*;

use super::bytes::{Side, both, open_all};
use crate::Handshake;

/// A change of what one side says.
#[derive(Clone, Debug)]
enum Edit {
    Flip(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    /// A record is cut into two.
    Cut(usize),
    /// A copy of some bytes follows them.
    Repeat(usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let small_record = prop_oneof![
        Just(vec![20, 3, 3, 0, 1, 1]),
        Just(vec![21, 3, 3, 0, 2, 2, 40]),
        Just(vec![21, 3, 3, 0, 2, 1, 0]),
        Just(vec![22, 3, 3, 0, 0]),
        Just(vec![22, 3, 3, 0, 4, 1, 0, 0, 0]),
        Just(vec![
            23, 3, 3, 0, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
        ]),
        proptest::collection::vec(any::<u8>(), 1..40),
    ];
    let at = 0_usize..2000;
    prop_oneof![
        (0_usize..120, any::<u8>()).prop_map(|(at, by)| Edit::Flip(at, by)),
        (at.clone(), any::<u8>()).prop_map(|(at, by)| Edit::Flip(at, by)),
        (at.clone(), small_record).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (at.clone(), 1_usize..200).prop_map(|(at, len)| Edit::Remove(at, len)),
        at.clone().prop_map(Edit::Cut),
        (at, 1_usize..300).prop_map(|(at, len)| Edit::Repeat(at, len)),
    ]
}

/// Returns where each record begins, and the end.
fn record_starts(bytes: &[u8]) -> Vec<usize> {
    let mut starts = vec![0];
    while let Some(header) = bytes.get(starts[starts.len() - 1]..) {
        let Some(&[_, _, _, high, low]) = header.first_chunk() else {
            break;
        };
        starts.push(starts[starts.len() - 1] + 5 + usize::from(u16::from_be_bytes([high, low])));
    }
    starts
}

fn apply(edit: &Edit, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    // Records are inserted between two as often as within one.
    let boundary = |at: usize| match at % 2 {
        0 => {
            let starts = record_starts(bytes);
            starts[at / 2 % starts.len()].min(len)
        }
        _ => at % (len + 1),
    };
    match edit {
        Edit::Flip(at, by) => bytes[at % len] ^= by,
        Edit::Insert(at, inserted) => {
            let at = boundary(*at);
            bytes.splice(at..at, inserted.iter().copied());
        }
        Edit::Remove(at, count) => {
            let at = boundary(*at);
            bytes.drain(at..(at + count).min(len));
        }
        Edit::Repeat(at, count) => {
            let at = boundary(*at);
            let copy = bytes[at..(at + count).min(len)].to_vec();
            bytes.splice(at..at, copy);
        }
        Edit::Cut(at) => {
            let starts = record_starts(bytes);
            let start = starts[at % starts.len()];
            if let Some(&[kind, a, b, high, low]) = bytes.get(start..).and_then(|b| b.first_chunk())
            {
                let body = usize::from(u16::from_be_bytes([high, low]));
                let first = if body == 0 { 0 } else { at / 7 % (body + 1) };
                let header = |len: usize| {
                    let [high, low] = (len as u16).to_be_bytes();
                    [kind, a, b, high, low]
                };
                bytes[start..start + 5].copy_from_slice(&header(first));
                let second = (start + 5 + first).min(bytes.len());
                bytes.splice(second..second, header(body - first));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Handshakes whose bytes are changed on the way, in either direction and in any pieces, end with an
    /// error, wait, or are complete: then nothing that matters was changed.
    #[test]
    fn a_handshake_that_is_changed_on_the_way_fails_without_harm(
        edits in proptest::collection::vec((0_usize..3, edit()), 1..4),
        piece in prop_oneof![1_usize..64, Just(4096_usize)],
    ) {
        let (client, server) = both();
        let mut client = Side::Begins(Handshake::of_client(&client, "localhost").unwrap());
        let mut server = Side::Begins(Handshake::of_server(&server).unwrap());
        let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
        let mut to_client = Vec::new();
        for flight in 0..3 {
            let Ok((next, mut said)) = client.take(&to_client, piece, &mut at_client) else {
                return Ok(());
            };
            client = next;
            for (_, edit) in edits.iter().filter(|(of, _)| *of == flight) {
                apply(edit, &mut said);
            }
            let Ok((next, mut answer)) = server.take(&said, piece, &mut at_server) else {
                return Ok(());
            };
            server = next;
            for (_, edit) in edits.iter().filter(|(of, _)| *of == flight) {
                apply(edit, &mut answer);
            }
            to_client = answer;
        }
        if let (Side::Done(mut client), Side::Done(mut server)) = (client, server) {
            let mut sealed = Vec::new();
            client.records.seal(b"hello", &mut sealed).unwrap();
            prop_assert_eq!(open_all(&mut server.records, &mut sealed).unwrap(), b"hello");
        }
    }
}
