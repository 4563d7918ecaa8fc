//! [`Client`]: what the gateway knows of the client at the other end of one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use verbline::server::Forwarded;

use crate::memory::MessageMemory;
use crate::stalls::Stalls;
use crate::unread::Unread;

/// A client that resets this many calls early, and more than were answered, is taken for an attacker:
/// each such call costs it a few bytes, and the server a start and an end. What counts is the whole life of
/// the connection. Envoy has the same rule.
pub(crate) const MOST_EARLY_RESETS: u64 = 500;

/// A call that the client resets within this time, before its response has begun, was reset early.
const EARLY: Duration = Duration::from_secs(1);

/// The client of one connection.
#[derive(Debug)]
pub(crate) struct Client {
    /// Whom the server is told that a call is for.
    forwarded: Forwarded,
    memory: MessageMemory,
    unread: Arc<Unread>,
    stalls: Arc<Stalls>,
    answered: AtomicU64,
    early_resets: AtomicU64,
    attacked: Notify,
}

impl Client {
    pub(crate) fn new(
        forwarded: Forwarded,
        unread: Arc<Unread>,
        memory: &MessageMemory,
    ) -> Arc<Self> {
        Arc::new(Self {
            forwarded,
            memory: memory.of_connection(),
            unread,
            stalls: Arc::default(),
            answered: AtomicU64::new(0),
            early_resets: AtomicU64::new(0),
            attacked: Notify::new(),
        })
    }

    pub(crate) fn forwarded(&self) -> &Forwarded {
        &self.forwarded
    }

    pub(crate) fn memory(&self) -> &MessageMemory {
        &self.memory
    }

    pub(crate) fn unread(&self) -> &Arc<Unread> {
        &self.unread
    }

    pub(crate) fn stalls(&self) -> &Arc<Stalls> {
        &self.stalls
    }

    /// Watches how a call ends, until its response begins.
    pub(crate) fn begin(self: &Arc<Self>) -> Begun {
        Begun {
            client: Arc::clone(self),
            at: Instant::now(),
            is_over: false,
        }
    }

    /// Waits until the client's resets are an attack.
    pub(crate) async fn attacks(&self) {
        self.attacked.notified().await;
    }

    fn reset_early(&self) {
        // The counters publish nothing else.
        let resets = 1 + self.early_resets.fetch_add(1, Ordering::Relaxed);
        if resets >= MOST_EARLY_RESETS && resets > self.answered.load(Ordering::Relaxed) {
            self.attacked.notify_one();
        }
    }
}

/// A call that has no response yet. Dropped before, it was reset.
pub(crate) struct Begun {
    client: Arc<Client>,
    at: Instant,
    is_over: bool,
}

impl Begun {
    /// The server has answered the call, or had its time for it.
    pub(crate) fn answered(mut self) {
        self.is_over = true;
        self.client.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// The gateway has refused the call. It has cost the server nothing, and says nothing about the client's
    /// resets: an attacker could hide them behind calls of which it knows that they fail at once.
    pub(crate) fn refused(mut self) {
        self.is_over = true;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.is_over && self.at.elapsed() < EARLY {
            self.client.reset_early();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn client() -> Arc<Client> {
        let address = std::net::SocketAddr::from(([192, 0, 2, 1], 1));
        let memory = MessageMemory::new(1 << 20, 1 << 10);
        Client::new(Forwarded::new(address), Arc::default(), &memory)
    }

    fn is_attack(client: &Client) -> bool {
        let attacks = pin!(client.attacks());
        attacks
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    }

    #[test]
    fn resets_are_an_attack_once_they_are_many_and_more_than_answers() {
        for answers in [0, MOST_EARLY_RESETS] {
            let client = client();
            (0..answers).for_each(|_| client.begin().answered());
            for reset in 1..MOST_EARLY_RESETS.max(answers + 1) {
                drop(client.begin());
                client.begin().refused();
                assert!(!is_attack(&client), "after {reset} resets");
            }
            drop(client.begin());
            assert!(is_attack(&client), "{answers} answers");
        }
    }
}
