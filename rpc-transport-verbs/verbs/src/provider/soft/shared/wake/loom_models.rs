//! Loom models of cold rings, ready bits and sleep.

use loom::sync::Arc;
use loom::thread;

use super::*;

struct Shared {
    message: AtomicU64,
    mark: Mark,
    ready: ReadyBits<1, 1>,
}

/// A receiver makes a ring cold while a sender sends: at least one of them notices the other.
#[test]
fn loom_cold_ring_loses_no_message() {
    loom::model(|| {
        let shared = Arc::new(Shared {
            message: AtomicU64::new(0),
            mark: Mark::new(),
            ready: ReadyBits::new(),
        });
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.message.store(1, Ordering::Release);
                if shared.mark.is_armed_after_commit() {
                    shared.ready.set(5);
                }
            })
        };
        shared.mark.arm();
        let seen_directly = shared.message.load(Ordering::Acquire) == 1;
        sender.join().unwrap();
        let mut told = false;
        shared.ready.take(64, |index| told |= index == 5);
        assert!(seen_directly || told, "the message lies there for ever");
    });
}

/// The engine attends to a context that no thread polls and leaves it again while a one-sided
/// request arrives: the engine sees the request or is woken for it.
#[test]
fn loom_unattended_context_loses_no_request() {
    loom::model(|| {
        let shared = Sleeping::new();
        shared.note.set_unattended();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.message.store(1, Ordering::Release);
                if shared.note.is_unattended_after_commit() {
                    shared.file.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        // The engine was woken for an earlier request.
        shared.note.set_attended();
        shared.message.load(Ordering::Acquire);
        shared.note.set_unattended();
        let is_seen = shared.message.load(Ordering::Acquire) == 1;
        sender.join().unwrap();
        let is_called = shared.file.load(Ordering::Relaxed) > 0;
        assert!(is_seen || is_called, "the request waits for the next tick");
    });
}

/// State shared by a sleeper and a sender; `file` stands for the wake socket.
struct Sleeping {
    message: AtomicU64,
    mark: Mark,
    ready: ReadyBits<1, 1>,
    note: SleepNote,
    file: AtomicU64,
}

impl Sleeping {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            message: AtomicU64::new(0),
            mark: Mark::new(),
            ready: ReadyBits::new(),
            note: SleepNote::new(),
            file: AtomicU64::new(0),
        })
    }

    fn send(&self, number: u64) {
        self.message.store(number, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        if self.mark.is_armed_after_commit() {
            self.ready.set(5);
            if self.note.is_asleep_after_bit() {
                self.file.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Executes A3 and A4 in the order of the code: returns the newest message that this look
    /// found, and leaves the ring cold.
    fn peek_and_cool(&self) -> u64 {
        self.ready.take(64, |_| self.mark.disarm());
        self.mark.arm();
        self.message.load(Ordering::Acquire)
    }
}

/// A receiver falls asleep while a sender sends: it has seen the message, or its file is
/// written.
#[test]
fn loom_sleeper_is_woken_for_every_message() {
    loom::model(|| {
        let shared = Sleeping::new();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(1))
        };
        shared.note.fall_asleep();
        let seen = shared.peek_and_cool() == 1;
        sender.join().unwrap();
        let woken = shared.file.load(Ordering::Relaxed) > 0;
        assert!(seen || woken, "the message is slept through");
    });
}

/// As above, with a ring that has long been cold: its mark orders nothing; only A2 and B2 do.
#[test]
fn loom_sleeper_is_woken_for_every_message_of_a_cold_ring() {
    loom::model(|| {
        let shared = Sleeping::new();
        shared.mark.arm();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.send(1))
        };
        shared.note.fall_asleep();
        let mut seen = false;
        shared.ready.take(64, |_| seen = true);
        sender.join().unwrap();
        let woken = shared.file.load(Ordering::Relaxed) > 0;
        assert!(seen || woken, "the message is slept through");
    });
}

/// A sleeping receiver is woken by the first message, looks, and goes back to sleep while the
/// second is sent.
#[test]
fn loom_sleeper_that_was_woken_sleeps_again_without_losing_a_message() {
    loom::model(|| {
        let shared = Sleeping::new();
        shared.note.fall_asleep();
        shared.peek_and_cool();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.send(1);
                shared.send(2);
            })
        };
        // The file is emptied first; only then does the receiver look.
        let was_woken = shared.file.swap(0, Ordering::Relaxed) > 0;
        let seen = shared.peek_and_cool();
        sender.join().unwrap();
        let woken = shared.file.load(Ordering::Relaxed) > 0;
        assert!(
            seen == 2 || woken,
            "message 2 is slept through (seen {seen}, woken before: {was_woken})"
        );
    });
}

