//! Memory windows that are read through by other threads while their owner does something with them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbline_verbs::{
    Access, AckTimeout, Binding, CompletionOpcode as O, CompletionStatus as C, MemoryWindow,
    QpState, RemoteKey, RemoteMemory, WindowType, WorkRequest,
};

use super::case::{Section, case};
use super::deviations as rxe;
use super::device::{Device, Kind};
use super::end::{End, LEN, Options, connect, everything, pair, rc};
use super::memory_windows::{bound, granted, of_memory, window};
use super::verbs_side::HANG;

pub(crate) const CASES: Section = Section {
    topic: "readers of memory windows",
    cases: &[
        case!(
            a_thread_reads_through_a_window_as_long_as_it_likes,
            "specification: memory windows; mw_test: OnlyReads"
        ),
        case!(
            a_local_invalidate_ends_the_reads_of_another_thread,
            "specification: memory windows; mw_test: Invalidate"
        ),
        case!(
            a_window_that_goes_ends_the_reads_of_another_thread,
            "specification: memory windows; mw_test: Dealloc"
        ),
        case!(
            a_second_binding_fails_its_owner_and_the_reads_of_another_thread_get_no_answer,
            "specification: memory windows"
        ),
        case!(
            an_owner_that_refuses_a_read_it_has_begun_is_in_error,
            "specification: memory windows; asynchronous falls"
        ),
        case!(
            a_type_1_window_that_is_bound_again_ends_the_reads_of_many_threads,
            "specification: memory windows; threads"
        ),
        case!(
            a_type_1_window_that_goes_ends_the_reads_of_many_threads,
            "specification: memory windows; threads"
        ),
    ],
};

/// READs in one list.
const BATCH: usize = 100;
/// Another list is posted while no more READs than this are outstanding: more than the queue pair
/// has under way at a time, so that a READ follows the other without a pause.
const ENOUGH: usize = 300;
/// READs of each reader that have ended when the owner does something.
const WARM: usize = 100;
/// Length of the window, and of each READ, in bytes: several packets.
const PAGE: usize = 4096;
/// What the window's bytes are.
const FILL: u8 = 7;

/// A peer that does not respond is detected after 4.096 µs × 2^14 × 6 = 400 ms: devices may be slow
/// with so many READs.
fn reader_options() -> Options {
    Options {
        max_send_wr: BATCH + ENOUGH,
        cq_depth: BATCH + ENOUGH,
        timeout: AckTimeout::new(14).unwrap(),
        ..rc()
    }
}

/// Creates the owner of a window and a reader, both in one domain and in a context each.
fn owners_and_readers() -> [(End, [End; 1]); 2] {
    let apart = (End::new(rc()), End::new(reader_options()));
    let owner = End::new(rc());
    let (context, domain) = (owner.context.clone(), owner.domain.clone());
    let together = (owner, End::within(context, domain, reader_options()));
    [together, apart].map(|(mut owner, mut reader)| {
        connect((&mut owner.qp, rc()), (&mut reader.qp, reader_options()));
        (owner, [reader])
    })
}

/// Binds a window of this type to the first bytes of its owner, which peers then read.
fn window_of(owner: &mut End, window_type: WindowType) -> (MemoryWindow, RemoteMemory) {
    owner.fill(0..PAGE, FILL);
    let window = window(owner, window_type);
    let binding = of_memory(owner, 0..PAGE);
    let remote = bound(owner, &window, &binding);
    (window, remote)
}

/// Reads again and again until a READ fails or `most` are posted. Returns the statuses of all, in
/// order.
fn read(reader: &mut End, remote: RemoteMemory, most: usize, ended: &AtomicUsize) -> Vec<C> {
    let places = LEN / PAGE;
    let start = Instant::now();
    let mut statuses = Vec::new();
    let mut posted = 0;
    loop {
        let has_failed = statuses.last().is_some_and(|last| *last != C::Success);
        if !has_failed && posted < most && posted - statuses.len() <= ENOUGH {
            let read = |number| {
                let place = number % places * PAGE;
                WorkRequest::read(reader.at(place..place + PAGE), remote).signaled()
            };
            let mut list = (posted..posted + BATCH).map(read).collect();
            reader.qp.post(&mut list, &mut drop).unwrap();
            posted += BATCH;
        }
        if statuses.len() == posted {
            return statuses;
        }
        statuses.extend(reader.now().iter().map(|seen| seen.status));
        ended.store(statuses.len(), Ordering::SeqCst);
        assert!(
            start.elapsed() < HANG,
            "{} of {posted} READs have ended",
            statuses.len()
        );
        thread::yield_now();
    }
}

