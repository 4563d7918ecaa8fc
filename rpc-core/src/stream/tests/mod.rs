//! Tests of streams: a driver that moves frames between two [`StreamCore`]s, and tasks that are
//! polled only when they have been woken.

mod alone;
mod ends;
mod flow;
mod kept;
mod long;
mod loops;
mod queue_memory;
mod sources;

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use prost::EncodeError;

use super::batch::{Decode, MessageForm};
use super::core::{SignalQueue, StreamCore};
use super::end::{ResponseBody, StreamEnd};
use super::outbound::StreamSizes;
use crate::codec::LongMessage;
use crate::codec::{Codec, DecodeError, LengthChanged};
use crate::limits::{LengthLimit, MessageLimit};
use crate::peer_memory::memory_of_a_host;
use crate::protocol::frame::ResponseHead;

/// The codec of messages that are bytes. A message that starts with 0xff does not decode, and one
/// that starts with 0xfe panics when it is encoded.
pub(super) struct Bytes;

impl Codec<Vec<u8>> for Bytes {
    fn encoded_len(message: &Vec<u8>) -> usize {
        message.len()
    }

    fn encode(message: &Vec<u8>, out: &mut [u8]) -> Result<(), LengthChanged> {
        assert_ne!(message.first(), Some(&0xfe), "a message that panics");
        out.copy_from_slice(message);
        Ok(())
    }

    fn encode_to(message: &Vec<u8>, out: &mut impl bytes::BufMut) -> Result<(), EncodeError> {
        out.put_slice(message);
        Ok(())
    }

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        if bytes.first() == Some(&0xff) {
            // A field number of 0.
            <() as prost::Message>::decode(&[0][..])?;
        }
        Ok(bytes.to_vec())
    }
}

pub(super) const DECODE: Decode<Vec<u8>> = Decode::with::<Bytes>();

/// The streams that have signalled.
#[derive(Debug, Default)]
pub(super) struct Signals {
    queued: Mutex<Vec<u32>>,
    pub(super) count: AtomicUsize,
}

impl SignalQueue for Signals {
    fn push_stream(&self, index: u32) {
        self.count.fetch_add(1, SeqCst);
        self.queued.lock().unwrap().push(index);
    }
}

/// Polls a future that completes at once.
pub(super) fn now<R>(future: impl Future<Output = R>) -> R {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits"),
    }
}

/// One task, which is polled when it has been woken.
pub(super) struct Task<'a> {
    future: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    pub(super) flag: Arc<Flag>,
}

#[derive(Default)]
pub(super) struct Flag {
    is_woken: AtomicBool,
    pub(super) wakes: AtomicUsize,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, SeqCst);
        self.wakes.fetch_add(1, SeqCst);
    }
}

impl<'a> Task<'a> {
    pub(super) fn new(future: impl Future<Output = ()> + 'a) -> Self {
        let flag = Arc::new(Flag {
            is_woken: AtomicBool::new(true),
            wakes: AtomicUsize::new(0),
        });
        Self {
            future: Some(Box::pin(future)),
            flag,
        }
    }

    /// Polls the task if it has been woken. Returns true if it was.
    pub(super) fn run(&mut self) -> bool {
        let Some(future) = &mut self.future else {
            return false;
        };
        if !self.flag.is_woken.swap(false, SeqCst) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.flag));
        if future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            self.future = None;
        }
        true
    }

    pub(super) fn is_done(&self) -> bool {
        self.future.is_none()
    }
}

/// A driver of both ends of a call. End 0 is the client's.
pub(super) struct Wire {
    pub(super) ends: [Arc<StreamCore>; 2],
    pub(super) signals: Arc<Signals>,
    sizes: StreamSizes,
    has_work: [bool; 2],
    /// Message frames that each end has sent.
    pub(super) frames: [usize; 2],
    /// Half-closes that the client has sent.
    pub(super) closes: usize,
    /// Long messages of which the first frame has arrived, with the end that receives them.
    pub(super) under_way: Vec<(usize, u32, bytes::Bytes)>,
    /// The number of the next long message.
    next_long: u32,
}

/// Returns a limit of the receiver's.
pub(super) const fn limit_of(bytes: usize) -> MessageLimit {
    MessageLimit::new(bytes, LengthLimit::Receiver)
}

impl Wire {
    pub(super) fn new(frame_room: usize, window: u32, coalesces: bool) -> Self {
        Self {
            ends: [StreamCore::new(), StreamCore::new()],
            signals: Arc::default(),
            sizes: StreamSizes {
                frame_room,
                inbound_window: window,
                outbound_window: window,
                coalesces,
                longest_message: limit_of(frame_room),
                is_served: false,
            },
            has_work: [true; 2],
            frames: [0; 2],
            closes: 0,
            under_way: Vec::new(),
            next_long: 0,
        }
    }

    /// Lets messages be as long as this. The window has to suffice for them.
    pub(super) fn with_long_messages(mut self, longest: usize) -> Self {
        self.sizes.longest_message = limit_of(longest);
        self
    }

