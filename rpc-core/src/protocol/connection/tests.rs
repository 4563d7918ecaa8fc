use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::protocol::credit::CreditError;
use crate::protocol::frame::{FrameError, MESSAGE_BATCH};

fn agreed(initial_credits: u32, max_in_flight: u32, max_streams: u32) -> Agreed {
    Agreed {
        max_in_flight,
        max_streams,
        initial_credits,
    }
}

fn client(initial_credits: u32, max_in_flight: u32) -> Connection {
    Connection::client(&agreed(initial_credits, max_in_flight, 2))
}

fn server(initial_credits: u32, max_in_flight: u32) -> Connection {
    Connection::server(&agreed(initial_credits, max_in_flight, 2))
}

fn header(kind: FrameKind) -> FrameHeader {
    flagged(kind, Flags::NONE)
}

fn flagged(kind: FrameKind, flags: Flags) -> FrameHeader {
    FrameHeader {
        kind,
        flags,
        credits: 0,
        call: CallId(0),
        selector: 0,
        metadata_len: 0,
        time_us: 0,
    }
}

fn stream_request(client: &mut Connection) -> FrameHeader {
    client.next_header_with(FrameKind::Request, Flags::STREAM, CallId(0), 0)
}

#[test]
fn each_broken_rule_is_named() {
    let mut server = server(2, 1);
    assert_eq!(server.handle_header(&header(FrameKind::Request)), Ok(()));
    assert_eq!(
        server.handle_header(&header(FrameKind::Request)),
        Err(ProtocolError::TooManyCalls { limit: 1 })
    );
    assert!(matches!(
        server.handle_header(&header(FrameKind::Response)),
        Err(ProtocolError::WrongDirection { .. })
    ));
    let mut client = client(2, 4);
    assert!(matches!(
        client.handle_header(&header(FrameKind::Response)),
        Err(ProtocolError::UnknownCall { .. })
    ));
    let mut greedy = header(FrameKind::Control);
    greedy.credits = 3;
    assert!(matches!(
        client.handle_header(&greedy),
        Err(ProtocolError::Credit(CreditError::Overflow { .. }))
    ));
}

#[test]
fn each_broken_rule_of_streams_is_named() {
    let request = flagged(FrameKind::Request, Flags::STREAM);
    let mut open = server(4, 4);
    for _ in 0..2 {
        assert_eq!(open.handle_header(&request), Ok(()));
    }
    let limit = 2;
    assert_eq!(
        open.handle_header(&request),
        Err(ProtocolError::TooManyStreams { limit })
    );
    let not_granted = Err(ProtocolError::Credit(CreditError::NotGranted));
    let response = flagged(FrameKind::Response, Flags::STREAM);
    let mut no_window = client(2, 4);
    assert_eq!(
        no_window.handle_header(&header(FrameKind::Message)),
        not_granted
    );
    assert_eq!(no_window.handle_header(&response), not_granted);
    no_window.open_window(1);
    let _ = no_window.next_header(FrameKind::Request, CallId(0), 0);
    assert!(matches!(
        no_window.handle_header(&response),
        Err(ProtocolError::UnknownCall { .. })
    ));
    let selector = MESSAGE_BATCH + 1;
    let message = FrameHeader {
        selector,
        ..header(FrameKind::Message)
    };
    assert_eq!(
        server(1, 1).handle_header(&message),
        Err(FrameError::Selector { selector }.into())
    );
    let metadata_len = 1;
    let message = FrameHeader {
        metadata_len,
        ..header(FrameKind::Message)
    };
    assert_eq!(
        server(1, 1).handle_header(&message),
        Err(ProtocolError::MessageMetadata { metadata_len })
    );
    let kind = FrameKind::Acknowledgement;
    assert_eq!(
        server(1, 1).handle_header(&header(kind)),
        Err(ProtocolError::MissingFlag { flag: "ack", kind })
    );
    assert_eq!(
        server(1, 1).handle_header(&flagged(kind, Flags::ACK)),
        Err(ProtocolError::Credit(CreditError::UnexpectedAck))
    );
    let kind = FrameKind::Request;
    assert_eq!(
        server(1, 1).handle_header(&flagged(kind, Flags::LAST)),
        Err(ProtocolError::MissingFlag {
            flag: "stream",
            kind
        })
    );
}

