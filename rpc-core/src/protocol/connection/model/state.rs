//! The states of the model, and the steps between them.

use std::collections::VecDeque;

use super::super::*;
use crate::protocol::credit::UNCREDITED_RECEIVES;

/// The steps that a side or the wire takes without fail, once it can.
pub(super) const CERTAIN: [Step; 16] = [
    Step::DeliverToServer,
    Step::DeliverToClient,
    Step::ServerReleases,
    Step::ClientReleases,
    Step::Call,
    Step::OpenStream,
    Step::OpenWindow,
    Step::ClientMessage,
    Step::ServerMessage,
    Step::ClientPiece,
    Step::ServerPiece,
    Step::StreamResponse,
    Step::ClientControl,
    Step::ServerControl,
    Step::ClientAck,
    Step::ServerAck,
];

/// The steps that may be taken, or not.
pub(super) const POSSIBLE: [Step; 6] = [
    Step::OpenWindowEarly,
    Step::CallResponse,
    Step::EndStream,
    Step::GoAway,
    Step::ClientIdles,
    Step::ServerIdles,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    DeliverToServer,
    DeliverToClient,
    ServerReleases,
    ClientReleases,
    Call,
    OpenStream,
    OpenWindow,
    ClientMessage,
    ServerMessage,
    ClientPiece,
    ServerPiece,
    StreamResponse,
    ClientControl,
    ServerControl,
    ClientAck,
    ServerAck,
    OpenWindowEarly,
    CallResponse,
    EndStream,
    GoAway,
    ClientIdles,
    ServerIdles,
}

/// What the sides have to send in a run of the model, and the parameters that they agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Frames that the client may send before it receives further credits.
    pub initial_credits: u32,
    /// Unary calls that may be in flight at a time.
    pub max_in_flight: u32,
    /// Most receives of the client's window, and those that it opens with.
    pub client_window: u32,
    /// Unary calls to make.
    pub calls: u8,
    /// Streams to open.
    pub streams: u8,
    /// Messages that the client sends on the streams.
    pub client_messages: u8,
    /// Messages that the server sends on the streams.
    pub server_messages: u8,
    /// Continuations of each unary request; 0 if none is long.
    pub request_pieces: u8,
    /// Continuations of each unary response; 0 if none is long.
    pub response_pieces: u8,
    /// Whether a side sends the next piece only when the receiver has released the previous one.
    pub releases: bool,
    /// Streams that the client may cancel.
    pub cancels: u8,
    /// Whether the server may shut down.
    pub goes_away: bool,
    /// Whether the sides may become idle.
    pub idles: bool,
    /// Whether acknowledgements have frames of their own.
    pub ack_frames: bool,
}

/// A frame in flight, with what its body says.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Frame {
    header: FrameHeader,
    grants: u8,
    /// Pieces of long messages that their receiver has released.
    released: u8,
    /// Continuations of the long message that the frame begins.
    pieces: u8,
}

/// One side, and the frames in flight to it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Side {
    connection: Connection,
    inbox: VecDeque<Frame>,
    /// Receives with a frame that took a credit, and how many of these frames are messages.
    held: u8,
    held_messages: u8,
    /// Messages to send, and how many of them the stream's window permits.
    messages: u8,
    stream_window: u8,
    /// Continuations to send, and those that will arrive, of each long message.
    pieces: VecDeque<u8>,
    arriving: VecDeque<u8>,
    /// Pieces that this side may send before the receiver has released others.
    room: u8,
    /// Entries to send.
    grants: u8,
    released: u8,
    cancels: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    client: Side,
    server: Side,
    /// Client: calls and streams to begin.
    calls: u8,
    streams: u8,
    /// Server: responses to streams that are to be sent.
    ended: u8,
}

impl Side {
    fn new(connection: Connection, messages: u8, cancels: u8, releases: bool) -> Self {
        Self {
            connection,
            inbox: VecDeque::new(),
            held: 0,
            held_messages: 0,
            messages,
            // So each message after the first waits for a grant.
            stream_window: 1,
            pieces: VecDeque::new(),
            arriving: VecDeque::new(),
            room: if releases { 1 } else { u8::MAX },
            grants: 0,
            released: 0,
            cancels,
        }
    }

    fn send(&mut self, kind: FrameKind, flags: Flags, to: &mut Self) {
        self.send_long(kind, flags, 0, to);
    }

    /// Sends a frame, which begins a long message if continuations follow.
    fn send_long(&mut self, kind: FrameKind, flags: Flags, pieces: u8, to: &mut Self) {
        let flags = match pieces {
            0 => flags,
            _ => flags | Flags::LONG,
        };
        let header = self.connection.next_header_with(kind, flags, CallId(0), 0);
        let mut frame = Frame {
            header,
            grants: 0,
            released: 0,
            pieces,
        };
        if kind == FrameKind::Control {
            frame.grants = std::mem::take(&mut self.grants);
            frame.released = std::mem::take(&mut self.released);
            self.cancels = 0;
        }
        if pieces > 0 {
            self.connection.begin_sending();
            self.pieces.push_back(pieces);
        }
        to.inbox.push_back(frame);
    }

