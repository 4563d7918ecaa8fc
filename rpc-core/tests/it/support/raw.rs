//! Frames that tests write by hand.

use std::rc::Rc;

use rpc_core::MethodSpec;
use rpc_core::frame::{
    CallId, ControlEntries, ControlEntry, ControlRequest, FRAGMENT, Flags, FrameHeader, FrameKind,
    LONG_BODY_LEN, LongBody, ONE_MESSAGE, TransferId,
};
use rpc_core::transport::{ConnectionId, Transport};
use rpc_core_testing::{Network, Pair, RawPeer};

pub(crate) fn header(kind: FrameKind) -> FrameHeader {
    FrameHeader {
        kind,
        flags: Flags::NONE,
        credits: 0,
        call: CallId(0),
        selector: 0,
        metadata_len: 0,
        time_us: 0,
    }
}

/// The header of the first frame of a long message.
pub(crate) fn long(kind: FrameKind) -> FrameHeader {
    FrameHeader {
        flags: Flags::LONG,
        ..header(kind)
    }
}

/// A request that opens a stream.
pub(crate) fn open(call: u32, method: u16, flags: Flags) -> FrameHeader {
    FrameHeader {
        flags: Flags::STREAM | flags,
        call: CallId(call),
        selector: method,
        ..header(FrameKind::Request)
    }
}

/// A message frame.
pub(crate) fn message(call: u32, selector: u16, flags: Flags) -> FrameHeader {
    FrameHeader {
        flags,
        call: CallId(call),
        selector,
        ..header(FrameKind::Message)
    }
}

/// The message frame that half-closes a stream.
pub(crate) fn last(call: u32) -> FrameHeader {
    message(call, 0, Flags::LAST)
}

/// A message frame with one message.
pub(crate) fn one(call: u32) -> FrameHeader {
    message(call, ONE_MESSAGE, Flags::NONE)
}

/// The entry of a control frame that cancels a call.
pub(crate) fn cancel(call: u32) -> ControlEntry {
    ControlEntry {
        call: CallId(call),
        request: ControlRequest::Cancel,
    }
}

/// The entry of a control frame that grants a window.
pub(crate) fn grant(call: u32, bytes: u32) -> ControlEntry {
    ControlEntry {
        call: CallId(call),
        request: ControlRequest::Grant(bytes),
    }
}

/// The first frame of a long request of the first method.
pub(crate) fn long_request(
    call: u32,
    transfer: u32,
    len: usize,
    form: u16,
    piece: &[u8],
) -> (FrameHeader, Vec<u8>) {
    let header = FrameHeader {
        call: CallId(call),
        ..long(FrameKind::Request)
    };
    let mut body = vec![0; LONG_BODY_LEN];
    LongBody::encode(TransferId(transfer), len as u32, form, &mut body);
    body.extend(piece);
    (header, body)
}

/// The first frame of a long message of a stream.
pub(crate) fn long_message(call: u32, len: u32, form: u16, piece: &[u8]) -> (FrameHeader, Vec<u8>) {
    let header = message(call, ONE_MESSAGE, Flags::LONG);
    let mut body = vec![0; LONG_BODY_LEN];
    LongBody::encode(TransferId(call), len, form, &mut body);
    body.extend(piece);
    (header, body)
}

pub(crate) fn continuation(transfer: u32, selector: u16, body: &[u8]) -> (FrameHeader, Vec<u8>) {
    let header = FrameHeader {
        call: CallId(transfer),
        selector,
        ..header(FrameKind::Continuation)
    };
    (header, body.to_vec())
}

pub(crate) fn fragment(transfer: u32, len: usize) -> (FrameHeader, Vec<u8>) {
    continuation(transfer, FRAGMENT, &vec![1; len])
}

/// A raw peer that acknowledges control frames. One that is a server also returns credits. It does
/// nothing else by itself.
pub(crate) struct Raw<'a> {
    pub(crate) peer: Rc<RawPeer>,
    network: &'a Network,
    is_server: bool,
}

/// A frame: its header, and the rest.
pub(crate) type Frame = (FrameHeader, Vec<u8>);

impl<'a> Raw<'a> {
    pub(crate) fn client(network: &'a Network) -> Self {
        Self {
            peer: network.raw_client("server"),
            network,
            is_server: false,
        }
    }

    /// A server with the name `hostile`.
    pub(crate) fn server(network: &'a Network, methods: &[&'static MethodSpec]) -> Self {
        Self {
            peer: network.raw_server("hostile", methods),
            network,
            is_server: true,
        }
    }

    /// Sends a frame. Returns the frames that have arrived when nothing is in flight any more.
    pub(crate) fn send(&self, header: FrameHeader, body: &[u8]) -> Vec<Frame> {
        self.peer.send(header, body);
        self.settle()
    }

    /// Sends a control frame.
    pub(crate) fn control(&self, entries: impl IntoIterator<Item = ControlEntry>) -> Vec<Frame> {
        let body: Vec<u8> = entries.into_iter().flat_map(ControlEntry::encode).collect();
        self.send(header(FrameKind::Control), &body)
    }

    /// Waits until nothing is in flight. Returns the frames that have arrived.
    pub(crate) fn settle(&self) -> Vec<Frame> {
        let mut all = Vec::new();
        loop {
            self.network.settle();
            let received = self.peer.received();
            if received.is_empty() {
                return all;
            }
            let of_kind = |kind| received.iter().any(|(frame, _)| frame.kind == kind);
            if of_kind(FrameKind::Control) {
                let ack = FrameHeader {
                    flags: Flags::ACK,
                    ..header(FrameKind::Acknowledgement)
                };
                self.peer.send(ack, &[]);
            }
            let took_credit = |(frame, _): &&Frame| {
                let kind = frame.kind;
                matches!(
                    kind,
                    FrameKind::Request | FrameKind::Message | FrameKind::Continuation
                )
            };
            let credits = received.iter().filter(took_credit).count() as u16;
            if self.is_server && credits > 0 {
                let credits = FrameHeader {
                    credits,
                    ..header(FrameKind::Control)
                };
                self.peer.send(credits, &[]);
            }
            all.extend(received);
        }
    }
}

/// Returns the code of the first response.
pub(crate) fn code_in(frames: &[Frame]) -> Option<u16> {
    let mut responses = frames.iter();
    let response = responses.find(|(header, _)| header.kind == FrameKind::Response);
    response.map(|(header, _)| header.selector)
}

/// Returns the entries about a transfer in control frames.
pub(crate) fn entries(frames: &[Frame], transfer: u32) -> Vec<ControlRequest> {
    let control = frames
        .iter()
        .filter(|(header, _)| header.kind == FrameKind::Control);
    let entries =
        control.flat_map(|(_, body)| ControlEntries::parse(body).expect("the peer sends entries"));
    let of_transfer = |entry: &ControlEntry| entry.transfer() == Some(TransferId(transfer));
    entries
        .filter(of_transfer)
        .map(|entry| entry.request)
        .collect()
}

/// Takes all of the server's memory for messages, which is for four messages of `len` bytes.
pub(crate) fn all_memory(pair: &Pair, len: usize) -> impl Sized + use<> {
    pair.server().with_transport(|transport| {
        let connection = ConnectionId {
            index: 0,
            generation: 0,
        };
        [(); 4].map(|()| {
            let memory = transport.allocate_for(connection, len);
            memory.expect("it is free")
        })
    })
}
