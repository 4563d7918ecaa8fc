//! The session parameters that both sides exchange in the handshake, carried inside the transport's
//! own handshake messages.
//!
//! These types are the messages of `proto/session.proto`. Fields are only ever added, so that old
//! and new peers can interoperate; [`VERSION`] changes when an old peer could misread a frame.
//!
//! The server's parameters contain its method table: the name and the number of each method. The
//! client looks up a method by name when the method is first called. If the server lacks a method,
//! only the calls of that method fail.

use std::collections::HashMap;

use prost::Message;

use super::frame::CallId;
use crate::method::MethodSpec;
use crate::transport::Refusal;

/// Version of the frame layout ([`crate::frame`]) and of the credit rules.
pub const VERSION: u32 = 1;

/// Clamps the wanted number of calls in flight on a connection: at least one, and no more than call
/// ids can distinguish.
pub(crate) fn clamp_in_flight(wanted: u32) -> u32 {
    wanted.clamp(1, CallId::MAX_INDEX)
}

/// The client's session parameters.
#[derive(Clone, PartialEq, Message)]
pub struct ClientSession {
    /// Version of the frame layout that the client uses.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Calls that the client wants to have in flight at a time.
    #[prost(uint32, tag = "2")]
    pub max_in_flight: u32,
}

/// The server's session parameters.
#[derive(Clone, PartialEq, Message)]
pub struct ServerSession {
    /// Version of the frame layout that the server uses.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Calls that may be in flight at a time: the smaller of both sides' values.
    #[prost(uint32, tag = "2")]
    pub max_in_flight: u32,
    /// Requests that the client may send before it receives further credits.
    #[prost(uint32, tag = "3")]
    pub initial_credits: u32,
    /// The methods that the server implements, each with its number on this connection.
    #[prost(message, repeated, tag = "4")]
    pub methods: Vec<NumberedMethod>,
}

/// A method with its number.
#[derive(Clone, PartialEq, Message)]
pub struct NumberedMethod {
    /// `package.Service/Method`: the method's name between peers.
    #[prost(string, tag = "1")]
    pub path: String,
    /// The method's number on this connection.
    #[prost(uint32, tag = "2")]
    pub number: u32,
}

impl ClientSession {
    /// Decodes and validates a client's parameters.
    ///
    /// # Errors
    ///
    /// Returns a [`Refusal`] with the sentence to send to the client, if the parameters do not
    /// decode or the version differs.
    pub fn accept(bytes: &[u8]) -> Result<Self, Refusal> {
        let session = Self::decode(bytes).map_err(|error| Refusal {
            reason: format!("cannot decode the client's session parameters: {error}"),
        })?;
        if session.version != VERSION {
            return Err(Refusal {
                reason: format!(
                    "the client uses version {} of the frame layout, this server uses version {VERSION}: upgrade the older side",
                    session.version
                ),
            });
        }
        Ok(session)
    }
}

impl ServerSession {
    /// Creates the parameters of a server that implements `methods`, each with its number.
    #[must_use]
    pub fn new(
        methods: &[(u16, &'static MethodSpec)],
        max_in_flight: u32,
        initial_credits: u32,
    ) -> Self {
        let methods = methods.iter().map(|&(number, spec)| NumberedMethod {
            path: spec.path.to_owned(),
            number: number.into(),
        });
        Self {
            version: VERSION,
            max_in_flight,
            initial_credits,
            methods: methods.collect(),
        }
    }

    /// Decodes and validates a server's parameters.
    ///
    /// # Errors
    ///
    /// Returns a sentence that describes the problem, if the parameters do not decode, the version
    /// differs, or the server permits no calls.
    pub fn accept(bytes: &[u8]) -> Result<Self, String> {
        let session = Self::decode(bytes)
            .map_err(|error| format!("cannot decode its session parameters: {error}"))?;
        if session.version != VERSION {
            return Err(format!(
                "it uses version {} of the frame layout, this side uses version {VERSION}: upgrade the older side",
                session.version
            ));
        }
        if session.max_in_flight == 0 || session.initial_credits == 0 {
            return Err("it permits no calls".to_owned());
        }
        Ok(session)
    }

    /// Returns the method numbers by path. A number that does not fit in a frame header is left
    /// out, so this side cannot call its method.
    #[must_use]
    pub fn numbers(&self) -> HashMap<String, u16> {
        let number = |method: &NumberedMethod| u16::try_from(method.number).ok();
        self.methods
            .iter()
            .filter_map(|method| Some((method.path.clone(), number(method)?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_is_refused_in_a_sentence() {
        let old = ClientSession {
            version: 0,
            max_in_flight: 1,
        };
        let refusal = ClientSession::accept(&old.encode_to_vec()).unwrap_err();
        assert!(refusal.reason.contains("version 0"), "{refusal}");
        assert!(ClientSession::accept(&[0xff]).is_err());
        let server = ServerSession {
            version: VERSION,
            max_in_flight: 0,
            initial_credits: 1,
            methods: vec![],
        };
        assert!(ServerSession::accept(&server.encode_to_vec()).is_err());
    }
}