    /// Completes a long message, by its index in `under_way`.
    pub(super) fn complete(&mut self, index: usize) {
        let (to, number, message) = self.under_way.remove(index);
        let long = LongMessage {
            metadata: Box::default(),
            message,
            share_from: usize::MAX,
            copied_in: Arc::default(),
        };
        let mut state = self.ends[to].lock();
        let left = state.inbound.complete_long(number, long);
        let reader = state.inbound.reader.wake();
        drop((state, left));
        reader.into_iter().for_each(Waker::wake);
    }

    pub(super) fn attach(&mut self) {
        for (index, end) in self.ends.iter().enumerate() {
            let queue = Arc::clone(&self.signals) as Arc<dyn SignalQueue>;
            if let Some(waker) = end.attach(queue, index as u32, self.sizes, memory_of_a_host()) {
                waker.wake();
            }
        }
    }

    /// Moves at most `frames` frames from each end that has work. Returns false if there was none.
    pub(super) fn run(&mut self, frames: usize) -> bool {
        for index in self.signals.queued.lock().unwrap().drain(..) {
            self.has_work[index as usize] = true;
        }
        let mut did_work = false;
        for from in 0..2 {
            if std::mem::take(&mut self.has_work[from]) {
                did_work = true;
                self.look(from, frames);
            }
        }
        did_work
    }

    fn look(&mut self, from: usize, frames: usize) {
        self.ends[from].lock().begin_look();
        for _ in 0..frames {
            if !self.send_frame(from) {
                return;
            }
        }
        self.has_work[from] = true;
    }

    /// Sends a message frame, or a grant. Returns false if there was nothing to send.
    fn send_frame(&mut self, from: usize) -> bool {
        let mut state = self.ends[from].lock();
        let (frame, body, grant);
        let mut long = None;
        match state.outbound.next_frame() {
            Some(next) if next.is_long => {
                let (next, mut message) = state.outbound.take_long().expect("it is long");
                let len = message.len();
                long = Some(message.split_to(len));
                grant = state.inbound.take_grant();
                (frame, body) = (Some(next), Vec::new());
            }
            Some(next) => {
                let mut bytes = vec![0; next.metadata_len + next.message_len];
                state.outbound.write_frame(&next, &mut bytes);
                grant = state.inbound.take_grant();
                frame = Some(next);
                body = bytes;
            }
            None => {
                let Some(due) = state.inbound.take_due_grant() else {
                    return false;
                };
                (frame, body, grant) = (None, Vec::new(), due);
            }
        }
        let sender = state.outbound.after_sending();
        drop(state);
        sender.into_iter().for_each(Waker::wake);

        let to = 1 - from;
        let mut state = self.ends[to].lock();
        if grant > 0 {
            assert!(state.outbound.grant(grant));
            self.has_work[to] = true;
        }
        if let Some(next) = frame {
            assert!(
                body.len() <= self.sizes.frame_room,
                "a frame that is too long"
            );
            self.frames[from] += 1;
            let (metadata, messages) = body.split_at(next.metadata_len);
            if next.metadata_len > 0 || !state.inbound.has_begun() {
                state.inbound.begin(metadata);
            }
            if let Some(message) = long {
                let number = self.next_long;
                self.next_long += 1;
                let received = state.inbound.receive_long(number);
                if received.expect("the window suffices") {
                    self.under_way.push((to, number, message));
                }
            } else {
                let received = state.inbound.receive(next.form, messages);
                received.expect("the window suffices");
            }
            if next.is_last {
                self.closes += usize::from(from == 0);
                state.inbound.end(StreamEnd::HalfClosed);
            }
        }
        // Of messages that were discarded.
        self.has_work[to] |= state.inbound.owes_grant();
        let reader = state.inbound.reader.wake();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        true
    }

    /// Ends the client's side with a response of the server.
    pub(super) fn respond(&self, code: u16, metadata_len: u16, has_initial: bool, body: &[u8]) {
        let head = ResponseHead {
            code,
            metadata_len,
            has_initial,
            pushback_us: 0,
        };
        let body = body.to_vec();
        let body = ResponseBody::Short(body);
        let wakers = self.ends[0].lock().end(StreamEnd::Response { head, body });
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Lets a peer that breaks the rules send a frame to an end.
    pub(super) fn inject(&self, to: usize, form: MessageForm, body: &[u8]) {
        let mut state = self.ends[to].lock();
        state
            .inbound
            .receive(form, body)
            .expect("the window suffices");
        let reader = state.inbound.reader.wake();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Runs the wire and the tasks until nothing has work.
    pub(super) fn settle(&mut self, tasks: &mut [Task<'_>]) {
        for _ in 0..1_000_000 {
            let mut did_work = self.run(usize::MAX);
            for task in tasks.iter_mut() {
                did_work |= task.run();
            }
            if !did_work {
                return;
            }
        }
        panic!("the tasks never settle");
    }
}

/// Is pending once.
pub(super) async fn pause() {
    let mut is_first = true;
    std::future::poll_fn(|cx| {
        if !std::mem::take(&mut is_first) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
