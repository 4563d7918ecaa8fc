//! The flow of messages: order, windows, coalescing and wakes, with random sizes and schedules.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use proptest::prelude::*;

use super::{Bytes, DECODE, Task, Wire, pause};
use crate::message::Response;
use crate::status::Status;
use crate::stream::from_fn::stream;
use crate::stream::pump::Pump;
use crate::stream::request::request_pump;
use crate::stream::responses::Responses;
use crate::stream::sender::sender;
use crate::stream::streaming::Streaming;

/// The way in which the messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A handler's stream.
    Responses,
    /// A client's stream.
    Pump,
    /// A client's sender that is linked to the call.
    Sender,
    /// A client's sender behind another stream.
    UnlinkedSender,
}

#[derive(Clone, Debug)]
struct Scenario {
    source: Source,
    frame_room: usize,
    window: u32,
    coalesces: bool,
    /// Lengths of the messages, in units of a part of a frame.
    lens: Vec<usize>,
    /// Pauses before messages, of the sender.
    pauses: Vec<bool>,
    /// Pauses before messages, of the reader.
    reader_pauses: Vec<bool>,
    /// Who runs next.
    schedule: Vec<u8>,
    attached_after: usize,
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let source = prop_oneof![
        Just(Source::Responses),
        Just(Source::Pump),
        Just(Source::Sender),
        Just(Source::UnlinkedSender),
    ];
    (source, 16usize..200, 0u32..400, any::<bool>(), 0usize..6).prop_flat_map(
        |(source, frame_room, more, coalesces, attached_after)| {
            let len = prop_oneof![4 => 0..=frame_room / 8, 1 => 0..=frame_room];
            let bools = || prop::collection::vec(any::<bool>(), 1..16);
            (
                prop::collection::vec(len, 0..120),
                bools(),
                bools(),
                prop::collection::vec(any::<u8>(), 1..64),
            )
                .prop_map(move |(lens, pauses, reader_pauses, schedule)| Scenario {
                    source,
                    frame_room,
                    window: 2 * (frame_room as u32 + 16) + more,
                    coalesces,
                    lens,
                    pauses,
                    reader_pauses,
                    schedule,
                    attached_after,
                })
        },
    )
}

/// Returns true if the tasks are done. The future of a linked sender, which is the first, is not
/// woken at the end: the sender half-closes by itself.
fn are_done(tasks: &[Task<'_>], source: Source) -> bool {
    let skipped = usize::from(source == Source::Sender);
    tasks.iter().skip(skipped).all(Task::is_done)
}

fn message(index: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((index * 7 + at) % 200) as u8).collect()
}

/// A stream of the scenario's messages, with its pauses.
fn messages(
    scenario: &Scenario,
) -> impl futures_core::Stream<Item = Result<Vec<u8>, Status>> + use<> {
    let Scenario { lens, pauses, .. } = scenario.clone();
    stream(async move |mut out| {
        for (index, len) in lens.into_iter().enumerate() {
            if pauses[index % pauses.len()] {
                pause().await;
            }
            out.send(message(index, len)).await?;
        }
        Ok(())
    })
}

/// The items of a stream that has no errors.
struct Plain<S>(std::pin::Pin<Box<S>>);

impl<S: futures_core::Stream<Item = Result<Vec<u8>, Status>>> futures_core::Stream for Plain<S> {
    type Item = Vec<u8>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Vec<u8>>> {
        let item = self.0.as_mut().poll_next(cx);
        item.map(|item| item.map(|item| item.expect("no errors")))
    }
}