    /// Handles the next frame. Returns false if there is none.
    fn receive(&mut self, plan: &Plan) -> bool {
        let Some(frame) = self.inbox.pop_front() else {
            return false;
        };
        let header = frame.header;
        if let Err(violation) = self.connection.handle_header(&header) {
            panic!("{violation}: {header:?}");
        }
        self.held += u8::from(takes_credit(&header));
        self.held_messages += u8::from(header.kind == FrameKind::Message);
        self.stream_window += frame.grants;
        self.room += frame.released;
        if frame.pieces > 0 {
            self.connection.begin_receiving();
            self.arriving.push_back(frame.pieces);
        }
        if header.kind == FrameKind::Continuation {
            self.released += u8::from(plan.releases);
            if take_piece(&mut self.arriving) {
                self.connection.end_receiving();
            }
        }
        self.connection.take_freed();
        true
    }

    /// Sends the next piece of a long message.
    fn piece(&mut self, plan: &Plan, to: &mut Self) -> bool {
        let may_send = !self.pieces.is_empty() && self.room > 0;
        if !(may_send && self.connection.take_message()) {
            return false;
        }
        self.room -= u8::from(plan.releases);
        self.send(FrameKind::Continuation, Flags::NONE, to);
        if take_piece(&mut self.pieces) {
            self.connection.end_sending();
        }
        true
    }

    /// Makes a receive free again, as the driver does at once, whoever reads the message and when.
    /// The reader takes the message at some time, which this is, and its bytes are granted anew.
    fn release(&mut self, max_window: u32) -> bool {
        if self.held == 0 {
            return false;
        }
        self.held -= 1;
        if self.held_messages > 0 {
            self.held_messages -= 1;
            self.grants += 1;
        }
        self.connection.release_receive();
        let free = 4 * max_window.saturating_sub(self.connection.window_len());
        let growth = self.connection.wants_growth(free);
        self.connection.grow(growth);
        true
    }

    fn message(&mut self, to: &mut Self) -> bool {
        let may_send = self.messages > 0 && self.stream_window > 0;
        if !(may_send && self.connection.streams() > 0 && self.connection.take_message()) {
            return false;
        }
        self.messages -= 1;
        self.stream_window -= 1;
        self.send(FrameKind::Message, Flags::NONE, to);
        true
    }

    fn control(&mut self, to: &mut Self) -> bool {
        let has_entries = self.grants + self.released + self.cancels > 0;
        let wants = self.connection.wants_control_frame()
            || (has_entries && self.connection.may_send_control_frame());
        if wants {
            self.send(FrameKind::Control, Flags::NONE, to);
        }
        wants
    }

    fn ack(&mut self, to: &mut Self) -> bool {
        let wants = self.connection.wants_ack_frame();
        if wants {
            self.send(FrameKind::Acknowledgement, Flags::NONE, to);
        }
        wants
    }

    /// Panics if more frames are in flight to this side than it has receives for.
    fn check(&self) {
        let credited = self
            .inbox
            .iter()
            .filter(|frame| takes_credit(&frame.header));
        let credited = credited.count() as u32 + u32::from(self.held);
        assert!(
            credited <= self.connection.window_len(),
            "beyond the window"
        );
        let uncredited = self.inbox.iter().filter(|frame| {
            let kind = frame.header.kind;
            matches!(kind, FrameKind::Control | FrameKind::Acknowledgement)
        });
        let uncredited = uncredited.count() as u32;
        assert!(
            uncredited <= UNCREDITED_RECEIVES,
            "beyond the receives for frames without a credit"
        );
    }

    /// Returns what this side has still to send.
    fn unsent(&self) -> Option<&'static str> {
        let connection = &self.connection;
        match () {
            () if self.messages > 0 && connection.streams() > 0 => Some("messages"),
            () if !self.pieces.is_empty() => Some("pieces"),
            () if self.grants + self.released + self.cancels > 0 => Some("entries"),
            () if connection.wants_ack_frame() => Some("an acknowledgement"),
            () if connection.must_announce_shutdown() => Some("the shutdown"),
            () if connection.owes_many() => Some("credits"),
            () if connection.surplus() > 0 => Some("credits to return"),
            () => None,
        }
    }
}

/// Takes a piece of the first message. Returns true if it was the message's last one.
fn take_piece(messages: &mut VecDeque<u8>) -> bool {
    let left = messages
        .front_mut()
        .expect("a piece of a message that has begun");
    *left -= 1;
    let is_last = *left == 0;
    if is_last {
        messages.pop_front();
    }
    is_last
}

fn takes_credit(header: &FrameHeader) -> bool {
    match header.kind {
        FrameKind::Request | FrameKind::Message | FrameKind::Continuation => true,
        FrameKind::Response => header.flags.contains(Flags::STREAM),
        _ => false,
    }
}

