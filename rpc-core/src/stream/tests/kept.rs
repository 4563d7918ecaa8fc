//! What ended streams leave for the next ones.

use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Signals;
use crate::call_error::{CallError, Cause, Execution};
use crate::codec::LongMessage;
use crate::limits::{LengthLimit, MessageLimit};
use crate::peer_memory::memory_of_a_host;
use crate::protocol::frame::ResponseHead;
use crate::stream::batch::MessageForm;
use crate::stream::core::StreamCore;
use crate::stream::end::{ResponseBody, StreamEnd};
use crate::stream::kept::KeptCores;
use crate::stream::outbound::{PushOutcome, StreamSizes};

const SIZES: StreamSizes = StreamSizes {
    frame_room: 4096,
    inbound_window: 8192,
    outbound_window: 8192,
    coalesces: true,
    longest_message: MessageLimit::new(4096, LengthLimit::Receiver),
    is_served: false,
};

fn end() -> StreamEnd {
    StreamEnd::Failed(CallError::new(Cause::Cancelled, Execution::Answered))
}

fn attached(kept: &mut KeptCores) -> Arc<StreamCore> {
    let core = StreamCore::of_server(kept.take(), None, Some(7));
    assert!(
        core.attach(Arc::<Signals>::default(), 0, SIZES, memory_of_a_host())
            .is_none()
    );
    core.lock().begin_look();
    core
}

/// Uses a stream for all that it can do, and ends it. What has arrived is not read.
fn use_up(core: &StreamCore, len: usize) {
    core.note_arrival();
    core.begin(vec![1]);
    let mut cx = Context::from_waker(Waker::noop());
    let pushed = core.poll_push(&mut vec![5, 0, 0, 0, 1, 2, 3, 4, 5], 1, &mut cx);
    assert_eq!(pushed, Poll::Ready(PushOutcome::Queued));
    core.close();
    let mut state = core.lock();
    state.inbound.begin(&[1]);
    let received = state.inbound.receive(MessageForm::One, &vec![1; len]);
    assert_eq!(received, Ok(()));
    drop(state);
    core.cancel();
    core.end(end());
}

#[test]
fn a_stream_gets_the_memory_of_an_ended_one_and_nothing_else() {
    let mut kept = KeptCores::default();
    let first = attached(&mut kept);
    use_up(&first, 10);
    let address = Arc::as_ptr(&first);
    kept.keep(first);
    let next = attached(&mut kept);
    assert!(ptr::eq(address, &*next));
    assert!(!next.expects_lone_message());
    let mut state = next.lock();
    assert!(!state.is_cancelled() && !state.inbound.has_ended() && !state.inbound.has_begun());
    assert!(!state.inbound.is_discarded());
    assert_eq!(
        (state.outbound.queued(), state.outbound.next_frame()),
        (0, None)
    );
    assert!(
        state.outbound.may_pass(8192 - 4),
        "it is open, with its whole window"
    );
    let received = state.inbound.receive(MessageForm::Batch, &[0; 4]);
    assert_eq!(received, Ok(()));
    drop(state);
    let mut batch = Vec::new();
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(next.poll_batch(&mut batch, &mut cx), Poll::Ready(true));
    assert_eq!(batch, [0; 4]);
    assert_eq!(next.poll_batch(&mut batch, &mut cx), Poll::Pending);
}

#[test]
fn a_stream_that_the_application_holds_is_not_used_again() {
    let mut kept = KeptCores::default();
    let (held, dropped) = (attached(&mut kept), attached(&mut kept));
    for core in [&held, &dropped] {
        core.end(end());
        kept.keep(Arc::clone(core));
    }
    let address = Arc::as_ptr(&dropped);
    drop(dropped);
    assert!(kept.take().is_none(), "it is held");
    assert!(kept.take().is_some_and(|core| ptr::eq(address, &*core)));
    assert!(held.lock().inbound.has_ended());
    assert!(kept.take().is_none());
    drop(held);
    assert!(kept.take().is_some());
    assert!(kept.take().is_none());
}

#[test]
fn few_streams_are_kept_and_none_with_much_memory_or_of_another_thread() {
    let mut kept = KeptCores::default();
    let cores: Vec<_> = (0..20).map(|_| attached(&mut kept)).collect();
    for core in cores {
        core.end(end());
        kept.keep(core);
    }
    let taken = std::iter::from_fn(|| kept.take()).count();
    assert_eq!(taken, 16);

    let core = attached(&mut kept);
    let received = core.lock().inbound.receive(MessageForm::One, &[1; 600]);
    assert_eq!(received, Ok(()));
    core.end(end());
    kept.keep(core);
    assert!(kept.take().is_none(), "it has more memory than an idle one");
    let core = attached(&mut kept);
    core.end(StreamEnd::Response {
        head: ResponseHead {
            code: 0,
            metadata_len: 0,
            has_initial: false,
            pushback_us: 0,
        },
        body: ResponseBody::Long(Box::new(LongMessage {
            metadata: Box::default(),
            message: bytes::Bytes::from_static(b"long"),
            share_from: 0,
            copied_in: Arc::default(),
        })),
    });
    kept.keep(core);
    assert!(kept.take().is_none(), "nobody has taken its long response");
    let shared = StreamCore::new();
    shared.end(end());
    kept.keep(shared);
    assert!(kept.take().is_none(), "its poller may be another thread's");
}