/// Every flag that a frame must not have, in every kind of frame, to both sides.
#[test]
fn flags_are_accepted_only_in_their_frames() {
    use FrameKind as Kind;
    let allowed = |kind, role| match (kind, role) {
        (Kind::Request, Role::Server) => Flags::STREAM | Flags::LONG,
        (Kind::Response, Role::Client) => {
            Flags::GOING_AWAY | Flags::STREAM | Flags::LONG | Flags::INITIAL
        }
        (Kind::Control, Role::Client) => Flags::GOING_AWAY | Flags::RETURNED,
        (Kind::Control, Role::Server) => Flags::RETURNED,
        (Kind::Message, Role::Client) => Flags::GOING_AWAY | Flags::LONG,
        (Kind::Message, Role::Server) => Flags::LAST | Flags::LONG,
        _ => Flags::NONE,
    };
    for kind in [Kind::Request, Kind::Response, Kind::Control, Kind::Message] {
        for role in [Role::Client, Role::Server] {
            for flag in (2..8).map(|bit| Flags::from_bits(1 << bit)) {
                let mut connection = match role {
                    Role::Client => client(1, 1),
                    Role::Server => server(1, 1),
                };
                let refused = connection.handle_header(&flagged(kind, flag)).err();
                let is_flag = matches!(
                    refused,
                    Some(ProtocolError::WrongFlag { .. } | ProtocolError::MissingFlag { .. })
                );
                let is_direction = matches!(refused, Some(ProtocolError::WrongDirection { .. }));
                let is_allowed = allowed(kind, role).contains(flag);
                assert!(
                    is_flag != is_allowed || is_direction,
                    "{kind:?} {flag:?} to a {role:?}: {refused:?}"
                );
            }
        }
    }
}

#[test]
fn a_window_of_one_is_replenished_without_an_answer() {
    let (mut client, mut server) = (client(1, 8), server(1, 8));
    for _ in 0..3 {
        assert!(client.take_request());
        assert!(!client.take_request());
        let request = client.next_header(FrameKind::Request, CallId(0), 0);
        server.handle_header(&request).unwrap();
        assert!(!server.wants_control_frame());
        server.release_receive();
        assert!(server.wants_control_frame());
        let credit = server.next_header(FrameKind::Control, CallId(0), 0);
        client.handle_header(&credit).unwrap();
        assert!(client.wants_ack_frame());
    }
}

#[test]
fn the_servers_credits_come_with_the_first_stream_and_go_back_when_none_is_open() {
    let (mut client, mut server) = (client(4, 4), server(4, 4));
    assert!(!client.wants_window());
    assert!(client.take_stream() && client.wants_window());
    client.open_window(8);
    let request = stream_request(&mut client);
    assert_eq!(request.credits, 8);
    server.handle_header(&request).unwrap();
    assert_eq!((server.streams(), server.messages_allowed()), (1, 8));

    // While the stream is open, the connection counts as used.
    assert!(server.take_was_used() && server.take_was_used());
    assert!(server.take_message());
    let (kind, flags) = (FrameKind::Response, Flags::STREAM);
    let response = server.next_header_with(kind, flags, CallId(0), 0);
    client.handle_header(&response).unwrap();
    client.release_receive();
    assert_eq!((client.streams(), server.streams()), (0, 0));
    assert!(server.take_was_used() && !server.take_was_used());
    server.become_idle();
    assert!(server.wants_control_frame());
    let control = server.next_header(FrameKind::Control, CallId(0), 0);
    assert_eq!((control.credits, control.flags), (7, Flags::RETURNED));
    // Before it arrives, the client opens another stream, and grants the credit of the response.
    assert!(client.take_stream() && !client.wants_window());
    let request = stream_request(&mut client);
    client.handle_header(&control).unwrap();
    assert_eq!((client.take_freed(), client.window_len()), (7, 1));
    server.handle_header(&request).unwrap();
    assert_eq!(server.messages_allowed(), 1);
    assert!(!server.wants_control_frame(), "it is used again");
}

