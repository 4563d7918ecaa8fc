//! Loom models of cold rings, announcements and sleep.

use loom::sync::Arc;
use loom::thread;

use super::super::announcements::{Announced, Announcements, Announcer};
use super::super::sync::AtomicU64;
use super::*;

/// The announcements of these models: more than are made at once.
type Page = Announcements<4>;

/// A ring's sender, with a process of its own.
struct Sender<'a> {
    shared: &'a Sleeping,
    announcer: Announcer,
    has_unannounced: bool,
}

impl Sender<'_> {
    fn send(&mut self, number: u64) {
        self.commit(number);
        self.ring_doorbell();
    }

    fn commit(&mut self, number: u64) {
        let Sleeping {
            message,
            mark,
            page,
            ..
        } = self.shared;
        message.store(number, Ordering::Release);
        self.has_unannounced |= !announce_if_armed(mark, || self.announcer.announce(page, 5));
    }

    fn ring_doorbell(&mut self) {
        let Sleeping {
            mark,
            note,
            page,
            file,
            ..
        } = self.shared;
        let are_announced = !std::mem::take(&mut self.has_unannounced);
        let announce = || self.announcer.announce(page, 5);
        if ring_doorbell(mark, note, are_announced, announce) == ReceiverState::Asleep {
            file.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Takes what is announced now. Returns true if there was anything.
fn take(announced: &mut Announced, page: &Page) -> bool {
    std::iter::from_fn(|| announced.next(page)).count() > 0
}

/// A receiver makes a ring cold while a sender sends: at least one of them notices the other.
#[test]
fn loom_cold_ring_loses_no_message() {
    loom::model(|| {
        let shared = Sleeping::new();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.sender().send(1))
        };
        shared.mark.arm();
        let seen_directly = shared.message.load(Ordering::Acquire) == 1;
        sender.join().unwrap();
        let told = take(&mut Announced::default(), &shared.page);
        assert!(seen_directly || told, "the message lies there for ever");
    });
}

/// A ring that was cold goes hot, is looked at and goes cold again while a sender, who has found it cold before
/// its fence, sends: the second look sees the message, or its announcement is there.
#[test]
fn loom_early_look_at_the_mark_decides_nothing() {
    loom::model(|| {
        let shared = Sleeping::new();
        shared.mark.arm();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.sender().send(1))
        };
        let mut announced = Announced::default();
        take(&mut announced, &shared.page);
        shared.mark.disarm();
        shared.message.load(Ordering::Acquire);
        shared.mark.arm();
        let is_seen = shared.message.load(Ordering::Acquire) == 1;
        sender.join().unwrap();
        let is_told = take(&mut announced, &shared.page);
        assert!(is_seen || is_told, "the message lies there for ever");
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
    page: Page,
    note: SleepNote,
    file: AtomicU64,
}

impl Sleeping {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            message: AtomicU64::new(0),
            mark: Mark::new(),
            page: Page::new(),
            note: SleepNote::new(),
            file: AtomicU64::new(0),
        })
    }

    fn sender(&self) -> Sender<'_> {
        Sender {
            shared: self,
            announcer: Announcer::default(),
            has_unannounced: false,
        }
    }

    /// Executes A3 and A4 in the order of the code: returns the newest message that this look
    /// found, and leaves the ring cold.
    fn peek_and_cool(&self, announced: &mut Announced) -> u64 {
        if take(announced, &self.page) {
            self.mark.disarm();
        }
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
            thread::spawn(move || shared.sender().send(1))
        };
        shared.note.fall_asleep();
        let seen = shared.peek_and_cool(&mut Announced::default()) == 1;
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
            thread::spawn(move || shared.sender().send(1))
        };
        shared.note.fall_asleep();
        let seen = take(&mut Announced::default(), &shared.page);
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
        let mut announced = Announced::default();
        shared.note.fall_asleep();
        shared.peek_and_cool(&mut announced);
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut sender = shared.sender();
                sender.send(1);
                sender.send(2);
            })
        };
        // The file is emptied first; only then does the receiver look.
        let was_woken = shared.file.swap(0, Ordering::Relaxed) > 0;
        let seen = shared.peek_and_cool(&mut announced);
        sender.join().unwrap();
        let woken = shared.file.load(Ordering::Relaxed) > 0;
        assert!(
            seen == 2 || woken,
            "message 2 is slept through (seen {seen}, woken before: {was_woken})"
        );
    });
}

/// A context with two peers falls asleep while both send: each peer has a page of its own, and the
/// note is shared. Each message has been seen, or a file is written.
#[test]
fn loom_sleeper_is_woken_by_each_of_two_peers() {
    loom::model(|| {
        let note = Arc::new(SleepNote::new());
        let peers: Vec<_> = (0..2)
            .map(|_| {
                let mark = Mark::new();
                mark.arm();
                Arc::new((mark, Page::new(), AtomicU64::new(0)))
            })
            .collect();
        let senders: Vec<_> = peers
            .iter()
            .map(|peer| {
                let (peer, note) = (Arc::clone(peer), Arc::clone(&note));
                thread::spawn(move || {
                    let (mark, page, file) = &*peer;
                    let announce = || Announcer::default().announce(page, 5);
                    let is_announced = announce_if_armed(mark, announce);
                    if ring_doorbell(mark, &note, is_announced, announce) == ReceiverState::Asleep {
                        file.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        note.fall_asleep();
        let look = |peer: &Arc<(Mark, Page, AtomicU64)>| take(&mut Announced::default(), &peer.1);
        let seen: Vec<_> = peers.iter().map(look).collect();
        for sender in senders {
            sender.join().unwrap();
        }
        for (peer, seen) in peers.iter().zip(seen) {
            let woken = peer.2.load(Ordering::Relaxed) > 0;
            assert!(seen || woken, "a message is slept through");
        }
    });
}

/// A sender writes two messages and rings later, once, while the receiver makes the ring cold: the
/// receiver has seen both messages, or the ring is announced.
#[test]
fn loom_one_doorbell_announces_all_messages_before_it() {
    loom::model(|| {
        let shared = Sleeping::new();
        let sender = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut sender = shared.sender();
                sender.commit(1);
                sender.send(2);
            })
        };
        // The receiver polls, and finds the ring empty or the first message; then it stops.
        shared.message.load(Ordering::Acquire);
        shared.mark.arm();
        let seen = shared.message.load(Ordering::Acquire);
        sender.join().unwrap();
        let is_told = take(&mut Announced::default(), &shared.page);
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
                let mut sender = shared.sender();
                sender.send(1);
                sender.commit(2);
                sender.send(3);
            })
        };
        let mut announced = Announced::default();
        shared.note.fall_asleep();
        let mut seen = shared.peek_and_cool(&mut announced);
        if shared.file.swap(0, Ordering::Relaxed) > 0 {
            seen = shared.peek_and_cool(&mut announced);
        }
        sender.join().unwrap();
        let is_woken = shared.file.load(Ordering::Relaxed) > 0;
        assert!(seen == 3 || is_woken, "a message is slept through");
    });
}
