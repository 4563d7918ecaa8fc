//! Messages that are alone: which ones are tried, and which ones may go.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::{Bytes, Signals, limit_of, now};
use crate::peer_memory::memory_of_a_host;
use crate::stream::core::StreamCore;
use crate::stream::outbound::{Outbound, PushOutcome, StreamSizes};
use crate::stream::reader::ReaderWake;
use crate::stream::request::request_pump;
use crate::stream::sender::{Sender, sender};
use crate::stream::turns::{LocalTurns, LoneMessage};

const SIZES: StreamSizes = StreamSizes {
    frame_room: 64,
    inbound_window: 100,
    outbound_window: 100,
    coalesces: true,
    longest_message: limit_of(64),
    is_served: false,
};

thread_local! {
    /// Whether a poller sends what it is asked to send, and what it has sent.
    static SENDS: Cell<bool> = const { Cell::new(true) };
    static SENT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn send(_: u64, message: &mut LoneMessage<'_>) -> bool {
    let mut bytes = vec![0; message.len];
    let is_sent = SENDS.get() && (message.encode)(&mut bytes);
    if is_sent {
        SENT.with_borrow_mut(|sent| sent.push(bytes));
    }
    is_sent
}

/// A stream of a client whose sender is linked.
struct Linked {
    core: Arc<StreamCore>,
    sender: Sender<Vec<u8>>,
    _pump: Box<dyn std::any::Any>,
}

impl Linked {
    fn new() -> Self {
        let core = StreamCore::of_local_poller(
            None,
            Some(LocalTurns {
                poller: 0,
                take: |_| false,
                send,
            }),
        );
        assert!(
            core.attach(Arc::<Signals>::default(), 0, SIZES, memory_of_a_host())
                .is_none()
        );
        let (sender, messages) = sender();
        let pump = request_pump::<Bytes, _, _>(Arc::clone(&core), messages);
        Self {
            core,
            sender,
            _pump: Box::new(pump),
        }
    }

    /// Sends a message. Returns what has gone alone.
    fn send(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        now(self.sender.send(message.to_vec())).unwrap();
        SENT.take()
    }

    fn queued(&self) -> usize {
        self.core.lock().outbound.queued()
    }
}

#[test]
fn the_first_message_after_each_that_arrives_is_tried() {
    let mut stream = Linked::new();
    assert!(stream.send(b"opens").is_empty());
    assert_eq!(stream.queued(), 9);
    stream.core.note_arrival();
    assert_eq!(stream.send(b"answers"), [b"answers"]);
    assert!(stream.send(b"follows").is_empty());
    assert_eq!(stream.queued(), 9 + 11);
    // One that cannot go is queued, and is not tried again.
    SENDS.set(false);
    stream.core.note_arrival();
    assert!(stream.send(b"waits").is_empty());
    assert_eq!(stream.queued(), 9 + 11 + 9);
    SENDS.set(true);
    assert!(stream.send(b"behind").is_empty());
    assert_eq!(stream.queued(), 9 + 11 + 9 + 10);
}

#[test]
fn a_message_that_is_too_long_is_not_tried() {
    let mut stream = Linked::new();
    stream.core.note_arrival();
    assert!(now(stream.sender.send(vec![1; 65])).is_err());
    assert_eq!(SENT.take(), Vec::<Vec<u8>>::new());
}

fn outbound() -> Outbound {
    let mut outbound = Outbound::default();
    assert!(outbound.open(SIZES, memory_of_a_host()).is_none());
    outbound
}

fn push(outbound: &mut Outbound, len: u8, count: u32) {
    let mut batch = Vec::new();
    for _ in 0..count {
        batch.extend([len, 0, 0, 0]);
        batch.resize(batch.len() + usize::from(len), 7);
    }
    assert_eq!(outbound.push(&mut batch, count), PushOutcome::Queued);
}

#[test]
fn a_message_may_pass_if_nothing_waits_and_the_window_suffices() {
    let mut idle = outbound();
    assert!(idle.may_pass(96));
    assert!(!idle.may_pass(97), "the window is smaller");
    idle.pass(90);
    assert!(idle.may_pass(2) && !idle.may_pass(3), "it was used");
    assert!(idle.grant(1) && idle.may_pass(3));

    let mut waits = outbound();
    push(&mut waits, 1, 1);
    assert!(!waits.may_pass(1), "a message waits");
    let mut begins = outbound();
    begins.begin(vec![1]);
    assert!(!begins.may_pass(1), "metadata waits");
    let mut closed = outbound();
    assert!(closed.close());
    assert!(!closed.may_pass(1), "the stream is closed");
    let mut ended = outbound();
    assert!(ended.end().is_none());
    assert!(!ended.may_pass(1), "the call has ended");
}

#[test]
fn a_reader_is_woken_once_and_keeps_the_waker_of_its_own_poller() {
    let core = StreamCore::new();
    // Not `Waker::noop`: it may have one table of functions in each crate, and then wakes no other one.
    let waker = || Waker::from(Arc::new(super::Flag::default()));
    let (own, other) = (&waker(), waker());
    let wait = |waker: &Waker| {
        let mut cx = std::task::Context::from_waker(waker);
        assert!(matches!(
            core.poll_batch(&mut Vec::new(), &mut cx),
            Poll::Pending
        ));
    };
    let wake = || core.lock().inbound.reader.wake_by(Some(own));
    assert!(wake().is_none(), "nobody waits");
    wait(own);
    assert!(matches!(wake(), Some(ReaderWake::Own)));
    assert!(wake().is_none());
    wait(&other);
    assert!(matches!(wake(), Some(ReaderWake::Other(waker)) if waker.will_wake(&other)));
    wait(own);
    let wake = core.lock().inbound.reader.wake_by(None);
    assert!(matches!(wake, Some(ReaderWake::Other(_))));
}
