//! The TCP connections of queue pairs: who dials, and how a connection that was made elsewhere comes to
//! its queue pair.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::queue_pair::QueuePair;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::link_stream::LinkStream;
use crate::provider::soft::context::tcp_link::TcpLink;
use crate::provider::soft::process::node::domain::Domain;
use crate::provider::soft::process::tcp_port;
use crate::provider::soft::wire::hello::{Hello, LinkAddress};
use crate::record_layer::{ReadAhead, RecordLayer};
use crate::types::{Gid, ModifyError, Psn, QpNum, SoftOptions};

impl QueuePair {
    /// Dials the process of the remote queue pair, unless it is the one that dials: of two that both
    /// accept connections, the one with the lower GID and queue pair number dials.
    pub(super) fn connect_over_tcp(
        &self,
        own: Gid,
        gid: Gid,
        remote: QpNum,
        psn: Psn,
    ) -> Result<Option<Box<TcpLink>>, ModifyError> {
        let (Some(here), Some(there)) = (LinkAddress::of_gid(own), LinkAddress::of_gid(gid)) else {
            let source = io::Error::new(
                io::ErrorKind::InvalidInput,
                "its GID is not that of a context whose queue pairs are connected over TCP",
            );
            return Err(ModifyError::Unreachable {
                gid,
                action: "be dialed",
                source,
            });
        };
        if (gid, remote) == (own, self.number) {
            let pair = socketpair(
                AddressFamily::UNIX,
                SocketType::STREAM,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            );
            let fail = |source: Errno| ModifyError::Os {
                action: "make a link to itself",
                source: source.into(),
            };
            let (written, read) = pair.map_err(fail)?;
            let stream = LinkStream::ToItself { written, read };
            let link = TcpLink::new(stream, Some(psn.get()), psn.get());
            return Ok(Some(Box::new(link)));
        }
        let is_first = (own.0, self.number.0) < (gid.0, remote.0);
        if !there.can_be_dialed() || (here.can_be_dialed() && !is_first) {
            return Ok(None);
        }
        let hello = Hello {
            from: own,
            to: gid,
            from_qp_num: self.number.0,
            to_qp_num: remote.0,
            expected_psn: psn.get(),
        };
        let socket = tcp_port::dial(&hello).map_err(|source| ModifyError::Unreachable {
            gid,
            action: "be dialed",
            source,
        })?;
        let options = self.domain.enter()?.common.options;
        let stream = LinkStream::new(socket, &options);
        Ok(Some(Box::new(TcpLink::new(stream, None, psn.get()))))
    }
}

/// A queue pair that waits for the TCP connection that its peer dials. Keeps the context, and not the
/// queue pair.
#[derive(Debug)]
pub struct LinkTarget {
    domain: Arc<Domain>,
    qp_index: u32,
    number: QpNum,
}

/// A connected socket, on its way to a queue pair whose link it becomes.
#[derive(Debug)]
pub struct LinkBytes {
    socket: TcpStream,
    /// The layer, and what was read from the socket. Without a layer, nothing is read ahead: whoever
    /// reads the first bytes of a connection stops at their end.
    records: Option<(Box<dyn RecordLayer>, ReadAhead)>,
}

impl LinkBytes {
    /// A connection whose bytes travel in the records of `layer`.
    pub fn in_records(
        socket: TcpStream,
        layer: Box<dyn RecordLayer>,
        read_ahead: ReadAhead,
    ) -> Self {
        Self {
            socket,
            records: Some((layer, read_ahead)),
        }
    }

    fn into_stream(self, options: &SoftOptions) -> LinkStream {
        let socket = self.socket.into();
        match self.records {
            Some((layer, read_ahead)) => LinkStream::sealed(socket, layer, read_ahead),
            None => LinkStream::new(socket, options),
        }
    }
}

impl From<TcpStream> for LinkBytes {
    /// A connection whose bytes travel as they are.
    fn from(socket: TcpStream) -> Self {
        Self {
            socket,
            records: None,
        }
    }
}

impl LinkTarget {
    /// Hands the connection to the queue pair, which answers its peer. Returns false if the queue
    /// pair is gone or has a connection.
    ///
    /// # Errors
    ///
    /// If the socket's options cannot be set.
    pub fn attach(&self, bytes: impl Into<LinkBytes>) -> io::Result<bool> {
        let bytes = bytes.into();
        tcp_port::set_up(&bytes.socket)?;
        match self.domain.enter() {
            Ok(mut state) => {
                let stream = bytes.into_stream(&state.common.options);
                Ok(state.accept_agreed_link(self.qp_index, self.number, stream))
            }
            Err(_) => Ok(false),
        }
    }
}

impl QueuePair {
    /// Returns the target of the connection that its peer dials, if the queue pair is connected over
    /// TCP.
    pub(crate) fn link_target(&self) -> Option<LinkTarget> {
        let is_tcp = self
            .domain
            .enter()
            .is_ok_and(|state| matches!(state.queue_pairs[self.qp_index].link, Link::Tcp(_)));
        is_tcp.then(|| LinkTarget {
            domain: Arc::clone(&self.domain),
            qp_index: self.qp_index,
            number: self.number,
        })
    }

    /// Returns the number of the request of which only a part has arrived.
    pub(crate) fn arriving_message(&self) -> Option<u64> {
        let state = self.domain.enter().ok()?;
        let link = state.queue_pairs[self.qp_index].link.tcp()?;
        link.inbound.arriving_request()
    }

    /// Uses the connection that this side has dialed for the queue pair. Its first bytes, the peer's
    /// answer, have not been taken from it.
    pub(crate) fn adopt_link(&mut self, bytes: LinkBytes) -> io::Result<()> {
        tcp_port::set_up(&bytes.socket)?;
        if let Ok(mut state) = self.domain.enter() {
            let stream = bytes.into_stream(&state.common.options);
            state.adopt_agreed_link(self.qp_index, stream);
        }
        Ok(())
    }
}
