//! The cores that a thread may run on. A poller's thread may be pinned to one core; what it starts
//! beside itself is not.
//!
//! Linux gives a new thread the mask of the thread that starts it, and has no flag against it. So
//! [`start_thread`] gives the threads that the library starts the mask of the process. A thread that
//! frees memory or posts receives for a poller which is busy would otherwise wait for that poller's
//! core. [`unpinned`] does the same for threads that an application starts.
//!
//! The system has no mask of a process. Here it is that of the main thread, or that of the calling
//! thread if that one has more cores: either may be pinned. A calling thread that [`pin`] has pinned
//! counts with its mask from before. If both are pinned otherwise, nothing tells their cores from those
//! that the process was started with.

use std::cell::Cell;
use std::io;
use std::thread::{self, JoinHandle};

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::system_error::no_thread;

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

/// Returns the mask of the process: see the module.
fn process_mask() -> io::Result<CpuSet> {
    let own = match PINNED.get() {
        Some(pinned) => pinned.before,
        None => sched_getaffinity(None)?,
    };
    let main = sched_getaffinity(Some(getpid()))?;
    Ok(if own.count() > main.count() {
        own
    } else {
        main
    })
}

/// Returns the cores that this process may use.
///
/// # Errors
///
/// Returns the error of the system call.
pub fn allowed_cores() -> io::Result<Vec<usize>> {
    let mask = process_mask()?;
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

/// Runs `run`, which starts threads, with the mask of the process. Gives the calling thread its own one
/// again afterwards, even if `run` panics.
pub fn unpinned<T>(run: impl FnOnce() -> T) -> T {
    struct Again(CpuSet);

    impl Drop for Again {
        fn drop(&mut self) {
            set_mask(&self.0);
        }
    }

    let _again = match (sched_getaffinity(None), process_mask()) {
        (Ok(own), Ok(mask)) if own != mask => {
            set_mask(&mask);
            Some(Again(own))
        }
        _ => None,
    };
    run()
}

/// Starts a thread of the library, with the mask of the process.
///
/// # Errors
///
/// Returns the system's error if it refuses a thread.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mask = process_mask();
    let run = move || {
        if let Ok(mask) = mask
            && sched_getaffinity(None) != Ok(mask)
        {
            set_mask(&mask);
        }
        run()
    };
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(run).map_err(no_thread)
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
    fn a_thread_that_the_application_has_pinned_hands_its_core_on_to_none_of_ours() {
        let run = || {
            let (all, cores) = (mask(), allowed_cores().unwrap());
            let last = *cores.last().unwrap();
            sched_setaffinity(None, &only(last).unwrap()).unwrap();
            assert_eq!(allowed_cores().unwrap(), cores);
            let of_the_library = start_thread("verbline-test", mask).unwrap();
            assert_eq!(of_the_library.join().unwrap(), all);
            assert_eq!(unpinned(mask), all);
            // Pinned by both: the mask from before is the application's.
            pin(cores[0]).unwrap();
            assert_eq!(allowed_cores().unwrap(), cores);
            unpin();
            assert_eq!(Some(mask()), only(last));
        };
        thread::spawn(run).join().unwrap();
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
