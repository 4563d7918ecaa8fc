//! Sockets that this process has accepted and that have not been greeted: their number and their
//! time are limited.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::greeting::GREETING_TIME;
use super::link::LinkSocket;

/// Maximum number of sockets that have not been greeted. A dialer greets at once after it has
/// connected, so more than a few at a time mean that something is wrong with the dialers.
pub(crate) const MAX_NEWCOMERS: usize = 64;

/// Pause after an accept that failed, most likely for want of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Returns what to do about an accept that failed for want of files, for the log.
pub(crate) fn limit_of_files(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error().map(Errno::from_raw_os_error)? {
        Errno::MFILE => Some("raise the limit of files of this process (`ulimit -n`)"),
        Errno::NFILE => Some("raise the limit of files of this machine (sysctl fs.file-max)"),
        _ => None,
    }
}

/// A socket that has not been greeted.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) socket: LinkSocket,
    pub(crate) pid: u32,
    pub(crate) since: Instant,
}

/// The sockets that have not been greeted, by the engine's event token. Later ones have higher
/// tokens.
#[derive(Debug, Default)]
pub(crate) struct Newcomers(BTreeMap<u64, Newcomer>);

impl Newcomers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, token: u64) -> Option<&Newcomer> {
        self.0.get(&token)
    }

    pub(crate) fn remove(&mut self, token: u64) -> Option<Newcomer> {
        self.0.remove(&token)
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn tokens(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }

    /// Adds a socket. If there are too many afterwards, removes and returns one: the oldest of the
    /// process that has most.
    pub(crate) fn add(&mut self, token: u64, newcomer: Newcomer) -> Option<Newcomer> {
        self.0.insert(token, newcomer);
        if self.0.len() <= MAX_NEWCOMERS {
            return None;
        }
        let mut counts = HashMap::new();
        for newcomer in self.0.values() {
            *counts.entry(newcomer.pid).or_insert(0_usize) += 1;
        }
        let most = counts.values().copied().max().unwrap_or(0);
        // The first in the order of tokens is the oldest.
        let oldest = self.0.iter().find(|(_, one)| counts[&one.pid] == most);
        let token = oldest.map(|(token, _)| *token)?;
        self.0.remove(&token)
    }

    /// Removes the sockets whose time is over, and returns them.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<Newcomer> {
        let is_late =
            |newcomer: &Newcomer| now.saturating_duration_since(newcomer.since) >= GREETING_TIME;
        let late: Vec<_> = self.0.iter().filter(|(_, one)| is_late(one)).collect();
        let late: Vec<_> = late.into_iter().map(|(token, _)| *token).collect();
        late.iter()
            .filter_map(|token| self.0.remove(token))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::tests::pair;
    use super::*;

    fn newcomer(pid: u32, since: Instant) -> Newcomer {
        Newcomer {
            socket: pair().0,
            pid,
            since,
        }
    }

    #[test]
    fn the_oldest_of_the_process_that_has_most_makes_room() {
        let now = Instant::now();
        let mut newcomers = Newcomers::default();
        // The oldest of all is of a process that has few.
        assert!(newcomers.add(0, newcomer(7, now)).is_none());
        assert!(newcomers.add(1, newcomer(7, now)).is_none());
        for token in 2..MAX_NEWCOMERS as u64 {
            assert!(newcomers.add(token, newcomer(9, now)).is_none());
        }
        let removed = newcomers.add(100, newcomer(8, now)).unwrap();
        assert_eq!(removed.pid, 9);
        assert!(newcomers.get(2).is_none(), "the oldest of process 9");
        assert!(newcomers.get(0).is_some());
        assert!(newcomers.get(100).is_some());
    }

    #[test]
    fn a_socket_that_is_not_greeted_in_time_is_removed() {
        let start = Instant::now();
        let mut newcomers = Newcomers::default();
        newcomers.add(1, newcomer(7, start));
        newcomers.add(2, newcomer(8, start + GREETING_TIME / 2));
        assert!(newcomers.expire(start + GREETING_TIME / 2).is_empty());
        let late = newcomers.expire(start + GREETING_TIME);
        assert_eq!(late.iter().map(|one| one.pid).collect::<Vec<_>>(), [7]);
        assert_eq!(newcomers.tokens(), [2]);
    }
}