#[test]
fn a_client_without_a_stream_takes_back_what_it_owes() {
    let (mut client, mut server) = (client(4, 4), server(4, 4));
    assert!(client.take_stream());
    client.open_window(1);
    server.handle_header(&stream_request(&mut client)).unwrap();
    assert!(server.take_message());
    let (kind, flags) = (FrameKind::Response, Flags::STREAM);
    let response = server.next_header_with(kind, flags, CallId(0), 0);
    assert!(response.flags.contains(Flags::SPENT));
    client.handle_header(&response).unwrap();
    client.release_receive();
    assert!(!client.wants_control_frame(), "no stream needs the credit");
    client.become_idle();
    assert_eq!((client.take_freed(), client.window_len()), (1, 0));
}

#[test]
fn a_server_that_shuts_down_grants_credits_until_its_streams_end() {
    let (mut client, mut server) = (client(1, 1), server(1, 1));
    assert!(client.take_stream());
    client.open_window(1);
    server.handle_header(&stream_request(&mut client)).unwrap();
    server.release_receive();
    server.go_away();
    assert!(server.wants_control_frame());
    let control = server.next_header(FrameKind::Control, CallId(0), 0);
    assert_eq!((control.credits, control.flags), (1, Flags::GOING_AWAY));
    client.handle_header(&control).unwrap();
    assert!(!client.wants_control_frame(), "the stream needs the credit");
    assert!(server.take_message());
    let (kind, flags) = (FrameKind::Response, Flags::STREAM);
    let response = server.next_header_with(kind, flags, CallId(0), 0);
    assert!(!server.is_finished());
    client.handle_header(&response).unwrap();
    let control = client.next_header(FrameKind::Control, CallId(0), 0);
    assert_eq!(control.flags, Flags::RETURNED | Flags::ACK);
    server.handle_header(&control).unwrap();
    assert_eq!((control.credits, server.take_freed()), (1, 1));
    assert!(server.is_finished());
}

/// Two sides, the frames in flight between them, and what each has still to do.
struct Sides {
    client: Connection,
    server: Connection,
    to_server: VecDeque<FrameHeader>,
    to_client: VecDeque<FrameHeader>,
    /// Frames that have arrived and whose receives are not free again, by side.
    held_by_server: u32,
    held_by_client: u32,
    /// Unary calls that have arrived at the server and not been responded to.
    running: u32,
}

impl Sides {
    fn new(agreed: &Agreed) -> Self {
        Self {
            client: Connection::client(agreed),
            server: Connection::server(agreed),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            held_by_server: 0,
            held_by_client: 0,
            running: 0,
        }
    }

    fn client_sends(&mut self, kind: FrameKind, flags: Flags) {
        let header = self.client.next_header_with(kind, flags, CallId(0), 0);
        self.to_server.push_back(header);
    }

    fn server_sends(&mut self, kind: FrameKind, flags: Flags) {
        let header = self.server.next_header_with(kind, flags, CallId(0), 0);
        self.to_client.push_back(header);
    }