/// Has each reader read in a thread of its own, and does `act` when all of them have begun. Returns
/// the statuses of each.
fn while_they_read(
    readers: &mut [End],
    remote: RemoteMemory,
    most: usize,
    act: impl FnOnce(),
) -> Vec<Vec<C>> {
    let ended: Vec<_> = readers.iter().map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        let each = readers.iter_mut().zip(&ended);
        let threads = each.map(|(reader, ended)| {
            let name = thread::Builder::new().name("reader".to_owned());
            let run = move || read(reader, remote, most, ended);
            name.spawn_scoped(scope, run).expect("a thread")
        });
        let threads: Vec<_> = threads.collect();
        let start = Instant::now();
        let has_begun = |ended: &AtomicUsize| ended.load(Ordering::SeqCst) >= WARM;
        while !ended.iter().all(has_begun) {
            assert!(start.elapsed() < HANG, "the readers do not get ahead");
            thread::yield_now();
        }
        act();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    })
}

/// Checks that READs succeeded until one failed with one of these statuses, and that those behind it
/// were flushed.
fn assert_they_end(reader: &End, statuses: &[C], expected: &[C]) {
    let failed = statuses.iter().position(|status| *status != C::Success);
    let failed = failed.expect("a READ that fails");
    assert!(failed >= WARM, "{failed} READs succeeded");
    let status = statuses[failed];
    assert!(expected.contains(&status), "{status} after {failed}");
    let behind = &statuses[failed + 1..];
    assert!(behind.iter().all(|status| *status == C::WorkRequestFlushed));
    assert!(reader.is_all(0..LEN, FILL), "what was read");
}

/// Returns how READs end whose key is taken away.
fn key_is_gone(device: &Device) -> &'static [C] {
    device.deviates(
        &rxe::KEY_GONE_MIDWAY,
        &[C::RemoteAccess],
        &[C::RemoteAccess, C::RetryExceeded],
    )
}

/// Invalidates the window of its owner.
fn take_away(owner: &mut End, key: RemoteKey, device: &Device) {
    let seen = owner.run(WorkRequest::local_invalidate(key));
    // On rxe the READ that is refused may bring the owner to ERROR before this completes.
    let may_be_flushed = device.deviates(&rxe::KEY_GONE_MIDWAY, false, true);
    let is_flushed = may_be_flushed && seen.status == C::WorkRequestFlushed;
    let is_done = (seen.status, seen.opcode) == (C::Success, Some(O::LocalInvalidate));
    assert!(is_done || is_flushed, "{seen:?}");
}

fn a_thread_reads_through_a_window_as_long_as_it_likes(_: &Device) {
    for (mut owner, mut readers) in owners_and_readers() {
        let (_window, remote) = window_of(&mut owner, WindowType::Type2);
        let most = 5 * BATCH;
        let statuses = while_they_read(&mut readers, remote, most, || ());
        assert_eq!(statuses, [vec![C::Success; most]]);
        assert!(readers[0].is_all(0..LEN, FILL));
        assert_eq!(owner.now(), []);
    }
}

fn a_local_invalidate_ends_the_reads_of_another_thread(device: &Device) {
    for (mut owner, mut readers) in owners_and_readers() {
        let (_window, remote) = window_of(&mut owner, WindowType::Type2);
        let statuses = while_they_read(&mut readers, remote, usize::MAX, || {
            take_away(&mut owner, remote.key, device);
        });
        assert_they_end(&readers[0], &statuses[0], key_is_gone(device));
        owner.wait_for_state(QpState::Error);
    }
}

fn a_window_that_goes_ends_the_reads_of_another_thread(device: &Device) {
    for (mut owner, mut readers) in owners_and_readers() {
        let (window, remote) = window_of(&mut owner, WindowType::Type2);
        let statuses = while_they_read(&mut readers, remote, usize::MAX, || {
            window.dealloc().unwrap();
        });
        assert_they_end(&readers[0], &statuses[0], key_is_gone(device));
        owner.wait_for_state(QpState::Error);
    }
}

