//! The inputs that a hostile peer can send to `rpc-core`, each as a function of bytes.
//!
//! The bytes are a script: the frames that arrive, and in between the actions of this side. Each
//! function panics if an invariant that must hold for every input does not. The fuzz targets in
//! `fuzz/` and the tests in `rpc-core/tests/it/hostile_bytes.rs` call the same functions, so that `cargo test`
//! replays everything that a fuzzer has found.

mod driver;
mod streams;
mod transfers;

use prost::Message;
use rpc_core::for_testing::{
    Connection, PREFIX_LEN, decode_metadata, encode_metadata, next_message,
};
use rpc_core::frame::{
    CallId, ControlEntries, ControlEntry, ControlRequest, Flags, FrameHeader, FrameKind,
    HEADER_LEN, INITIAL_LEN, LONG_BODY_LEN, LongBody, SEGMENTS, Segments, StatusBody,
    split_initial,
};
use rpc_core::session::{Agreed, ClientSession, ServerSession};
use rpc_core::transport::RemoteSegment;

pub use driver::driver;
pub use rpc_core::for_testing::Script;
pub use streams::streams;
pub use transfers::transfers;

/// Tests a frame: its header, and the data that may follow it.
pub fn frame(bytes: &[u8]) {
    let (header, metadata, message) = match FrameHeader::parse(bytes) {
        Ok(parsed) => parsed,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(HEADER_LEN + metadata.len() + message.len(), bytes.len());
    let mut emitted = [0; HEADER_LEN];
    header.encode(&mut emitted);
    assert_eq!(
        emitted,
        bytes[..HEADER_LEN],
        "encoding a parsed header must return its bytes"
    );
    if let Ok(metadata) = decode_metadata(metadata) {
        let again = decode_metadata(&encode_metadata(&metadata))
            .expect("metadata that was decoded and encoded decodes again");
        assert!(again.iter().eq(metadata.iter()));
    }
    if let Ok((initial, trailing)) = split_initial(metadata) {
        assert_eq!(INITIAL_LEN + initial.len() + trailing.len(), metadata.len());
    }
    match ControlEntries::parse(message) {
        Ok(entries) => {
            for entry in entries.clone() {
                let is_of_call = matches!(
                    entry.request,
                    ControlRequest::Cancel | ControlRequest::Grant(_)
                );
                assert_eq!(entry.transfer().is_none(), is_of_call);
            }
            let again: Vec<u8> = entries.flat_map(ControlEntry::encode).collect();
            assert_eq!(again, message);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    long_body(header.kind, message);
    // A batch: as much of it as is well-formed.
    let mut at = 0;
    let mut len = 0;
    while let Ok(Some(next)) = next_message(message, &mut at) {
        len += PREFIX_LEN + next.len();
        assert_eq!(at, len);
    }
    assert!(at <= message.len());
    if let Ok(body) = StatusBody::decode(message) {
        assert_eq!(StatusBody::decode(&*body.encode_to_vec()), Ok(body));
    }
}

/// Tests the body of a frame that begins a long message, and the segments in its piece.
fn long_body(kind: FrameKind, body: &[u8]) {
    let long = match LongBody::parse(kind, body) {
        Ok(long) => long,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(long.len > 0, "a message of no bytes is not long");
    let mut emitted = [0; LONG_BODY_LEN];
    LongBody::encode(long.transfer, long.len, long.form, &mut emitted);
    assert_eq!([&emitted, long.piece].concat(), body);
    if long.form == SEGMENTS {
        let again: Vec<u8> = Segments::of(long.piece)
            .flat_map(RemoteSegment::encode)
            .collect();
        assert_eq!(again, long.piece);
    }
}

/// Tests the session parameters of either side, as received in the handshake.
///
/// Returns true if they are parameters that one of the sides accepts.
pub fn session(bytes: &[u8]) -> bool {
    let client = ClientSession::accept(bytes);
    if let Err(refusal) = &client {
        assert!(!refusal.reason.is_empty());
    }
    let server = ServerSession::accept(bytes);
    match &server {
        Ok(session) => assert!(session.numbers().len() <= session.methods.len()),
        Err(reason) => assert!(!reason.is_empty()),
    }
    client.is_ok() || server.is_ok()
}

/// Tests the protocol state of one connection, in either role, with headers in any order.
pub fn connection(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let shape = script.byte();
    let (granted, limit) = (u32::from(script.byte()), u32::from(script.byte()) + 1);
    let agreed = Agreed {
        max_in_flight: limit,
        max_streams: if shape & 2 == 0 { limit } else { 0 },
        // A driver never grants more credits than the in-flight limit.
        initial_credits: granted.min(limit),
    };
    let (connection, max_window) = if shape & 1 == 0 {
        (Connection::client(&agreed), 256)
    } else {
        (Connection::server(&agreed), limit)
    };
    let mut one_side = OneSide {
        connection,
        is_client: shape & 1 == 0,
        taken: 0,
        streams_taken: 0,
        received: 0,
        pending: 0,
    };
    while let Some(step) = script.step() {
        if !one_side.step(step, &mut script) {
            return;
        }
        let OneSide {
            connection,
            received,
            pending,
            ..
        } = &one_side;
        assert!(connection.requests_allowed() <= limit);
        assert!(connection.window_len() <= max_window);
        assert!(connection.streams() <= connection.max_streams());
        assert!(*pending <= limit, "more calls than the agreed limit");
        assert!(
            *received <= connection.window_len(),
            "more than was granted"
        );
    }
}

/// A connection, and what this side has still to do.
struct OneSide {
    connection: Connection,
    is_client: bool,
    /// Client: requests taken, and neither sent nor reverted.
    taken: u32,
    /// The same for requests that open a stream.
    streams_taken: u32,
    /// Frames received that took a credit, and not released.
    received: u32,
    /// Server: unary requests received, and not responded to.
    pending: u32,
}

impl OneSide {
    /// Takes a step. Returns false if the connection has ended.
    fn step(&mut self, step: u8, script: &mut Script<'_>) -> bool {
        let connection = &mut self.connection;
        match step % 8 {
            0..=2 => {
                let Ok((header, ..)) = FrameHeader::parse(&header_of(script)) else {
                    return true;
                };
                if let Err(error) = connection.handle_header(&header) {
                    // The connection ends; capacity taken for unsent calls is returned.
                    assert!(!error.to_string().is_empty());
                    (0..self.taken).for_each(|_| connection.return_request_credit());
                    (0..self.streams_taken).for_each(|_| connection.return_stream());
                    return false;
                }
                let is_stream = header.flags.contains(Flags::STREAM);
                let kind = header.kind;
                let (is_request, is_response, is_message) = (
                    kind == FrameKind::Request,
                    kind == FrameKind::Response,
                    matches!(kind, FrameKind::Message | FrameKind::Continuation),
                );
                let takes_credit = is_request || is_message || (is_response && is_stream);
                self.received += u32::from(takes_credit);
                self.pending += u32::from(is_request && !is_stream);
            }
            3 if self.is_client && step & 8 == 0 => {
                self.taken += u32::from(connection.take_request());
            }
            3 if self.is_client => self.streams_taken += u32::from(connection.take_stream()),
            3 if connection.take_message() => {
                let (kind, flags) = match step & 8 {
                    0 => (FrameKind::Message, Flags::NONE),
                    _ if connection.streams() == 0 => {
                        connection.return_message_credit();
                        return true;
                    }
                    _ => (FrameKind::Response, Flags::STREAM),
                };
                connection.next_header_with(kind, flags, CallId(0), 0);
            }
            4 if step & 16 != 0 && self.streams_taken > 0 => {
                self.streams_taken -= 1;
                if step & 8 == 0 {
                    connection.return_stream();
                } else {
                    let (kind, flags) = (FrameKind::Request, Flags::STREAM);
                    connection.next_header_with(kind, flags, CallId(0), 0);
                }
            }
            4 if self.taken > 0 => {
                self.taken -= 1;
                if step & 8 == 0 {
                    connection.return_request_credit();
                } else {
                    connection.next_header(FrameKind::Request, CallId(0), 0);
                }
            }
            5 if self.received > 0 => {
                self.received -= 1;
                connection.release_receive();
            }
            6 if self.pending > 0 => {
                self.pending -= 1;
                connection.next_header(FrameKind::Response, CallId(0), 0);
            }
            7 if step & 8 != 0 => {
                connection.become_idle();
                connection.take_freed();
            }
            7 if connection.wants_control_frame() => {
                connection.next_header(FrameKind::Control, CallId(0), 0);
            }
            7 if connection.wants_ack_frame() => {
                connection.next_header(FrameKind::Acknowledgement, CallId(0), 0);
            }
            7 if connection.wants_window() => connection.open_window(script.byte().into()),
            7 => {
                let growth = connection.wants_growth(u32::from(script.byte()));
                connection.grow(growth);
            }
            _ => {}
        }
        true
    }
}

/// Generates a header that is mostly valid: an existing kind and small numbers.
fn header_of(script: &mut Script<'_>) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    let shape = script.byte();
    header[0] = shape % 8;
    if shape & 0x88 == 0x88 {
        // The same kind, with a long message.
        header[0] |= 0x80;
    }
    // Mostly the flags of credits and of the shutdown, of which each is a bit here, or one of the others.
    header[1] = match shape >> 4 {
        flags @ 0..=11 => flags,
        bit => 0x10 << (bit - 12),
    };
    header[2] = script.byte();
    header[4] = script.byte();
    // The generation in the call's id.
    header[6] = script.byte() << 4;
    header[8] = script.byte();
    if shape & 8 != 0 {
        let at = usize::from(script.byte()) % HEADER_LEN;
        header[at] = script.byte();
    }
    header
}
