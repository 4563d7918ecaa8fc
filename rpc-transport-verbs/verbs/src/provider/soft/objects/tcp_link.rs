//! The TCP connections of queue pairs: who dials, and how a connection that was made elsewhere comes to
//! its queue pair.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::queue_pair::QueuePair;
use crate::provider::soft::context::link::Link;
use crate::provider::soft::context::tcp_link::TcpLink;
use crate::provider::soft::process::node::domain::Domain;
use crate::provider::soft::process::tcp_port;
use crate::provider::soft::wire::hello::{Hello, LinkAddress};
use crate::types::{Gid, ModifyError, Psn, QpNum};

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
            let link = TcpLink::to_itself(pair.map_err(fail)?, psn.get());
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
        Ok(Some(Box::new(TcpLink::new(socket, None, psn.get()))))
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

impl LinkTarget {
    /// Hands the connection to the queue pair, which answers its peer. Returns false if the queue
    /// pair is gone or has a connection.
    ///
    /// # Errors
    ///
    /// If the socket's options cannot be set.
    pub fn attach(&self, socket: TcpStream) -> io::Result<bool> {
        tcp_port::set_up(&socket)?;
        match self.domain.enter() {
            Ok(mut state) => {
                Ok(state.accept_agreed_link(self.qp_index, self.number, socket.into()))
            }
            Err(_) => Ok(false),
        }
    }
}

impl QueuePair {
    /// Returns the target of the connection that its peer dials, if the queue pair is connected over
    /// TCP.
    pub(crate) fn link_target(&self) -> Option<LinkTarget> {
        let is_tcp = self.domain.enter().is_ok_and(|state| {
            matches!(state.queue_pairs[self.qp_index as usize].link, Link::Tcp(_))
        });
        is_tcp.then(|| LinkTarget {
            domain: Arc::clone(&self.domain),
            qp_index: self.qp_index,
            number: self.number,
        })
    }

    /// Returns the number of the request of which only a part has arrived.
    pub(crate) fn arriving_message(&self) -> Option<u64> {
        let state = self.domain.enter().ok()?;
        let link = state.queue_pairs[self.qp_index as usize].link.tcp()?;
        link.inbound.arriving_request()
    }

    /// Uses the connection that this side has dialed for the queue pair. Its first bytes, the peer's
    /// answer, have not been read.
    pub(crate) fn adopt_link(&mut self, socket: TcpStream) -> io::Result<()> {
        tcp_port::set_up(&socket)?;
        if let Ok(mut state) = self.domain.enter() {
            state.adopt_agreed_link(self.qp_index, socket.into());
        }
        Ok(())
    }
}
