//! [`Order`]: what the two sides of a call do.

use rpc_core::intercept::Side;
use rpc_core::{Metadata, MethodKind};

use crate::Random;

/// The key of the metadata that carries an order to its handler.
const KEY: &str = "order-bin";

/// How the handler of a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With its response.
    Succeeds,
    /// With `ABORTED`.
    Fails,
    /// With a panic.
    Panics,
    /// It does not: something has to drop it.
    Never,
}

/// What the two sides of a call do.
///
/// A handler reads up to `reads` messages, drops the rest, sends `responses` messages, and ends. A
/// bidirectional method also sends one message for each that it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Identifies the call among all of the test.
    pub id: u64,
    /// Which sides stream.
    pub kind: MethodKind,
    /// Messages that the client sends before it half-closes.
    pub requests: u32,
    /// Most messages that the handler reads.
    pub reads: u32,
    /// Messages that the handler sends.
    pub responses: u32,
    /// Bytes of a request message.
    pub request_len: u32,
    /// Bytes of a response message.
    pub response_len: u32,
    /// The handler waits before the message with this number until it is woken.
    pub handler_waits_at: u32,
    /// The client waits before it reads the message with this number until it is woken.
    pub client_waits_at: u32,
    /// How the handler ends.
    pub ending: Ending,
    /// The client sends through a [`Sender`](rpc_core::Sender), not from a stream of its own.
    pub has_sender: bool,
}

/// The length of a message without padding.
const SHORTEST: u32 = 12;

impl Order {
    /// Chooses an order whose messages have at most `longest` bytes.
    #[must_use]
    pub fn random(random: &Random, id: u64, longest: u32) -> Self {
        let some = |most: u32| random.below(u64::from(most) + 1) as u32;
        let count = || match random.below(8) {
            0 => 0,
            1 | 2 => 1,
            3..=6 => some(12),
            _ => some(80),
        };
        let len = || match random.below(3) {
            0 => SHORTEST,
            1 => SHORTEST + some(40.min(longest - SHORTEST)),
            _ => SHORTEST + some(longest - SHORTEST),
        };
        let rarely = |most: u32| match random.happens(250) {
            true => some(most),
            false => u32::MAX,
        };
        let kinds = [
            MethodKind::Unary,
            MethodKind::ClientStreaming,
            MethodKind::ServerStreaming,
            MethodKind::Streaming,
        ];
        let ending = match random.below(20) {
            0 | 1 => Ending::Fails,
            2 => Ending::Panics,
            3 => Ending::Never,
            _ => Ending::Succeeds,
        };
        let kind = kinds[random.below(4) as usize];
        Self {
            id,
            kind,
            requests: count(),
            reads: rarely(12),
            responses: count(),
            request_len: len(),
            response_len: len(),
            handler_waits_at: rarely(12),
            client_waits_at: rarely(12),
            ending,
            has_sender: random.happens(500),
        }
    }

    /// Lets one in four requests and responses of unary calls have up to `longest` bytes.
    pub fn lengthen(&mut self, random: &Random, longest: u32) {
        if self.kind != MethodKind::Unary {
            return;
        }
        for len in [&mut self.request_len, &mut self.response_len] {
            if random.below(4) == 0 {
                *len = SHORTEST + random.below(u64::from(longest - SHORTEST) + 1) as u32;
            }
        }
    }

    /// Returns the number of messages that the client gets if the handler succeeds or fails.
    #[must_use]
    pub fn expected_responses(&self) -> u32 {
        match self.kind {
            MethodKind::Streaming => self.requests.min(self.reads) + self.responses,
            MethodKind::ServerStreaming => self.responses,
            _ => 1,
        }
    }

    /// Returns true if an interceptor of this side refuses the call: one in sixteen calls, of those that
    /// have interceptors on this side.
    pub(super) fn is_refused_by(&self, side: Side) -> bool {
        self.id % 32 == 7 + side as u64
    }

    /// Returns true if an interceptor of this side lets the call wait until it is woken.
    pub(super) fn waits_for_interceptor_of(&self, side: Side) -> bool {
        self.id % 8 == 1 + 2 * side as u64
    }

    /// Returns the numbers that the handler needs, as metadata.
    pub(super) fn metadata(&self) -> Metadata {
        let ending = self.ending as u32;
        let numbers = [
            self.requests,
            self.reads,
            self.responses,
            self.request_len,
            self.response_len,
            self.handler_waits_at,
            ending,
        ];
        let mut bytes = self.id.to_le_bytes().to_vec();
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        let mut metadata = Metadata::new();
        metadata
            .insert(KEY, bytes)
            .expect("the key is a valid one of binary metadata");
        metadata
    }

    /// Reads an order from a request's metadata. Returns `None` if there is none.
    pub(super) fn of(metadata: &Metadata, kind: MethodKind) -> Option<Self> {
        let bytes = metadata.get_bin(KEY)?;
        let (id, rest) = bytes.split_first_chunk()?;
        let (numbers, []) = rest.as_chunks::<4>() else {
            return None;
        };
        let numbers: Vec<u32> = numbers.iter().map(|n| u32::from_le_bytes(*n)).collect();
        let &[
            requests,
            reads,
            responses,
            request_len,
            response_len,
            handler_waits_at,
            ending,
        ] = &*numbers
        else {
            return None;
        };
        Some(Self {
            id: u64::from_le_bytes(*id),
            kind,
            requests,
            reads,
            responses,
            request_len,
            response_len,
            handler_waits_at,
            client_waits_at: u32::MAX,
            ending: match ending {
                0 => Ending::Succeeds,
                1 => Ending::Fails,
                2 => Ending::Panics,
                _ => Ending::Never,
            },
            has_sender: false,
        })
    }

    /// Returns the request message with a number.
    pub(super) fn request(&self, number: u32) -> Vec<u8> {
        message(self.id, number, self.request_len)
    }

    /// Returns the response message with a number.
    pub(super) fn response(&self, number: u32) -> Vec<u8> {
        message(!self.id, number, self.response_len)
    }
}

fn message(id: u64, number: u32, len: u32) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend(number.to_le_bytes());
    // Each byte follows from its position, so that pieces in a wrong order are noticed.
    let rest = bytes.len() as u32..len;
    bytes.extend(rest.map(|at| (at % 251) as u8 ^ (at >> 12) as u8 ^ id as u8));
    bytes
}
