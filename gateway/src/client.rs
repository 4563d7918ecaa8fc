//! [`Client`]: what the gateway knows of the client at the other end of one connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use verbline::message::bytes::Bytes;
use verbline::server::Forwarded;

use crate::memory::MessageMemory;

/// A client that resets this many calls early, and more than half of all, is taken for an attacker:
/// each such call costs it a few bytes, and the server a start and an end. Envoy has the same rule.
const MOST_EARLY_RESETS: u64 = 500;

/// A call that the client resets within this time, before its response has begun, was reset early.
const EARLY: Duration = Duration::from_secs(1);

/// The client of one connection.
#[derive(Debug)]
pub(crate) struct Client {
    /// Whom the server is told that a call is for.
    forwarded: Forwarded,
    memory: MessageMemory,
    calls: AtomicU64,
    early_resets: AtomicU64,
    /// Long messages of responses that the client has not taken, by number, and since when they wait.
    untaken: Arc<Mutex<Untaken>>,
}

#[derive(Debug, Default)]
struct Untaken {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

impl Client {
    pub(crate) fn new(forwarded: Forwarded, memory: &MessageMemory) -> Arc<Self> {
        Arc::new(Self {
            forwarded,
            memory: memory.of_connection(),
            calls: AtomicU64::new(0),
            early_resets: AtomicU64::new(0),
            untaken: Arc::default(),
        })
    }

    pub(crate) fn forwarded(&self) -> &Forwarded {
        &self.forwarded
    }

    pub(crate) fn memory(&self) -> &MessageMemory {
        &self.memory
    }

    /// Counts a call, until its response begins.
    pub(crate) fn begin(self: &Arc<Self>) -> Begun {
        // The counters publish nothing else.
        self.calls.fetch_add(1, Ordering::Relaxed);
        Begun {
            client: Arc::clone(self),
            at: Instant::now(),
            is_answered: false,
        }
    }

    /// Returns true if the client's resets are an attack.
    pub(crate) fn resets_too_often(&self) -> bool {
        let resets = self.early_resets.load(Ordering::Relaxed);
        resets >= MOST_EARLY_RESETS && resets > self.calls.load(Ordering::Relaxed) / 2
    }

    /// Watches a long message until it has been written to the client's socket, which drops it.
    pub(crate) fn watch(&self, message: Bytes) -> Bytes {
        let mut untaken = lock(&self.untaken);
        let number = untaken.next;
        untaken.next += 1;
        untaken.since.insert(number, Instant::now());
        drop(untaken);
        Bytes::from_owner(Watched {
            message,
            number,
            untaken: Arc::clone(&self.untaken),
        })
    }

    /// Returns true if a message has waited for the client for this long.
    pub(crate) fn has_stalled_for(&self, time: Duration) -> bool {
        let untaken = lock(&self.untaken);
        let oldest = untaken.since.first_key_value();
        oldest.is_some_and(|(_, since)| since.elapsed() >= time)
    }
}

fn lock(untaken: &Mutex<Untaken>) -> MutexGuard<'_, Untaken> {
    untaken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that has no response yet. Dropped before, it was reset.
pub(crate) struct Begun {
    client: Arc<Client>,
    at: Instant,
    is_answered: bool,
}

impl Begun {
    pub(crate) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_answered && self.at.elapsed() < EARLY {
            self.client.early_resets.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Watched {
    message: Bytes,
    number: u64,
    untaken: Arc<Mutex<Untaken>>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        lock(&self.untaken).since.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Arc<Client> {
        let address = std::net::SocketAddr::from(([192, 0, 2, 1], 1));
        Client::new(
            Forwarded::new(address),
            &MessageMemory::new(1 << 20, 1 << 10),
        )
    }

    #[test]
    fn a_client_stalls_while_it_does_not_take_a_message() {
        let client = client();
        assert!(!client.has_stalled_for(Duration::ZERO));
        let message = client.watch(Bytes::from_static(b"abc"));
        assert_eq!(message, "abc");
        assert!(client.has_stalled_for(Duration::ZERO));
        assert!(!client.has_stalled_for(Duration::from_secs(60)));
        let rest = message.slice(2..);
        drop(message);
        assert!(client.has_stalled_for(Duration::ZERO));
        drop(rest);
        assert!(!client.has_stalled_for(Duration::ZERO));
    }

    #[test]
    fn resets_are_an_attack_if_they_are_many_and_most() {
        let client = client();
        for _ in 0..MOST_EARLY_RESETS {
            client.begin().answered();
        }
        for reset in 0..2 * MOST_EARLY_RESETS {
            let is_attack = reset > MOST_EARLY_RESETS;
            assert_eq!(client.resets_too_often(), is_attack, "after {reset} resets");
            drop(client.begin());
        }
    }
}
