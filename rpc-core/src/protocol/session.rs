//! What the cores of both sides tell each other in the handshake, inside the transport's own.
//!
//! Source: `proto/session.proto`; these are its messages. Fields are only ever added, so that old
//! and new sides live together; [`VERSION`] changes when an old side could misread a frame.

use std::collections::HashMap;

use prost::Message;

use super::frame::CallId;
use crate::method::MethodSpec;
use crate::transport::Refusal;

/// Version of the frames ([`crate::frame`]) and of the rules of credits.
pub const VERSION: u32 = 1;

/// How many calls a connection may have under way, given the wish for so many: at least one, and no
/// more than ids can tell apart.
pub(crate) fn calls_told_apart(wanted: u32) -> u32 {
    wanted.clamp(1, CallId::MAX_INDEX)
}

/// From the client.
#[derive(Clone, PartialEq, Message)]
pub struct ClientSession {
    /// Version of the frames that the client speaks.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Calls that the client would like to have under way at a time.
    #[prost(uint32, tag = "2")]
    pub max_in_flight: u32,
}

/// From the server.
#[derive(Clone, PartialEq, Message)]
pub struct ServerSession {
    /// Version of the frames that the server speaks.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Calls that may be under way at a time: the smaller of both sides' wishes.
    #[prost(uint32, tag = "2")]
    pub max_in_flight: u32,
    /// Requests that the client may send before it hears of further credits.
    #[prost(uint32, tag = "3")]
    pub initial_credits: u32,
    /// What the server can be asked to do, and by which numbers on this connection.
    #[prost(message, repeated, tag = "4")]
    pub methods: Vec<NumberedMethod>,
}

/// A method with its number.
#[derive(Clone, PartialEq, Message)]
pub struct NumberedMethod {
    /// `package.Service/Method`.
    #[prost(string, tag = "1")]
    pub path: String,
    /// Its number on this connection.
    #[prost(uint32, tag = "2")]
    pub number: u32,
}

impl ClientSession {
    /// Reads and checks what a client sent.
    ///
    /// # Errors
    ///
    /// [`Refusal`] with the sentence that the client is told.
    pub fn accept(bytes: &[u8]) -> Result<Self, Refusal> {
        let session = Self::decode(bytes).map_err(|error| Refusal {
            reason: format!("the client's session cannot be decoded: {error}"),
        })?;
        if session.version != VERSION {
            return Err(Refusal {
                reason: format!(
                    "the client speaks version {} of the frames, this server speaks {VERSION}: upgrade the older one",
                    session.version
                ),
            });
        }
        Ok(session)
    }
}

impl ServerSession {
    /// What a server that serves `methods`, each with its number, offers.
    #[must_use]
    pub fn offer(
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

    /// Reads and checks what a server sent.
    ///
    /// # Errors
    ///
    /// One sentence on what is wrong with it.
    pub fn accept(bytes: &[u8]) -> Result<Self, String> {
        let session = Self::decode(bytes)
            .map_err(|error| format!("its session cannot be decoded: {error}"))?;
        if session.version != VERSION {
            return Err(format!(
                "its frames are of version {}, not {VERSION}",
                session.version
            ));
        }
        if session.max_in_flight == 0 || session.initial_credits == 0 {
            return Err("it grants no calls at all".to_owned());
        }
        Ok(session)
    }

    /// The numbers by name. A number that no header could carry is left out: its method is one
    /// that this side cannot call.
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
