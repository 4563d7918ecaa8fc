//! Claims: how a process proves that a GID is its own to a process that knows it by another way,
//! such as a socket over TCP.
//!
//! A GID is no secret: it is the name of a socket that every user of the host can list. So a
//! process that is offered a GID makes a random number and has the other side send it back over a
//! link of that GID. The kernel says which process dialed the link, and a link's GID names that
//! process. Until the number has come, the offered GID is not used. Nor is it dialed afterwards, as
//! long as the [`AwaitedClaim`] lives: the process that claimed it has made a link, and a process
//! that does not accept links could make this one wait.
//!
//! A stranger that a process connects to can pass on a demand of this process to that one, and
//! offer its GID here. So the process sends the number of the queue pair that it has offered with
//! its random number, and that must be the queue pair that was offered here. Then a stranger can
//! have this process connect to no queue pair but the one that was offered to the stranger.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::types::{Gid, QpNum};

/// A random number that only the two sides know.
pub(crate) type Nonce = [u8; 16];

/// Whether the process that sent the number is the one of the expected GID, and offers the expected
/// queue pair.
pub(crate) type OnClaim = Box<dyn FnOnce(bool) + Send>;

/// The claims that this process waits for. Whoever waits limits their number.
#[derive(Clone, Default)]
pub(crate) struct Claims(Arc<Mutex<Tables>>);

#[derive(Default)]
struct Tables {
    expected: HashMap<Nonce, Expected>,
    /// The GIDs of the [`AwaitedClaim`]s, each with their number.
    offered: HashMap<Gid, u32>,
}

struct Expected {
    gid: Gid,
    qp_num: QpNum,
    on_claim: OnClaim,
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The numbers are secret.
        f.debug_struct("Claims").finish_non_exhaustive()
    }
}

/// A claim that this process waits for, or has received, until this is dropped.
#[derive(Debug)]
pub struct AwaitedClaim {
    claims: Claims,
    own_gid: Gid,
    gid: Gid,
    nonce: Nonce,
}

impl AwaitedClaim {
    /// Returns the GID of this process, on whose link the claim has to come.
    pub fn own_gid(&self) -> Gid {
        self.own_gid
    }

    /// Returns the number that has to come.
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }
}

impl Drop for AwaitedClaim {
    fn drop(&mut self) {
        let mut tables = self.claims.tables();
        tables.expected.remove(&self.nonce);
        if let Entry::Occupied(mut offered) = tables.offered.entry(self.gid) {
            *offered.get_mut() -= 1;
            if *offered.get() == 0 {
                offered.remove();
            }
        }
    }
}

impl Claims {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Each change leaves the maps consistent, so a panic under the lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a GID was offered to this process, which therefore does not dial it.
    pub(crate) fn is_offered(&self, gid: Gid) -> bool {
        self.tables().offered.contains_key(&gid)
    }

    /// Waits for the process of `gid` to send a number, which this makes up, to the process of
    /// `own_gid`, with the number of its queue pair `qp_num`. `on_claim` runs on the engine's
    /// thread, once, and must not wait for anything.
    pub(crate) fn expect(
        &self,
        own_gid: Gid,
        gid: Gid,
        qp_num: QpNum,
        on_claim: OnClaim,
    ) -> rustix::io::Result<AwaitedClaim> {
        let mut nonce = Nonce::default();
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        let mut tables = self.tables();
        let expected = Expected {
            gid,
            qp_num,
            on_claim,
        };
        tables.expected.insert(nonce, expected);
        *tables.offered.entry(gid).or_default() += 1;
        drop(tables);
        Ok(AwaitedClaim {
            claims: self.clone(),
            own_gid,
            gid,
            nonce,
        })
    }

    /// Handles a number that the process of `gid` has sent with that of a queue pair. Ignores a
    /// number that is not expected any more, or never was: guessing one is hopeless.
    pub(crate) fn claim(&self, gid: Gid, nonce: Nonce, qp_num: QpNum) {
        let expected = self.tables().expected.remove(&nonce);
        if let Some(expected) = expected {
            (expected.on_claim)(gid == expected.gid && qp_num == expected.qp_num);
        }
    }
}