impl State {
    pub(super) fn new(plan: &Plan) -> Self {
        let agreed = Agreed {
            max_in_flight: plan.max_in_flight,
            max_streams: 2,
            initial_credits: plan.initial_credits,
        };
        let (client, server) = (Connection::client(&agreed), Connection::server(&agreed));
        Self {
            client: Side::new(client, plan.client_messages, plan.cancels, plan.releases),
            server: Side::new(server, plan.server_messages, 0, plan.releases),
            calls: plan.calls,
            streams: plan.streams,
            ended: 0,
        }
    }

    /// Returns the state after a step, or `None` if it cannot be taken here.
    pub(super) fn after(&self, step: Step, plan: &Plan) -> Option<Self> {
        let mut next = self.clone();
        if !next.take(step, plan) {
            return None;
        }
        for side in [&mut next.client, &mut next.server] {
            side.check();
            // Whether it was used matters only until the next look at it.
            side.connection.take_was_used();
        }
        Some(next)
    }

    fn take(&mut self, step: Step, plan: &Plan) -> bool {
        let (client, server) = (&mut self.client, &mut self.server);
        let begins = !client.connection.is_going_away();
        match step {
            Step::DeliverToServer => server.receive(plan),
            Step::DeliverToClient => client.receive(plan),
            Step::ServerReleases => server.release(plan.max_in_flight),
            Step::ClientReleases => client.release(plan.client_window),
            Step::Call => {
                let sends = begins && self.calls > 0 && client.connection.take_request();
                if sends {
                    self.calls -= 1;
                    let (kind, pieces) = (FrameKind::Request, plan.request_pieces);
                    client.send_long(kind, Flags::NONE, pieces, server);
                }
                sends
            }
            Step::OpenStream => {
                let sends = begins && self.streams > 0 && client.connection.take_stream();
                if sends {
                    self.streams -= 1;
                    if client.connection.wants_window() {
                        client.connection.open_window(plan.client_window);
                    }
                    client.send(FrameKind::Request, Flags::STREAM, server);
                }
                sends
            }
            Step::OpenWindow => {
                let wants = client.connection.wants_window();
                if wants {
                    client.connection.open_window(plan.client_window);
                }
                wants
            }
            Step::OpenWindowEarly => {
                let opens = client.connection.window_len() == 0;
                if opens {
                    client.connection.open_window(plan.client_window);
                }
                opens
            }
            Step::ClientMessage => client.message(server),
            Step::ServerMessage => server.message(client),
            Step::ClientPiece => client.piece(plan, server),
            Step::ServerPiece => server.piece(plan, client),
            Step::StreamResponse => {
                let sends = self.ended > 0 && server.connection.take_message();
                if sends {
                    self.ended -= 1;
                    server.send(FrameKind::Response, Flags::STREAM, client);
                }
                sends
            }
            Step::ClientControl => client.control(server),
            Step::ServerControl => server.control(client),
            Step::ClientAck => plan.ack_frames && client.ack(server),
            Step::ServerAck => plan.ack_frames && server.ack(client),
            Step::CallResponse => {
                // A request is complete before its handler begins.
                let complete = server.connection.calls_in_flight as usize - server.arriving.len();
                let sends = complete > 0;
                if sends {
                    let (kind, pieces) = (FrameKind::Response, plan.response_pieces);
                    server.send_long(kind, Flags::NONE, pieces, client);
                }
                sends
            }
            Step::EndStream => {
                let ends = server.connection.streams() > self.ended.into();
                self.ended += u8::from(ends);
                ends
            }
            Step::GoAway => {
                let goes = plan.goes_away && !server.connection.is_going_away();
                server.connection.go_away();
                goes
            }
            Step::ClientIdles => idle(client, plan),
            Step::ServerIdles => server.connection.streams() == 0 && idle(server, plan),
        }
    }

    /// Returns what is left to send, in a state in which no certain step can be taken.
    pub(super) fn unsent(&self) -> Option<&'static str> {
        let (client, server) = (&self.client.connection, &self.server.connection);
        let begins = !client.is_going_away();
        let may_call = client.calls_in_flight < client.max_in_flight;
        let may_open = client.streams() < client.max_streams();
        let is_over =
            (server.streams() | server.calls_in_flight | server.sending | server.receiving) == 0;
        match () {
            () if begins && self.calls > 0 && may_call => Some("a call"),
            () if begins && self.streams > 0 && may_open => Some("a stream"),
            () if self.ended > 0 => Some("a response"),
            () if !begins && is_over && !server.is_finished() => Some("the last credits"),
            () => self.client.unsent().or(self.server.unsent()),
        }
    }

    /// Returns true if neither side may send a control frame.
    pub(super) fn both_wait_for_acks(&self) -> bool {
        let waits = |side: &Side| !side.connection.may_send_control_frame();
        waits(&self.client) && waits(&self.server)
    }
}

fn idle(side: &mut Side, plan: &Plan) -> bool {
    let is_used = (side.connection.sending | side.connection.receiving) > 0;
    let becomes_idle = plan.idles && side.connection.activity != Activity::Idle && !is_used;
    if becomes_idle {
        side.connection.become_idle();
        side.connection.take_freed();
    }
    becomes_idle
}
