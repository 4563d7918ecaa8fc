use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use super::*;

fn word_of<T>(lock: &BiasedLock<T>) -> u64 {
    lock.word.load(Ordering::Relaxed)
}

fn is_favoured<T>(lock: &BiasedLock<T>) -> bool {
    word_of(lock) & !SECOND_FLAG == ThreadId::current().0
}

fn enter_often<T>(lock: &BiasedLock<T>) {
    for _ in 0..ENTRIES_FOR_FAVOUR {
        drop(lock.enter());
    }
}

/// Fails where the kernel lacks the call, so that nobody believes that the tests have tried the favour.
#[test]
fn this_kernel_has_membarrier() {
    assert!(
        membarrier::is_available(),
        "the favour is not tested on this kernel"
    );
}

#[test]
fn the_thread_that_enters_often_is_the_favourite_until_another_enters() {
    let lock = Arc::new(BiasedLock::new(0));
    for _ in 1..ENTRIES_FOR_FAVOUR {
        *lock.enter() += 1;
        assert!(!is_favoured(&lock));
    }
    *lock.enter() += 1;
    assert!(is_favoured(&lock));
    *lock.enter() += 1;
    let other = Arc::clone(&lock);
    thread::spawn(move || *other.enter() += 1).join().unwrap();
    assert_eq!(word_of(&lock), NOBODY);
    enter_often(&lock);
    assert!(is_favoured(&lock));
    assert_eq!(*lock.enter(), ENTRIES_FOR_FAVOUR + 2);
}

#[test]
fn the_thread_that_creates_it_can_be_the_favourite() {
    let lock = BiasedLock::favouring_this_thread(());
    assert!(is_favoured(&lock));
    drop(lock.enter());
    assert!(is_favoured(&lock));
}

/// A flag belongs to its thread for as long as that runs.
#[test]
fn the_third_of_threads_that_run_is_no_favourite() {
    let lock = BiasedLock::new(());
    let enter = || {
        enter_often(&lock);
        is_favoured(&lock)
    };
    assert!(enter());
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            let is_favoured = enter();
            let third = scope.spawn(enter);
            (is_favoured, third.join().unwrap())
        });
        assert_eq!(second.join().unwrap(), (true, false));
    });
}

#[test]
fn who_tries_does_not_wait_for_a_thread_that_is_inside() {
    for lock in [BiasedLock::new(7), BiasedLock::favouring_this_thread(7)] {
        let inside = lock.enter();
        thread::scope(|scope| {
            let tried = scope.spawn(|| lock.try_enter().is_some());
            assert!(!tried.join().unwrap());
        });
        drop(inside);
        let favoured = is_favoured(&lock);
        thread::scope(|scope| {
            let tried = scope.spawn(|| lock.try_enter().map(|inside| *inside));
            assert_eq!(tried.join().unwrap(), Some(7));
        });
        assert!(!favoured || word_of(&lock) == NOBODY);
    }
}

#[test]
fn a_thread_that_is_inside_gets_no_second_guard() {
    let lock = BiasedLock::favouring_this_thread(7);
    let inside = lock.enter();
    assert!(lock.try_enter().is_none());
    let again = catch_unwind(AssertUnwindSafe(|| drop(lock.enter())));
    assert!(again.is_err());
    drop(inside);
    assert_eq!(*lock.enter(), 7);
    assert!(is_favoured(&lock));
}

#[test]
fn a_panic_inside_leaves() {
    for lock in [BiasedLock::new(7), BiasedLock::favouring_this_thread(7)] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            *lock.enter() = 8;
            let _inside = lock.enter();
            panic!("on purpose");
        }));
        assert!(outcome.is_err());
        assert_eq!(*lock.enter(), 8);
    }
}

/// Threads that come and go between a favourite's many entries; each adds to two numbers that have to be equal.
#[test]
fn no_entry_is_lost_and_none_is_beside_another() {
    const OF_THE_FAVOURITE: u64 = 300_000;
    const OF_OTHERS: u64 = 300;
    const OTHERS: u64 = 3;
    let lock = BiasedLock::new((0, 0));
    let add = |guard: &mut (u64, u64)| {
        assert_eq!(guard.0, guard.1);
        guard.0 += 1;
        // The compiler must not make one addition of the two.
        guard.1 = std::hint::black_box(guard.1) + 1;
    };
    let tried = thread::scope(|scope| {
        let others: Vec<_> = (0..OTHERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut tried = 0;
                    for _ in 0..OF_OTHERS {
                        add(&mut lock.enter());
                        if let Some(mut inside) = lock.try_enter() {
                            add(&mut inside);
                            tried += 1;
                        }
                        thread::yield_now();
                    }
                    tried
                })
            })
            .collect();
        for _ in 0..OF_THE_FAVOURITE {
            add(&mut lock.enter());
        }
        others
            .into_iter()
            .map(|other| other.join().unwrap())
            .sum::<u64>()
    });
    let (first, second) = lock.into_inner();
    assert_eq!(first, second);
    assert_eq!(first, OF_THE_FAVOURITE + OTHERS * OF_OTHERS + tried);
}
