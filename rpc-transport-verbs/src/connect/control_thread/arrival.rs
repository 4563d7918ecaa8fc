//! A client on its way in: one socket from its first byte until it is a connection, or has been told
//! why not.

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

/// A client on its way in.
pub(super) struct Arrival {
    pub(super) stream: Arc<TcpStream>,
    peer: SocketAddr,
    pub(super) listener: Token,
    door: Arc<Door>,
    machine: ServerHandshake,
    /// Written, but not yet taken by the socket.
    outgoing: Vec<u8>,
    stage: Stage,
}

enum Stage {
    /// Its hello has not come.
    Arriving,
    /// Its queue pair is being made, on another thread.
    Preparing,
    /// Its queue pair is prepared, and the poller knows of it.
    Prepared(LineKey, Mailbox, Box<Pulse>),
    /// It was refused; the socket stays until it has read why.
    Leaving,
}

/// What is to become of a source after it has been looked at.
pub(super) enum Next {
    Stay,
    Close,
    /// Its queue pair is to be made: for this port, towards what the client offers.
    Prepare(Port, Offer, Admitted),
    /// The handshake is complete. What the client sent behind it is the line's.
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

    /// Whether the socket is to be looked at when it can be written to.
    pub(super) fn is_writing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether it was let in, and has only to say that it is ready.
    pub(super) fn is_welcomed(&self) -> bool {
        matches!(self.stage, Stage::Prepared(..))
    }

    /// Whether it has been told why not already.
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
            // Read on, so that its last bytes do not turn our closing into a reset, which would
            // take the refusal away from it.
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

    /// Its queue pair has been made, or why not.
    pub(super) fn prepared(&mut self, prepared: Prepared) -> Next {
        if !matches!(self.stage, Stage::Preparing) {
            // It was refused meanwhile.
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
                // The poller has been told of it.
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
            // The machine lets no `Ready` through before the hello.
            Stage::Arriving | Stage::Leaving => Next::Close,
        }
    }

    /// Says why, and lets the socket end by itself so that the client can read it.
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

    /// Writes what the socket takes. When a refusal is out, the writing half is closed.
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