/// The binding that fails brings its queue pair to ERROR, and there nothing is answered.
fn a_second_binding_fails_its_owner_and_the_reads_of_another_thread_get_no_answer(_: &Device) {
    for (mut owner, mut readers) in owners_and_readers() {
        let (window, remote) = window_of(&mut owner, WindowType::Type2);
        let statuses = while_they_read(&mut readers, remote, usize::MAX, || {
            let binding = of_memory(&owner, 0..PAGE);
            let request = WorkRequest::bind_window(&window, binding, window.next_key());
            owner.expect(request, C::MemoryWindowBind);
        });
        assert_they_end(&readers[0], &statuses[0], &[C::RetryExceeded]);
        owner.wait_for_state(QpState::Error);
    }
}

/// The READs are so long that the key is taken away in the middle of one.
fn an_owner_that_refuses_a_read_it_has_begun_is_in_error(device: &Device) {
    let (len, rounds) = match device.kind {
        Kind::Soft => (8 << 20, 6),
        _ => (256 << 10, 2),
    };
    for round in 0..rounds {
        let (mut owner, mut reader) = pair(reader_options());
        let region = owner.expose(len, everything() | Access::MW_BIND, FILL);
        let window = window(&owner, WindowType::Type2);
        let remote = bound(
            &mut owner,
            &window,
            &Binding::new(&region, 0..len, granted()),
        );
        let into = reader.expose(len, everything(), 0);
        let has_read = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let expected = key_is_gone(device);
                let start = Instant::now();
                let mut status = C::Success;
                while status == C::Success {
                    let request = WorkRequest::read(into.element(0..len).unwrap(), remote);
                    status = reader.run(request).status;
                    has_read.store(true, Ordering::SeqCst);
                    assert!(start.elapsed() < HANG, "the window is still there");
                }
                assert!(expected.contains(&status), "{status}");
            });
            let start = Instant::now();
            while !has_read.load(Ordering::SeqCst) {
                assert!(start.elapsed() < HANG, "nothing is read");
                thread::yield_now();
            }
            // The next READ has begun by then.
            thread::sleep(Duration::from_micros(100 + 200 * round));
            take_away(&mut owner, remote.key, device);
        });
        owner.wait_for_state(QpState::Error);
    }
}

/// Creates the owner of a window, a peer of it, and more peers that read through queue pairs of
/// their own.
fn with_many_readers() -> (End, End, Vec<End>) {
    let (mut owner, mut peer) = (End::new(rc()), End::new(rc()));
    connect((&mut owner.qp, rc()), (&mut peer.qp, rc()));
    let readers = (0..3)
        .map(|_| {
            let (mut reader, mut qp) = (End::new(reader_options()), owner.another());
            connect((&mut reader.qp, reader_options()), (&mut qp, rc()));
            owner.others.push(qp);
            reader
        })
        .collect();
    (owner, peer, readers)
}

fn a_type_1_window_that_is_bound_again_ends_the_reads_of_many_threads(device: &Device) {
    let (mut owner, mut peer, mut readers) = with_many_readers();
    let (window, old) = window_of(&mut owner, WindowType::Type1);
    let mut new = old;
    let statuses = while_they_read(&mut readers, old, usize::MAX, || {
        let binding = of_memory(&owner, 0..PAGE);
        new = bound(&mut owner, &window, &binding);
    });
    for (reader, statuses) in readers.iter().zip(statuses) {
        assert_they_end(reader, &statuses, key_is_gone(device));
    }
    peer.succeed(WorkRequest::read(peer.at(0..PAGE), new));
    assert!(peer.is_all(0..PAGE, FILL));
}

fn a_type_1_window_that_goes_ends_the_reads_of_many_threads(device: &Device) {
    let (mut owner, mut peer, mut readers) = with_many_readers();
    let (window, remote) = window_of(&mut owner, WindowType::Type1);
    let statuses = while_they_read(&mut readers, remote, usize::MAX, || {
        window.dealloc().unwrap();
    });
    for (reader, statuses) in readers.iter().zip(statuses) {
        assert_they_end(reader, &statuses, key_is_gone(device));
    }
    // The queue pair that bound it was not read through.
    peer.succeed(WorkRequest::read(peer.at(0..PAGE), owner.remote(0)));
}
