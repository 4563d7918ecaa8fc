//! [`Crew`]: many tasks on one thread, of which only the woken ones are polled.
//!
//! It does the job of `FuturesUnordered` for a fixed number of tasks. Each task has one bit that
//! says that it was woken, so waking a task neither allocates nor locks.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

/// A future that polls its workers as they are woken, and is ready when all of them are.
pub struct Crew<F> {
    workers: Vec<Option<Pin<Box<F>>>>,
    wakers: Vec<Waker>,
    woken: Arc<Woken>,
    at_work: usize,
}

/// The wakeup bits, one for each worker.
struct Woken {
    words: Vec<AtomicU64>,
    /// The waker of the task that polls the crew. It never changes.
    crew: OnceLock<Waker>,
}

struct WorkerWaker {
    woken: Arc<Woken>,
    index: usize,
}

impl<F: Future<Output = ()>> Crew<F> {
    /// Creates a crew of these workers.
    pub fn new(workers: impl IntoIterator<Item = F>) -> Self {
        let workers: Vec<_> = workers.into_iter().map(|f| Some(Box::pin(f))).collect();
        let count = workers.len();
        let words = (0..count.div_ceil(64)).map(|word| {
            // Every worker is polled once at first.
            let in_word = (count - word * 64).min(64);
            AtomicU64::new(u64::MAX >> (64 - in_word))
        });
        let woken = Arc::new(Woken {
            words: words.collect(),
            crew: OnceLock::new(),
        });
        let waker = |index| {
            Waker::from(Arc::new(WorkerWaker {
                woken: Arc::clone(&woken),
                index,
            }))
        };
        Self {
            wakers: (0..count).map(waker).collect(),
            workers,
            woken,
            at_work: count,
        }
    }
}

impl<F: Future<Output = ()>> Future for Crew<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let crew = self.get_mut();
        let waker = crew.woken.crew.get_or_init(|| cx.waker().clone());
        assert!(waker.will_wake(cx.waker()), "one executor must poll a crew");
        for (index, word) in crew.woken.words.iter().enumerate() {
            // Acquire: the worker sees everything that the waking thread did before it set the bit.
            let mut woken = word.swap(0, Ordering::Acquire);
            while woken != 0 {
                let worker = index * 64 + woken.trailing_zeros() as usize;
                woken &= woken - 1;
                let Some(future) = &mut crew.workers[worker] else {
                    continue;
                };
                let mut cx = Context::from_waker(&crew.wakers[worker]);
                if future.as_mut().poll(&mut cx).is_ready() {
                    crew.workers[worker] = None;
                    crew.at_work -= 1;
                }
            }
        }
        if crew.at_work == 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Wake for WorkerWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.words[self.index / 64].fetch_or(1 << (self.index % 64), Ordering::Release);
        if let Some(crew) = self.woken.crew.get() {
            crew.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::future::poll_fn;
    use std::pin::pin;

    /// The waker of an executor that polls without being woken.
    struct Nobody;

    impl Wake for Nobody {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn only_the_woken_are_polled_and_all_come_to_an_end() {
        const WORKERS: usize = 130;
        let polls = Cell::new(0);
        let waiting = RefCell::new(vec![None; WORKERS]);
        let workers = (0..WORKERS).map(|index| {
            let (polls, waiting) = (&polls, &waiting);
            let mut polled_before = false;
            poll_fn(move |cx| {
                polls.set(polls.get() + 1);
                if std::mem::replace(&mut polled_before, true) {
                    return Poll::Ready(());
                }
                waiting.borrow_mut()[index] = Some(cx.waker().clone());
                Poll::Pending
            })
        });
        let mut crew = pin!(Crew::new(workers));
        let executor = Waker::from(Arc::new(Nobody));
        let mut cx = Context::from_waker(&executor);
        assert!(crew.as_mut().poll(&mut cx).is_pending());
        assert_eq!(polls.get(), WORKERS);
        for woken in [0, 63, 64, 129] {
            waiting.borrow()[woken].as_ref().map(Waker::wake_by_ref);
        }
        assert!(crew.as_mut().poll(&mut cx).is_pending());
        assert_eq!(polls.get(), WORKERS + 4);
        for waker in waiting.borrow().iter().flatten() {
            waker.wake_by_ref();
        }
        assert!(crew.as_mut().poll(&mut cx).is_ready());
        assert_eq!(polls.get(), 2 * WORKERS, "finished workers are not polled");
    }
}
