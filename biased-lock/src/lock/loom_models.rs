//! All interleavings of short histories. A favour takes one entry here.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::super::thread_id::ThreadId;
use super::BiasedLock;

type Counter = BiasedLock<UnsafeCell<u32>>;

fn thread(number: u64) -> ThreadId {
    ThreadId(number * ThreadId::ALIGN)
}

/// Loom's cell fails the model if two threads are ever inside, or if one does not see the other's write.
fn add(lock: &Counter, number: u64) {
    let guard = lock.enter_as(thread(number));
    // SAFETY: this thread is inside; loom checks that.
    guard.with_mut(|value| unsafe { *value += 1 });
}

fn try_to_add(lock: &Counter, number: u64) -> u32 {
    let guard = lock.try_enter_as(thread(number));
    // SAFETY: as in `add`.
    let added = guard.map(|guard| guard.with_mut(|value| unsafe { *value += 1 }));
    u32::from(added.is_some())
}

fn sum(lock: &Counter, number: u64) -> u32 {
    let guard = lock.enter_as(thread(number));
    // SAFETY: as in `add`.
    guard.with(|value| unsafe { *value })
}

/// Runs `others` beside the calling thread, which is the favourite and does `favourite`.
fn beside_the_favourite(
    favourite: impl Fn(&Counter) -> u32 + Sync + Send + 'static,
    others: &'static [fn(&Counter) -> u32],
) {
    let mut model = loom::model::Builder::new();
    // All interleavings are too many.
    model.preemption_bound = Some(3);
    model.check(move || {
        let lock = Arc::new(Counter::favouring(thread(1), UnsafeCell::new(0)));
        let running: Vec<_> = others
            .iter()
            .map(|other| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || other(&lock))
            })
            .collect();
        let here = favourite(&lock);
        let there: u32 = running.into_iter().map(|other| other.join().unwrap()).sum();
        assert_eq!(sum(&lock, 1), here + there);
    });
}

fn twice(lock: &Counter, number: u64) -> u32 {
    add(lock, number);
    add(lock, number);
    2
}

#[test]
fn loom_a_favourite_and_another_exclude_each_other() {
    beside_the_favourite(|lock| twice(lock, 1), &[|lock| twice(lock, 2)]);
}

#[test]
fn loom_who_tries_leaves_the_favour_as_it_is() {
    beside_the_favourite(|lock| twice(lock, 1), &[|lock| try_to_add(lock, 2)]);
    beside_the_favourite(|lock| try_to_add(lock, 1), &[|lock| twice(lock, 2)]);
}

/// The favourite may have looked at the word long ago, when another one is the favourite already.
#[test]
fn loom_a_favourite_that_comes_late_ends_no_other_s_stay() {
    beside_the_favourite(
        |lock| try_to_add(lock, 1),
        &[|lock| twice(lock, 2), |lock| try_to_add(lock, 3)],
    );
}