/// Bits that are set while a word is being taken are found then or at the next look, in the order in
/// which a poll takes them: one summary bit, then its word.
#[test]
fn loom_ready_bit_is_not_lost_while_a_word_is_taken() {
    loom::model(|| {
        let ready = Arc::new(ReadyBits::<1, 1>::new());
        let sender = {
            let ready = Arc::clone(&ready);
            thread::spawn(move || {
                ready.set(1);
                ready.set(2);
            })
        };
        let mut taken = 0_u64;
        ready.take_word(64, |index| taken |= 1 << index);
        sender.join().unwrap();
        ready.take_word(64, |index| taken |= 1 << index);
        assert_eq!(taken, 0b110);
    });
}

/// A context with two peers falls asleep while both send: each peer has ready bits of its own, and
/// the note is shared. Each message has been seen, or a file is written.
#[test]
fn loom_sleeper_is_woken_by_each_of_two_peers() {
    loom::model(|| {
        let note = Arc::new(SleepNote::new());
        let peers: Vec<_> = (0..2)
            .map(|_| Arc::new((ReadyBits::<1, 1>::new(), AtomicU64::new(0))))
            .collect();
        let senders: Vec<_> = peers
            .iter()
            .map(|peer| {
                let (peer, note) = (Arc::clone(peer), Arc::clone(&note));
                thread::spawn(move || {
                    peer.0.set(5);
                    if note.is_asleep_after_bit() {
                        peer.1.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        note.fall_asleep();
        let mut seen = [false; 2];
        for (peer, seen) in peers.iter().zip(&mut seen) {
            peer.0.take(64, |_| *seen = true);
        }
        for sender in senders {
            sender.join().unwrap();
        }
        for (peer, seen) in peers.iter().zip(seen) {
            let woken = peer.1.load(Ordering::Relaxed) > 0;
            assert!(seen || woken, "a message is slept through");
        }
    });
}

/// Bits that are set while bits are being taken are found then or at the next take.
#[test]
fn loom_ready_bit_is_not_lost_while_bits_are_taken() {
    loom::model(|| {
        let ready = Arc::new(ReadyBits::<1, 1>::new());
        let sender = {
            let ready = Arc::clone(&ready);
            thread::spawn(move || {
                ready.set(1);
                ready.set(2);
            })
        };
        let mut taken = 0_u64;
        ready.take(64, |index| taken |= 1 << index);
        sender.join().unwrap();
        ready.take(64, |index| taken |= 1 << index);
        assert_eq!(taken, 0b110);
    });
}

/// A sender writes two messages and rings later, once, while the receiver makes the ring cold: the
/// receiver has seen both messages, or its bit is set.
#[test]
fn loom_one_doorbell_announces_all_messages_before_it() {
    loom::model(|| {
        let shared = Sleeping::new();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.message.store(1, Ordering::Release);
                shared.message.store(2, Ordering::Release);
                shared.ring();
            })
        };
        // The receiver polls, and finds the ring empty or the first message; then it stops.
        shared.message.load(Ordering::Acquire);
        shared.mark.arm();
        let seen = shared.message.load(Ordering::Acquire);
        sender.join().unwrap();
        let mut is_told = false;
        shared.ready.take(64, |index| is_told |= index == 5);
        assert!(seen == 2 || is_told, "a message lies there for ever");
    });
}

/// A sender writes a message and rings later. The receiver falls asleep in between, or has seen the
/// message, makes its ring cold again and falls asleep: it has seen the message, or its file is
/// written.
#[test]
fn loom_sleeper_is_woken_by_a_later_doorbell() {
    loom::model(|| {
        let shared = Sleeping::new();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.message.store(1, Ordering::Release);
                shared.ring();
                shared.message.store(2, Ordering::Release);
                shared.message.store(3, Ordering::Release);
                shared.ring();
            })
        };
        shared.note.fall_asleep();
        let mut seen = shared.peek_and_cool();
        if shared.file.swap(0, Ordering::Relaxed) > 0 {
            seen = shared.peek_and_cool();
        }
        sender.join().unwrap();
        let is_woken = shared.file.load(Ordering::Relaxed) > 0;
        assert!(seen == 3 || is_woken, "a message is slept through");
    });
}
