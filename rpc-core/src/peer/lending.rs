//! The references to a [`Peer`] that a connection lends to its requests: counting one up and down costs a
//! call two locked instructions.
//!
//! ```text
//! connection: spare ──lend──▶ Request ──dropped──▶ variable of the thread ──take back──▶ spare
//! ```

use std::cell::Cell;
use std::sync::Arc;

use super::Peer;

/// The peer of a connection, with a second reference for the next request.
#[derive(Debug)]
pub(crate) struct LendablePeer {
    peer: Arc<Peer>,
    spare: Option<Arc<Peer>>,
}

/// The reference that a request has. When it is dropped, the thread keeps it until the connection takes it
/// back, or until another one is dropped.
#[derive(Debug)]
pub(crate) struct LentPeer(Option<Arc<Peer>>);

thread_local! {
    /// The reference that the thread dropped last.
    static DROPPED: Cell<Option<Arc<Peer>>> = const { Cell::new(None) };
}

impl LendablePeer {
    pub(crate) fn new(peer: Arc<Peer>) -> Self {
        Self { peer, spare: None }
    }

    pub(crate) fn get(&self) -> &Peer {
        &self.peer
    }

    /// Returns a reference for a request.
    #[inline]
    pub(crate) fn lend(&mut self) -> Arc<Peer> {
        match self.spare.take() {
            Some(spare) => spare,
            None => Arc::clone(&self.peer),
        }
    }

    /// Takes back the reference that this thread dropped last, if it is one to this peer.
    #[inline(always)]
    pub(crate) fn take_back(&mut self) {
        // A thread that ends has no such variable any more.
        if let Ok(Some(dropped)) = DROPPED.try_with(Cell::take)
            // Another one is that of a handler which kept its request for longer.
            && Arc::ptr_eq(&dropped, &self.peer)
        {
            self.spare = Some(dropped);
        }
    }
}

impl LentPeer {
    pub(crate) const NONE: Self = Self(None);

    #[inline]
    pub(crate) fn new(peer: Option<Arc<Peer>>) -> Self {
        Self(peer)
    }

    pub(crate) fn get(&self) -> Option<&Peer> {
        self.0.as_deref()
    }
}

impl Drop for LentPeer {
    #[inline]
    fn drop(&mut self) {
        if let Some(peer) = self.0.take() {
            // A thread that ends has no such variable any more: it counts down.
            let _ = DROPPED.try_with(|dropped| dropped.set(Some(peer)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread;

    use super::*;

    fn lendable(port: u16) -> LendablePeer {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        LendablePeer::new(Arc::new(Peer::new(address).with_device("soft")))
    }

    fn lend(connection: &mut LendablePeer) -> LentPeer {
        LentPeer::new(Some(connection.lend()))
    }

    #[test]
    fn a_reference_that_was_dropped_is_lent_again() {
        let mut connection = lendable(1);
        let first = lend(&mut connection);
        assert_eq!(first.get(), Some(connection.get()));
        drop(first);
        connection.take_back();
        assert!(connection.spare.is_some());
        let second = lend(&mut connection);
        assert!(connection.spare.is_none());
        assert_eq!(Arc::strong_count(&connection.peer), 2);
        drop(second);
        connection.take_back();
        connection.take_back();
        assert_eq!(Arc::strong_count(&connection.peer), 2);
    }

    #[test]
    fn a_connection_takes_no_other_s_reference() {
        let (mut one, mut other) = (lendable(1), lendable(1));
        drop(lend(&mut one));
        other.take_back();
        assert!(other.spare.is_none());
        // Nobody has it any more.
        assert_eq!(Arc::strong_count(&one.peer), 1);
        let (kept, dropped) = (lend(&mut one), lend(&mut one));
        drop(dropped);
        one.take_back();
        assert_eq!(Arc::strong_count(&one.peer), 3);
        drop(kept);
    }

    #[test]
    fn a_thread_that_ends_keeps_no_reference() {
        let mut connection = lendable(1);
        let lent = lend(&mut connection);
        thread::spawn(move || drop(lent)).join().unwrap();
        assert_eq!(Arc::strong_count(&connection.peer), 1);
        connection.take_back();
        assert!(connection.spare.is_none());
    }
}