fn run(scenario: &Scenario) -> Result<(), TestCaseError> {
    let mut wire = Wire::new(scenario.frame_room, scenario.window, scenario.coalesces);
    let [client, server] = wire.ends.clone();
    let from = usize::from(scenario.source == Source::Responses);
    let received = Rc::new(RefCell::new(Vec::new()));
    let takes = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    let (reads, sends) = match from {
        0 => (Streaming::of_client(server, DECODE), client),
        _ => (Streaming::of_server(client, DECODE), server),
    };
    let closing = Arc::clone(&sends);
    match scenario.source {
        Source::Responses => {
            let outcome = Ok(Response::new(messages(scenario)));
            tasks.push(Task::new(async move {
                let sent = Responses::<Bytes, _>::new(sends).send_all(outcome).await;
                sent.expect("all is sent");
                // What the driver does after the handler.
                closing.close();
            }));
        }
        Source::Pump => {
            let stream = Plain(Box::pin(messages(scenario)));
            tasks.push(Task::new(async move {
                Pump::<Bytes, _>::new(sends, stream)
                    .await
                    .expect("all is sent");
            }));
        }
        Source::Sender | Source::UnlinkedSender => {
            let (mut sender, stream) = sender();
            let pump = match scenario.source {
                Source::Sender => request_pump::<Bytes, _, _>(sends, stream),
                _ => request_pump::<Bytes, _, _>(sends, Plain(Box::pin(Wrapped(stream)))),
            };
            tasks.push(Task::new(pump));
            let Scenario { lens, pauses, .. } = scenario.clone();
            tasks.push(Task::new(async move {
                for (index, len) in lens.into_iter().enumerate() {
                    if pauses[index % pauses.len()] {
                        pause().await;
                    }
                    sender.send(message(index, len)).await.expect("it is sent");
                }
            }));
        }
    }
    let reader = {
        let (received, takes) = (Rc::clone(&received), Rc::clone(&takes));
        let pauses = scenario.reader_pauses.clone();
        Task::new(async move {
            let mut reads = reads;
            let mut count = 0;
            while let Some(message) = reads.message().await.expect("no error") {
                received.borrow_mut().push(message);
                count += 1;
                if pauses[count % pauses.len()] {
                    pause().await;
                }
            }
            takes.set(count);
            assert!(reads.message().await.expect("no error").is_none());
        })
    };
    tasks.push(reader);
    let reader_flag = Arc::clone(&tasks.last().expect("it was pushed").flag);

    let mut schedule = scenario.schedule.iter().cycle();
    let mut idle = 0;
    for step in 0.. {
        prop_assert!(step < 1_000_000, "the stream never ends");
        if step == scenario.attached_after {
            wire.attach();
        }
        let choice = usize::from(*schedule.next().expect("it repeats"));
        let did_work = match choice % (tasks.len() + 1) {
            0 if step >= scenario.attached_after => wire.run(1 + choice / 64),
            0 => false,
            task => tasks[task - 1].run(),
        };
        if are_done(&tasks, scenario.source) && !wire.run(usize::MAX) {
            break;
        }
        idle = if did_work { 0 } else { idle + 1 };
        if idle > 16 * (1 + scenario.schedule.len()) {
            // The schedule may leave one out.
            let mut did_work = wire.run(usize::MAX);
            tasks.iter_mut().for_each(|task| did_work |= task.run());
            prop_assert!(did_work, "the stream has stopped");
            idle = 0;
        }
    }
    let sent: Vec<_> = scenario
        .lens
        .iter()
        .enumerate()
        .map(|(index, len)| message(index, *len))
        .collect();
    prop_assert_eq!(&*received.borrow(), &sent);
    if from == 0 {
        prop_assert_eq!(wire.closes, 1);
    }
    // Each wake of the reader, except those of its own pauses, follows a frame.
    let wakes = reader_flag.wakes.load(SeqCst);
    let own = (1..=takes.get())
        .filter(|count| scenario.reader_pauses[count % scenario.reader_pauses.len()])
        .count();
    prop_assert!(
        wakes <= own + wire.frames[from],
        "{wakes} wakes, {} frames",
        wire.frames[from]
    );
    Ok(())
}

/// Makes a sender's stream look like any other.
struct Wrapped(crate::stream::sender::Messages<Vec<u8>>);

impl futures_core::Stream for Wrapped {
    type Item = Result<Vec<u8>, Status>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::pin::Pin::new(&mut self.0)
            .poll_next(cx)
            .map(|item| item.map(Ok))
    }
}

