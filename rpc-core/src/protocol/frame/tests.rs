use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn headers() -> impl Strategy<Value = FrameHeader> {
    let kind = prop_oneof![
        Just(FrameKind::Request),
        Just(FrameKind::Response),
        Just(FrameKind::Control),
        Just(FrameKind::Message),
        Just(FrameKind::Acknowledgement),
        Just(FrameKind::Continuation),
    ];
    (
        kind,
        any::<u8>(),
        any::<u16>(),
        any::<u32>(),
        any::<u16>(),
        0u16..100,
        any::<u32>(),
    )
        .prop_map(
            |(kind, flags, credits, call, selector, metadata_len, time_us)| FrameHeader {
                kind,
                flags: Flags::from_bits(flags),
                credits,
                call: CallId(call),
                selector,
                metadata_len,
                time_us,
            },
        )
}

fn entries() -> impl Strategy<Value = ControlEntry> {
    let request = prop_oneof![
        Just(ControlRequest::Cancel),
        (1..=ControlEntry::MAX_GRANT).prop_map(ControlRequest::Grant),
    ];
    (any::<u32>(), request).prop_map(|(call, request)| ControlEntry {
        call: CallId(call),
        request,
    })
}

/// A server says a second at most. A hostile one says an hour and more.
#[test]
fn nobody_waits_longer_than_ten_seconds_whatever_a_server_says() {
    let said = |time_us| {
        let header = FrameHeader {
            kind: FrameKind::Response,
            flags: Flags::from_bits(0),
            credits: 0,
            call: CallId(0),
            selector: 0,
            metadata_len: 0,
            time_us,
        };
        ResponseHead::of(&header).pushback_us
    };
    assert_eq!(said(1_000_001), 1_000_001);
    assert_eq!(said(u32::MAX), MOST_PUSHBACK_US);
}

proptest! {
    #[test]
    fn what_is_encoded_is_parsed(header in headers(), message in vec(any::<u8>(), 0..64)) {
        let metadata = vec![7; usize::from(header.metadata_len)];
        let mut frame = vec![0; HEADER_LEN];
        header.encode(&mut frame);
        frame.extend(&metadata);
        frame.extend(&message);
        prop_assert_eq!(FrameHeader::parse(&frame), Ok((header, &metadata[..], &message[..])));
    }

    #[test]
    fn garbage_is_refused_or_parsed_within_its_bounds(frame in vec(any::<u8>(), 0..64)) {
        if let Ok((_, metadata, message)) = FrameHeader::parse(&frame) {
            prop_assert_eq!(HEADER_LEN + metadata.len() + message.len(), frame.len());
        }
    }

    #[test]
    fn control_entries_that_are_encoded_are_parsed(entries in vec(entries(), 0..20)) {
        let body: Vec<u8> = entries.iter().flat_map(|entry| entry.encode()).collect();
        let parsed = ControlEntries::parse(&body).unwrap();
        prop_assert_eq!(parsed.len(), entries.len());
        prop_assert!(parsed.eq(entries));
    }

    /// A body that is accepted has as many entries as its length states, and they encode to it.
    #[test]
    fn control_bodies_are_refused_or_parsed_whole(
        entries in vec(entries(), 0..4),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in 0usize..9,
    ) {
        let mut body: Vec<u8> = entries.iter().flat_map(|entry| entry.encode()).collect();
        if !body.is_empty() {
            let at = at.index(body.len());
            body[at] = byte;
        }
        body.truncate(body.len().saturating_sub(cut));
        if let Ok(parsed) = ControlEntries::parse(&body) {
            let again: Vec<u8> = parsed.flat_map(ControlEntry::encode).collect();
            prop_assert_eq!(again, body);
        }
    }

    #[test]
    fn initial_metadata_is_split_from_trailing_metadata(
        initial in vec(any::<u8>(), 0..300),
        trailing in vec(any::<u8>(), 0..300),
    ) {
        let mut section = (initial.len() as u16).to_le_bytes().to_vec();
        section.extend(&initial);
        let shorter = section.len();
        section.extend(&trailing);
        prop_assert_eq!(split_initial(&section), Ok((&initial[..], &trailing[..])));
        for metadata_len in [0, 1, shorter - 1] {
            let too_short = Err(FrameError::InitialLen { metadata_len });
            prop_assert_eq!(split_initial(&section[..metadata_len]), too_short);
        }
    }
}

#[test]
fn each_fault_is_named() {
    assert_eq!(
        FrameHeader::parse(&[1; 15]),
        Err(FrameError::Truncated { len: 15 })
    );
    let mut frame = [0; 20];
    for kind in [0, 7, 0x83, 255] {
        frame[0] = kind;
        assert_eq!(FrameHeader::parse(&frame), Err(FrameError::Kind { kind }));
    }
    frame[0] = 1;
    frame[10] = 5;
    assert_eq!(
        FrameHeader::parse(&frame),
        Err(FrameError::MetadataLen {
            metadata_len: 5,
            len: 20
        })
    );
}

#[test]
fn control_entries_that_request_nothing_are_refused() {
    let entry = |value: u32| {
        let mut body = [3; 8];
        body[4..].copy_from_slice(&value.to_le_bytes());
        body
    };
    for value in [0, 1 << 31 | 1, u32::MAX] {
        let refused = ControlEntries::parse(&entry(value)).unwrap_err();
        assert_eq!(refused, FrameError::ControlValue { value });
    }
    let refused = ControlEntries::parse(&entry(1)[..7]).unwrap_err();
    let expected = FrameError::ControlLen {
        metadata_len: 0,
        len: 7,
    };
    assert_eq!(refused, expected);
    assert_eq!(ControlEntries::parse(&[]).unwrap().count(), 0);
}

#[test]
fn flags_are_named() {
    let set = Flags::ACK | Flags::LAST;
    assert_eq!(format!("{set:?}"), r#"{"ack", "last"}"#);
    assert_eq!(set.without(Flags::ACK).first_name(), "last");
    assert_eq!(Flags::NONE.first_name(), "");
    assert!(set.intersects(Flags::LAST | Flags::LONG) && !set.contains(Flags::LAST | Flags::LONG));
}
