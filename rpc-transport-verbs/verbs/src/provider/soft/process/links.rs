//! The links of this process, by the GID of the other process and by the engine's event token.
//!
//! The lock guards the maps only: no thread does any I/O, or waits, while it holds it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dial::Attempt;
use super::gid::process_of;
use super::greeting::LinkError;
use super::outbound::Link;
use crate::provider::soft::context::peer::Peer;
use crate::types::Gid;

#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<Maps>);

#[derive(Debug, Default)]
struct Maps {
    /// The link on which this process sends to another one.
    by_gid: HashMap<Gid, Slot>,
    /// All links. There are two to a process if both sides dialed at the same time: each side
    /// sends on one of them, and receives on both.
    by_token: BTreeMap<u64, Arc<Link>>,
}

#[derive(Debug)]
enum Slot {
    /// A thread is dialing.
    Dialing(Arc<Attempt>),
    Open(Arc<Link>),
}

/// How a thread gets the link to a process.
pub(crate) enum Access<'a> {
    Open(Arc<Link>),
    /// Another thread is dialing: wait for its result.
    Wait(Arc<Attempt>),
    /// This thread has to dial.
    Dial(Dialing<'a>),
}

/// The duty to dial a process. Other threads wait for its end, however it ends.
pub(crate) struct Dialing<'a> {
    links: &'a Links,
    gid: Gid,
    attempt: Arc<Attempt>,
    is_finished: bool,
}

impl Links {
    fn maps(&self) -> MutexGuard<'_, Maps> {
        // Each change leaves the maps consistent, so a panic under the lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the link to a process, or how to get it.
    pub(crate) fn access(&self, gid: Gid) -> Access<'_> {
        match self.maps().by_gid.entry(gid) {
            Entry::Occupied(entry) => match entry.get() {
                Slot::Open(link) => Access::Open(Arc::clone(link)),
                Slot::Dialing(attempt) => Access::Wait(Arc::clone(attempt)),
            },
            Entry::Vacant(entry) => {
                let attempt = Arc::new(Attempt::default());
                entry.insert(Slot::Dialing(Arc::clone(&attempt)));
                Access::Dial(Dialing {
                    links: self,
                    gid,
                    attempt,
                    is_finished: false,
                })
            }
        }
    }

    /// Returns a link to a process, without dialing or waiting.
    pub(crate) fn open_link(&self, gid: Gid) -> Option<Arc<Link>> {
        let maps = self.maps();
        if let Some(Slot::Open(link)) = maps.by_gid.get(&gid) {
            return Some(Arc::clone(link));
        }
        let mut links = maps.by_token.values();
        links.find(|link| link.peer.gid == gid).cloned()
    }

    /// Adds a link that another process dialed. This process sends on it if it has no other one.
    /// Returns false if the peer has ended meanwhile.
    pub(crate) fn add_incoming(&self, link: &Arc<Link>) -> bool {
        let mut maps = self.maps();
        if link.peer.is_gone() {
            return false;
        }
        maps.by_token.insert(link.token, Arc::clone(link));
        maps.by_gid
            .entry(link.peer.gid)
            .or_insert_with(|| Slot::Open(Arc::clone(link)));
        true
    }

    /// Removes the links of a peer and returns them.
    pub(crate) fn remove(&self, peer: &Arc<Peer>) -> Vec<Arc<Link>> {
        let mut maps = self.maps();
        if let Entry::Occupied(entry) = maps.by_gid.entry(peer.gid)
            && let Slot::Open(link) = entry.get()
            && Arc::ptr_eq(&link.peer, peer)
        {
            entry.remove();
        }
        let links = maps.by_token.values();
        let links = links.filter(|link| Arc::ptr_eq(&link.peer, peer));
        let links: Vec<_> = links.cloned().collect();
        maps.by_token
            .retain(|_, link| !Arc::ptr_eq(&link.peer, peer));
        links
    }

    /// Returns the number of links that other processes have dialed: in all, and those of the
    /// process that `gid` names.
    pub(crate) fn count_incoming(&self, gid: Gid) -> (usize, usize) {
        let maps = self.maps();
        let incoming = maps.by_token.values().filter(|link| link.is_incoming);
        let process = process_of(gid);
        incoming.fold((0, 0), |(all, of_process), link| {
            let is_of_process = process_of(link.peer.gid) == process;
            (all + 1, of_process + usize::from(is_of_process))
        })
    }

    pub(crate) fn of_token(&self, token: u64) -> Option<Arc<Link>> {
        self.maps().by_token.get(&token).cloned()
    }

    /// Returns all links to a process.
    pub(crate) fn of_gid(&self, gid: Gid) -> Vec<Arc<Link>> {
        let maps = self.maps();
        let links = maps.by_token.values();
        links.filter(|link| link.peer.gid == gid).cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Link>> {
        self.maps().by_token.values().cloned().collect()
    }
}

impl Dialing<'_> {
    /// Ends the attempt. Returns the link that this process sends on: the peer may have dialed
    /// meanwhile.
    pub(crate) fn finish(
        mut self,
        result: Result<Arc<Link>, LinkError>,
    ) -> Result<Arc<Link>, LinkError> {
        self.end(result)
    }

    fn end(&mut self, result: Result<Arc<Link>, LinkError>) -> Result<Arc<Link>, LinkError> {
        self.is_finished = true;
        let mut maps = self.links.maps();
        // Under the lock: whoever ends the peer later removes the link from the maps.
        let result = result.and_then(|link| match link.peer.is_gone() {
            false => Ok(link),
            true => Err(LinkError::Gone),
        });
        let result = result.or_else(|error| {
            let of_gid = |link: &&Arc<Link>| link.peer.gid == self.gid;
            maps.by_token.values().find(of_gid).cloned().ok_or(error)
        });
        match &result {
            Ok(link) => {
                maps.by_token.insert(link.token, Arc::clone(link));
                maps.by_gid.insert(self.gid, Slot::Open(Arc::clone(link)));
            }
            Err(_) => drop(maps.by_gid.remove(&self.gid)),
        }
        drop(maps);
        self.attempt.finish(result.clone());
        result
    }
}

impl Drop for Dialing<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = self.end(Err(LinkError::Abandoned));
        }
    }
}