    /// Takes one step of an honest application or transport, if it can be taken.
    fn step(&mut self, step: u8) {
        let Self { client, server, .. } = self;
        match step {
            0 if !client.is_going_away() && client.take_request() => {
                self.client_sends(FrameKind::Request, Flags::NONE);
            }
            1 => self.server_receives(),
            2 if self.held_by_server > 0 => {
                self.held_by_server -= 1;
                server.release_receive();
            }
            3 if self.running > 0 => {
                self.running -= 1;
                self.server_sends(FrameKind::Response, Flags::NONE);
            }
            4 => self.client_receives(),
            5 if server.wants_control_frame() => {
                self.server_sends(FrameKind::Control, Flags::NONE);
            }
            6 if client.wants_control_frame() => {
                self.client_sends(FrameKind::Control, Flags::NONE);
            }
            7 if !client.is_going_away() && client.take_stream() => {
                if client.wants_window() {
                    client.open_window(2);
                }
                self.client_sends(FrameKind::Request, Flags::STREAM);
            }
            8 if client.streams() > 0 && client.take_message() => {
                self.client_sends(FrameKind::Message, Flags::NONE);
            }
            9 if server.streams() > 0 && server.take_message() => {
                self.server_sends(FrameKind::Message, Flags::NONE);
            }
            10 if server.streams() > 0 && server.take_message() => {
                self.server_sends(FrameKind::Response, Flags::STREAM);
            }
            11 if self.held_by_client > 0 => {
                self.held_by_client -= 1;
                client.release_receive();
            }
            12 if client.wants_ack_frame() => {
                self.client_sends(FrameKind::Acknowledgement, Flags::NONE);
            }
            13 if server.wants_ack_frame() => {
                self.server_sends(FrameKind::Acknowledgement, Flags::NONE);
            }
            14 => client.become_idle(),
            15 => server.become_idle(),
            _ => {}
        }
    }

    fn server_receives(&mut self) {
        let Some(frame) = self.to_server.pop_front() else {
            return;
        };
        self.server.handle_header(&frame).unwrap();
        if takes_credit(&frame) {
            self.held_by_server += 1;
        }
        if frame.kind == FrameKind::Request && !frame.flags.contains(Flags::STREAM) {
            self.running += 1;
        }
        let growth = self.server.wants_growth(8);
        self.server.grow(growth);
    }

    fn client_receives(&mut self) {
        let Some(frame) = self.to_client.pop_front() else {
            return;
        };
        self.client.handle_header(&frame).unwrap();
        if takes_credit(&frame) {
            self.held_by_client += 1;
        }
        let growth = self.client.wants_growth(8);
        self.client.grow(growth);
        if self.client.wants_window() {
            self.client.open_window(2);
        }
    }
}

fn takes_credit(frame: &FrameHeader) -> bool {
    match frame.kind {
        FrameKind::Request | FrameKind::Message | FrameKind::Continuation => true,
        FrameKind::Response => frame.flags.contains(Flags::STREAM),
        _ => false,
    }
}

proptest! {
    /// A client and a server that follow the rules never report violations, whatever the order
    /// in which frames are sent, received, released and responded to.
    #[test]
    fn two_honest_sides_agree(
        initial in 1u32..8, max_in_flight in 1u32..12, max_streams in 0u32..4,
        steps in proptest::collection::vec(0u8..16, 0..500),
        goes_away_at in proptest::option::of(0usize..500),
    ) {
        let initial = initial.min(max_in_flight);
        let mut sides = Sides::new(&agreed(initial, max_in_flight, max_streams));
        for (index, step) in steps.into_iter().enumerate() {
            if goes_away_at == Some(index) {
                sides.server.go_away();
            }
            sides.step(step);
            let Sides { client, server, .. } = &sides;
            prop_assert!(client.requests_allowed() <= server.window_len());
            prop_assert!(server.messages_allowed() <= client.window_len());
            prop_assert!(server.going_away || server.window_len() >= initial);
            for window in [&client.window, &server.window] {
                prop_assert!(window.granted() + window.owed() <= window.size());
            }
            // When the server considers the connection finished, nothing that it would have to
            // respond to is left anywhere.
            if server.going_away && server.is_finished() {
                let left = sides.to_server.iter().filter(|frame| takes_credit(frame));
                let left = left.count() as u32 + sides.running;
                prop_assert_eq!((left, server.streams()), (0, 0));
            }
        }
    }
}
