//! The beginning of a client's connection: its first byte says whether it is to be secured.

use super::{IncomingClient, NextAction, State};
use crate::connect::control_thread::securer::SecuringStep;
use crate::transport::security::{self, Secured, SecurityHandshake, SecurityProgress};

/// How a connection begins: with a handshake that secures it, or without.
pub(super) enum Beginning {
    /// Nothing has arrived.
    Nothing,
    /// With the handshake that secures it, which waits for further bytes.
    Securing {
        handshake: Box<dyn SecurityHandshake>,
        arrived: Vec<u8>,
        has_begun: bool,
    },
    /// With that handshake, of which another thread makes a step.
    Away { has_begun: bool },
    /// With that handshake, which has failed.
    Insecure,
    /// What arrives and is sent is for the client's handshake.
    Done,
}

impl IncomingClient {
    /// Returns true if a thread for TLS has a step of this client to make, so it waits for the server.
    pub(in super::super) fn is_being_secured(&self) -> bool {
        matches!(self.beginning, Beginning::Away { .. })
    }

    /// Handles what has arrived.
    pub(super) fn handle_bytes(&mut self, bytes: Vec<u8>) -> NextAction {
        match std::mem::replace(&mut self.beginning, Beginning::Done) {
            Beginning::Nothing => self.begin(bytes),
            Beginning::Securing {
                handshake,
                mut arrived,
                has_begun,
            } => {
                arrived.extend(bytes);
                self.beginning = Beginning::Away { has_begun };
                NextAction::Secure {
                    handshake,
                    arrived,
                    has_begun,
                }
            }
            // Only parts of records have arrived.
            Beginning::Done if bytes.is_empty() => NextAction::Wait,
            Beginning::Done => self.handle_client_bytes(&bytes),
            state @ (Beginning::Away { .. } | Beginning::Insecure) => {
                debug_assert!(false, "nothing is read then");
                self.beginning = state;
                NextAction::Wait
            }
        }
    }

    /// Handles the first bytes of the connection, which say whether it is to be secured.
    fn begin(&mut self, bytes: Vec<u8>) -> NextAction {
        match (&self.config.security, bytes[0]) {
            (Some(security), security::FIRST_BYTE) => match security.begin() {
                Ok(handshake) => {
                    self.beginning = Beginning::Away { has_begun: false };
                    NextAction::Secure {
                        handshake,
                        arrived: bytes,
                        has_begun: false,
                    }
                }
                Err(error) => {
                    self.beginning = Beginning::Insecure;
                    self.refuse(&error.to_string())
                }
            },
            (None, security::FIRST_BYTE) => self.refuse(
                "the client speaks TLS, and the server's device has none: call `with_server_tls` on it",
            ),
            _ if !self.config.takes_plain => self.refuse(
                "the server takes connections with TLS only: call `with_client_tls` on the client's device",
            ),
            _ => self.handle_client_bytes(&bytes),
        }
    }

    /// Handles a step of the handshake that secures the connection.
    pub(in super::super) fn secured(&mut self, step: SecuringStep) -> NextAction {
        let SecuringStep {
            progress,
            arrived,
            to_send,
        } = step;
        if matches!(self.state, State::Rejected) {
            self.beginning = Beginning::Insecure;
            return NextAction::Wait;
        }
        let sent = self.stream.write(&to_send);
        let had_begun = matches!(self.beginning, Beginning::Away { has_begun: true });
        let has_begun = had_begun || !to_send.is_empty();
        match progress {
            Err(error) => {
                self.beginning = Beginning::Insecure;
                self.refuse(&error.to_string())
            }
            Ok(_) if sent.is_err() => {
                self.beginning = Beginning::Insecure;
                self.give_up("the socket ended");
                NextAction::Close
            }
            Ok(SecurityProgress::Waits(_)) if arrived.len() > security::MAX_WAITING => {
                self.beginning = Beginning::Insecure;
                self.refuse("it sent more than a handshake of TLS needs")
            }
            Ok(SecurityProgress::Waits(handshake)) => {
                self.beginning = Beginning::Securing {
                    handshake,
                    arrived,
                    has_begun,
                };
                NextAction::Wait
            }
            Ok(SecurityProgress::Done(secured)) => {
                let Secured { layer, certificate } = secured;
                self.beginning = Beginning::Done;
                self.certificate = certificate;
                self.stream.secure(layer, arrived);
                // What has arrived with the end of the handshake comes without another event.
                self.receive()
            }
        }
    }
}
