//! The cores that a thread may run on. A poller's thread may be pinned to one core; what it starts
//! beside itself is not.
//!
//! Linux gives a new thread the mask of the thread that starts it, and has no flag against it. So a
//! thread that [`pin`] has pinned remembers its mask from before, and [`start_thread`] gives that one
//! to the threads that the library starts. A thread that frees memory or posts receives for a poller
//! which is busy would otherwise wait for that poller's core. [`unpinned`] does the same for threads
//! that an application starts.

use std::cell::Cell;
use std::io;
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A thread that is pinned.
#[derive(Clone, Copy)]
struct Pinned {
    core: usize,
    before: CpuSet,
    /// Calls of [`pin`] without their [`unpin`].
    count: u32,
}

thread_local! {
    static PINNED: Cell<Option<Pinned>> = const { Cell::new(None) };
}

/// Returns the cores that the calling thread may use; if it is pinned, those from before.
///
/// # Errors
///
/// Returns the error of the system call.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let mask = match PINNED.get() {
        Some(pinned) => pinned.before,
        None => sched_getaffinity(None)?,
    };
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| mask.is_set(core))
        .collect())
}

/// Pins the calling thread to a core.
///
/// # Errors
///
/// Returns the error of the system call.
pub fn pin(core: usize) -> io::Result<()> {
    let Some(mask) = only(core) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("there is no core {core}"),
        ));
    };
    let (before, count) = match PINNED.get() {
        Some(pinned) => (pinned.before, pinned.count),
        None => (sched_getaffinity(None)?, 0),
    };
    sched_setaffinity(None, &mask)?;
    PINNED.set(Some(Pinned {
        core,
        before,
        count: count + 1,
    }));
    Ok(())
}

/// Undoes a call of [`pin`]. The last one gives the calling thread its mask from before the first. A mask
/// that somebody else has set since is kept.
pub fn unpin() {
    let Some(mut pinned) = PINNED.take() else {
        return;
    };
    pinned.count -= 1;
    if pinned.count > 0 {
        PINNED.set(Some(pinned));
    } else if sched_getaffinity(None).ok() == only(pinned.core) {
        set_mask(&pinned.before);
    }
}

/// Runs `run`, which starts threads, with the mask that the calling thread had before it was pinned.
/// Pins the thread again afterwards, even if `run` panics.
pub fn unpinned<T>(run: impl FnOnce() -> T) -> T {
    struct PinAgain(CpuSet);

    impl Drop for PinAgain {
        fn drop(&mut self) {
            set_mask(&self.0);
        }
    }

    let _pin_again = PINNED.get().and_then(|pinned| {
        let pin_again = PinAgain(sched_getaffinity(None).ok()?);
        set_mask(&pinned.before);
        Some(pin_again)
    });
    run()
}

/// Starts a thread of the library. If the calling thread is pinned, the new one is not.
///
/// # Errors
///
/// Returns the system's error if it refuses a thread.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let pinned = PINNED.get();
    let run = move || {
        if let Some(pinned) = pinned {
            set_mask(&pinned.before);
        }
        run()
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Sets the mask of the calling thread. If that fails, the thread stays where it is: it works there too,
/// only later.
fn set_mask(mask: &CpuSet) {
    if let Err(error) = sched_setaffinity(None, mask) {
        tracing::debug!(%error, "a thread keeps its mask of cores");
    }
}

fn only(core: usize) -> Option<CpuSet> {
    let mut mask = CpuSet::new();
    (core < CpuSet::MAX_CPU).then(|| {
        mask.set(core);
        mask
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn mask() -> CpuSet {
        sched_getaffinity(None).unwrap()
    }

    /// Runs a test on a thread of its own, because it changes the thread's mask.
    fn on_a_pinned_thread(test: impl FnOnce(CpuSet, usize) + Send + 'static) {
        let run = || {
            let before = mask();
            let last = *allowed_cores().unwrap().last().unwrap();
            pin(last).unwrap();
            assert_eq!(Some(mask()), only(last));
            test(before, last);
        };
        thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_thread_of_the_library_has_the_mask_from_before_and_other_threads_inherit_the_core() {
        on_a_pinned_thread(|before, last| {
            let of_the_library = start_thread("verbline-test", mask).unwrap();
            assert_eq!(of_the_library.join().unwrap(), before);
            // This is Linux's rule, for which there is `unpinned`.
            assert_eq!(Some(thread::spawn(mask).join().unwrap()), only(last));
            let started = unpinned(|| thread::spawn(mask));
            assert_eq!(started.join().unwrap(), before);
            assert_eq!(Some(mask()), only(last));
        });
    }

    #[test]
    fn pinning_ends_and_keeps_a_mask_that_somebody_else_has_set() {
        on_a_pinned_thread(|before, last| {
            let first = allowed_cores().unwrap()[0];
            // Pinned twice: the mask from before is that from before the first time.
            pin(first).unwrap();
            assert!(catch_unwind(AssertUnwindSafe(|| unpinned(|| panic!("a bug")))).is_err());
            unpin();
            assert_eq!(Some(mask()), only(first));
            unpin();
            assert_eq!(mask(), before);
            pin(last).unwrap();
            sched_setaffinity(None, &before).unwrap();
            unpin();
            assert_eq!(mask(), before);
            assert!(pin(usize::MAX).is_err());
            assert_eq!(unpinned(mask), before);
        });
    }
}