/// Drops all of the application's ends after some steps of a stream that would never end, and checks
/// that nothing is left.
fn drop_after(steps: usize, source: Source) {
    let mut wire = Wire::new(64, 256, true);
    let [client, server] = wire.ends.clone();
    let mut reads = Streaming::of_client(server, DECODE);
    let (mut sender, stream) = sender();
    let pump = match source {
        Source::Sender => request_pump::<Bytes, _, _>(client, stream),
        _ => request_pump::<Bytes, _, _>(client, Plain(Box::pin(Wrapped(stream)))),
    };
    let mut tasks = [
        Task::new(pump),
        Task::new(async move {
            for index in 0.. {
                sender
                    .send(message(index, index % 60))
                    .await
                    .expect("it is sent");
            }
        }),
        Task::new(async move {
            for index in 0.. {
                let received = reads.message().await.expect("no error");
                assert_eq!(received, Some(message(index, index % 60)));
                pause().await;
            }
        }),
    ];
    for step in 0..steps {
        if step == 2 {
            wire.attach();
        }
        match step % 4 {
            3 => _ = wire.run(1 + step % 3),
            task => _ = tasks[task].run(),
        }
        // Four frames, and the batch that exceeds them.
        assert!(wire.ends[0].lock().outbound.queued() <= 5 * 68);
    }
    let mut order: Vec<_> = tasks.into_iter().collect();
    order.rotate_left(steps % 3);
    order.into_iter().for_each(drop);
    for end in &wire.ends {
        assert_eq!(Arc::strong_count(end), 1, "after {steps} steps");
    }
}

#[test]
fn nothing_is_left_of_a_stream_that_is_dropped_at_any_time() {
    for steps in 0..200 {
        drop_after(steps, Source::Sender);
        drop_after(steps, Source::UnlinkedSender);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn messages_arrive_once_and_in_order(scenario in scenarios()) {
        run(&scenario)?;
    }
}

/// Sends `count` messages of 60 bytes at once, and returns the number of frames, of wakes of the
/// reader, and of signals to the driver.
fn send_at_once(source: Source, count: usize, coalesces: bool) -> [usize; 3] {
    let scenario = Scenario {
        source,
        frame_room: 4096,
        window: 32 * 1024,
        coalesces,
        lens: vec![60; count],
        pauses: vec![false],
        reader_pauses: vec![false],
        schedule: vec![0],
        attached_after: 0,
    };
    let mut wire = Wire::new(scenario.frame_room, scenario.window, scenario.coalesces);
    wire.attach();
    let [client, server] = wire.ends.clone();
    let mut reads = Streaming::of_client(server, DECODE);
    let (mut sender, stream) = sender();
    let pump = match source {
        Source::Sender => request_pump::<Bytes, _, _>(client, stream),
        _ => request_pump::<Bytes, _, _>(client, Plain(Box::pin(messages(&scenario)))),
    };
    let reader =
        Task::new(async move { while reads.message().await.expect("no error").is_some() {} });
    let flag = Arc::clone(&reader.flag);
    let mut tasks = vec![Task::new(pump), reader];
    if source == Source::Sender {
        tasks.push(Task::new(async move {
            for _ in 0..count {
                sender.send(vec![7; 60]).await.expect("it is sent");
            }
        }));
    }
    // The reader waits when the first messages arrive.
    tasks[1].run();
    wire.settle(&mut tasks);
    assert!(are_done(&tasks, source));
    let signals = wire.signals.count.load(SeqCst);
    [wire.frames[0], flag.wakes.load(SeqCst), signals]
}

#[test]
fn messages_that_wait_together_share_a_frame() {
    // 64 messages fill a frame.
    for source in [Source::Pump, Source::Sender] {
        let [frames, wakes, signals] = send_at_once(source, 6400, true);
        assert!((100..=102).contains(&frames), "{source:?}: {frames} frames");
        assert!(wakes <= 52, "{source:?}: {wakes} wakes");
        assert!(signals <= 120, "{source:?}: {signals} signals");
    }
}

#[test]
fn messages_that_must_not_share_a_frame_do_not() {
    for source in [Source::Pump, Source::Sender] {
        let [frames, _, _] = send_at_once(source, 640, false);
        assert!((640..=641).contains(&frames), "{source:?}: {frames} frames");
    }
}
