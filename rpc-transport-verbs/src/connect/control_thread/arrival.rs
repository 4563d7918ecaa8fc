//! A client's handshake: one socket from its first byte until it is a connection or has been sent
//! the reason why it was rejected.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use rpc_core::transport::Admitted;
use rustix::event::epoll::EventFlags;

use super::preparer::Prepared;
use super::{Door, Token, is_transient};
use crate::connect::handshake::Offer;
use crate::connect::handshake::server::{self, Request, ServerHandshake};
use crate::connect::keepalive::Pulse;
use crate::connect::liveness::Line;
use crate::connect::server::{Invited, Port};
use crate::transport::mailbox::{LineEnd, LineKey, Mailbox, Notice};

/// A client in its handshake.
pub(super) struct Arrival {
    pub(super) stream: Arc<TcpStream>,
    peer: SocketAddr,
    pub(super) listener: Token,
    door: Arc<Door>,
    machine: ServerHandshake,
    /// Bytes that the socket has not accepted yet.
    outgoing: Vec<u8>,
    stage: Stage,
}

enum Stage {
    /// Waits for the client's hello.
    Arriving,
    /// Another thread creates the queue pair.
    Preparing,
    /// The queue pair is connected, and the poller knows the connection.
    Prepared(LineKey, Mailbox, Box<Pulse>),
    /// The client was rejected. The socket stays open until the client has read the reason.
    Leaving,
}

/// What to do with an arrival after handling an event.
pub(super) enum Next {
    Stay,
    Close,
    /// Create the queue pair: through this port, for the endpoints that the client offers.
    Prepare(Port, Offer, Admitted),
    /// The handshake is complete. The bytes that the client sent after it belong to the line.
    Line(Line, Vec<u8>),
}

impl Arrival {
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        listener: Token,
        door: Arc<Door>,
    ) -> Self {
        Self {
            stream: Arc::new(stream),
            peer,
            listener,
            door,
            machine: ServerHandshake::default(),
            outgoing: Vec::new(),
            stage: Stage::Arriving,
        }
    }

    /// Returns true if the socket has to be watched for writability.
    pub(super) fn is_writing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns true if the client was welcomed and only has to send `Ready`.
    pub(super) fn is_welcomed(&self) -> bool {
        matches!(self.stage, Stage::Prepared(..))
    }

    /// Returns true if the client was already rejected.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving)
    }

    pub(super) fn look_at(&mut self, flags: EventFlags) -> Next {
        if flags.contains(EventFlags::OUT) && self.write().is_err() {
            return self.refuse("the socket ended");
        }
        let mut bytes = [0; 4096];
        match (&*self.stream).read(&mut bytes) {
            Ok(0) if matches!(self.stage, Stage::Leaving) => Next::Close,
            Ok(0) => {
                self.refuse("the socket was closed in the middle of the handshake");
                Next::Close
            }
            // Continue to read: if bytes were left unread, closing the socket would send a reset,
            // and the client would lose the reason.
            Ok(_) if matches!(self.stage, Stage::Leaving) => Next::Stay,
            Ok(len) => match self.machine.handle(&bytes[..len]) {
                Ok(None) => Next::Stay,
                Ok(Some(Request::Hello(offer))) => self.admit(offer),
                Ok(Some(Request::Ready)) => self.complete(),
                Err(error) => self.refuse(&error.to_string()),
            },
            Err(error) if is_transient(&error) => Next::Stay,
            Err(error) => {
                self.refuse(&format!("the socket failed: {error}"));
                Next::Close
            }
        }
    }

    fn admit(&mut self, offer: Offer) -> Next {
        let admitted = match self.door.admission.admit(&offer.session) {
            Ok(admitted) => admitted,
            Err(refusal) => return self.refuse(&refusal.reason),
        };
        let Some(port) = self.door.ports.get(admitted.poller) else {
            let reason = format!("the server has no poller {}", admitted.poller);
            return self.refuse(&reason);
        };
        self.stage = Stage::Preparing;
        Next::Prepare(port.clone(), offer, admitted)
    }

    /// Handles the result of creating the queue pair.
    pub(super) fn prepared(&mut self, prepared: Prepared) -> Next {
        if !matches!(self.stage, Stage::Preparing) {
            // The client was rejected in the meantime.
            prepared.forget();
            return Next::Stay;
        }
        let Prepared { key, outcome } = prepared;
        let invited = match outcome {
            Ok(invited) => invited,
            Err(reason) => return self.refuse(&reason),
        };
        let Invited {
            welcome,
            mailbox,
            pulse,
        } = invited;
        match server::welcome(welcome) {
            Ok(frame) => {
                self.stage = Stage::Prepared(key, mailbox, Box::new(pulse));
                self.outgoing = frame;
                match self.write() {
                    Ok(()) => Next::Stay,
                    Err(_) => self.refuse("the socket ended"),
                }
            }
            Err(error) => {
                // The poller already knows the connection.
                let _ = mailbox.put(Notice::Ended(key, LineEnd::Gone));
                self.refuse(&format!("the server's welcome: {error}"))
            }
        }
    }

    fn complete(&mut self) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Leaving) {
            Stage::Prepared(key, mailbox, pulse) => {
                tracing::debug!(peer = %self.peer, %key, "a client has connected");
                let rest = std::mem::take(&mut self.machine).into_rest();
                let stream = Arc::clone(&self.stream);
                Next::Line(Line::new(stream, key, mailbox, *pulse), rest)
            }
            Stage::Preparing => self.refuse("it did not wait for the answer to its hello"),
            // The state machine accepts no `Ready` before the hello.
            Stage::Arriving | Stage::Leaving => Next::Close,
        }
    }

    /// Sends the reason and keeps the socket open, so the client can read the reason.
    pub(super) fn refuse(&mut self, reason: &str) -> Next {
        tracing::info!(peer = %self.peer, reason, "a client was not let in");
        if let Stage::Prepared(key, mailbox, _) = std::mem::replace(&mut self.stage, Stage::Leaving)
        {
            let _ = mailbox.put(Notice::Ended(key, LineEnd::Gone));
        }
        self.outgoing.extend(server::refuse(reason));
        match self.write() {
            Ok(()) => Next::Stay,
            Err(_) => Next::Close,
        }
    }

    /// Writes as much as the socket accepts. Shuts down the write half once a rejection is sent
    /// completely.
    fn write(&mut self) -> io::Result<()> {
        while !self.outgoing.is_empty() {
            match (&*self.stream).write(&self.outgoing) {
                Ok(len) => drop(self.outgoing.drain(..len)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if matches!(self.stage, Stage::Leaving) {
            self.stream.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }
}
