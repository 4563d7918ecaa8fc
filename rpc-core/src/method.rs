//! [`MethodSpec`]: the static description of a method.

pub(crate) mod remote;

/// A method of a service, as declared in its `.proto` file. Generated code has one constant per
/// method, and [`RemoteMethods`](crate::RemoteMethods) has those that a server names at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodSpec {
    /// `package.Service/Method`: the name by which peers identify the method.
    pub path: &'static str,
    /// Which sides stream.
    pub kind: MethodKind,
    /// Whether the method may be called again with the same request.
    pub idempotency: Idempotency,
    /// Full name of the request's message type. Empty if it is not known.
    pub request_type: &'static str,
    /// Full name of the response's message type. Empty if it is not known.
    pub response_type: &'static str,
    /// The most bytes of a request message, if the method has a limit besides the connection's.
    pub max_request_len: Option<u32>,
    /// The most bytes of a response message, if the method has a limit besides the connection's.
    pub max_response_len: Option<u32>,
}

impl MethodSpec {
    /// Creates a spec. Called by generated code.
    #[must_use]
    pub const fn new(
        path: &'static str,
        kind: MethodKind,
        idempotency: Idempotency,
        request_type: &'static str,
        response_type: &'static str,
    ) -> Self {
        Self {
            path,
            kind,
            idempotency,
            request_type,
            response_type,
            max_request_len: None,
            max_response_len: None,
        }
    }

    /// Limits the length of a request message. Called by generated code.
    #[must_use]
    pub const fn with_max_request_len(mut self, len: u32) -> Self {
        self.max_request_len = Some(len);
        self
    }

    /// Returns true if a request message is longer than the method permits.
    #[inline(always)]
    pub(crate) fn limits_request(&self, len: usize) -> bool {
        self.max_request_len
            .is_some_and(|limit| len > limit as usize)
    }

    /// Limits the length of a response message. Called by generated code.
    #[must_use]
    pub const fn with_max_response_len(mut self, len: u32) -> Self {
        self.max_response_len = Some(len);
        self
    }
}

/// Which sides of a method stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MethodKind {
    /// One request, one response.
    Unary,
    /// A stream of requests, one response.
    ClientStreaming,
    /// One request, a stream of responses.
    ServerStreaming,
    /// A stream of requests and a stream of responses, independent of each other.
    Streaming,
}

impl MethodKind {
    /// Returns true if the client sends a stream.
    #[must_use]
    pub const fn client_streams(self) -> bool {
        matches!(self, Self::ClientStreaming | Self::Streaming)
    }

    /// Returns true if the server sends a stream.
    #[must_use]
    pub const fn server_streams(self) -> bool {
        matches!(self, Self::ServerStreaming | Self::Streaming)
    }

    /// Returns the number that stands for this kind between peers.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Unary => 0,
            Self::ClientStreaming => 1,
            Self::ServerStreaming => 2,
            Self::Streaming => 3,
        }
    }

    /// Returns the kind that a peer's number stands for. `None` for a number of a later version.
    pub(crate) fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Unary),
            1 => Some(Self::ClientStreaming),
            2 => Some(Self::ServerStreaming),
            3 => Some(Self::Streaming),
            _ => None,
        }
    }
}

/// The effect of repeating a call (`google.protobuf.MethodOptions.idempotency_level`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotency {
    /// The `.proto` file does not specify it.
    Unknown,
    /// The method has no side effects, so a call may be repeated.
    NoSideEffects,
    /// Repeating a call has no further effect.
    Idempotent,
}
