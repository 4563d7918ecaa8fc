//! [`MethodSpec`]: what is known of a method before any call.

/// A method of a service, as its `.proto` file says it. Generated code has one constant for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodSpec {
    /// `package.Service/Method`: its name between peers.
    pub path: &'static str,
    /// Which sides stream.
    pub kind: MethodKind,
    /// Whether it may be repeated.
    pub idempotency: Idempotency,
    /// Full name of the request's message.
    pub request_type: &'static str,
    /// Full name of the response's message.
    pub response_type: &'static str,
}

impl MethodSpec {
    /// For generated code.
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
        }
    }
}

/// Which sides of a method stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MethodKind {
    /// One request, one response.
    Unary,
}

/// `google.protobuf.MethodOptions.idempotency_level`: what a repetition does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotency {
    /// The `.proto` file does not say.
    Unknown,
    /// It changes nothing, so it may be repeated.
    NoSideEffects,
    /// A repetition changes nothing more.
    Idempotent,
}
