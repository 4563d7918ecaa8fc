//! The thread that looks for changes of files. There is one per process.
//!
//! Files are read and compared, rather than watched by the kernel: a secret that an orchestrator mounts
//! changes by a link to another folder, and a file of a network has no events.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{process, thread};

use crate::error::TlsError;

/// The time between two looks at the files.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A look that takes longer waits for a file system that does not answer.
const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// Something that has files.
pub(crate) trait Look: Send + Sync {
    /// Reads the files, and takes what has changed.
    fn look(&self);

    /// Returns the names of the files, for the log.
    fn files(&self) -> String;
}

/// The watcher of the process. In unit tests, it does not take the changes that the tests look for.
pub(crate) static PROCESS: Watcher = Watcher::new(match cfg!(test) {
    true => Duration::from_secs(3600),
    false => LOOK_EVERY,
});

/// Looks at all that has files, from a thread that lives for as long as anything has.
pub(crate) struct Watcher {
    every: Duration,
    state: Mutex<State>,
}

struct State {
    watched: Vec<Weak<dyn Look>>,
    /// The process that has the thread: a child of it has none, whatever it inherits.
    thread_of: Option<u32>,
    has_warned: bool,
    /// What the thread looks at now, since when, and whether the log has it.
    looks_at: Option<LooksAt>,
}

struct LooksAt {
    watched: Arc<dyn Look>,
    since: Instant,
    is_told: bool,
}

impl Watcher {
    pub(crate) const fn new(every: Duration) -> Self {
        Self {
            every,
            state: Mutex::new(State {
                watched: Vec::new(),
                thread_of: None,
                has_warned: false,
                looks_at: None,
            }),
        }
    }

    /// Looks at `watched` from now on, until it is dropped elsewhere. Starts the thread if none runs.
    ///
    /// # Errors
    ///
    /// Returns an error if the thread cannot be started.
    pub(crate) fn add(&'static self, watched: Weak<dyn Look>) -> Result<(), TlsError> {
        let mut state = self.state();
        self.ensure_thread(&mut state)
            .map_err(|source| TlsError::Thread { source })?;
        state.watched.push(watched);
        Ok(())
    }

    /// Starts the thread if this process has none: it was forked, as a daemon is, after the files were
    /// [added](Self::add). Warns if the thread waits for a file system that does not answer: then no other
    /// file is looked at either.
    pub(crate) fn go_on(&'static self) {
        // Without a wait: a thread that the child has not inherited may have held the lock.
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if let Err(error) = self.ensure_thread(&mut state)
            && !std::mem::replace(&mut state.has_warned, true)
        {
            tracing::warn!(
                "changes of the files of TLS are not noticed: the thread that watches them cannot be started: {error}"
            );
        }
        if let Some(looks) = &mut state.looks_at
            && !looks.is_told
            && looks.since.elapsed() > LONGEST_LOOK
        {
            looks.is_told = true;
            tracing::warn!(
                "no file of TLS is followed any more, revocation lists neither: the file system of {} does \
                 not answer",
                looks.watched.files()
            );
        }
    }

    fn ensure_thread(&'static self, state: &mut State) -> io::Result<()> {
        let own = Some(process::id());
        if state.thread_of == own {
            return Ok(());
        }
        let thread = thread::Builder::new().name("verbline-tls-files".to_owned());
        thread.spawn(|| self.run())?;
        state.thread_of = own;
        state.looks_at = None;
        Ok(())
    }

    fn run(&self) {
        loop {
            thread::sleep(self.every);
            let Some(watched) = self.alive() else {
                return;
            };
            // Without the lock: a file system that hangs holds up this thread, and no handshake.
            for watched in watched {
                self.state().looks_at = Some(LooksAt {
                    watched: Arc::clone(&watched),
                    since: Instant::now(),
                    is_told: false,
                });
                // A parser that panics costs this look, and not all later ones of all files.
                if catch_unwind(AssertUnwindSafe(|| watched.look())).is_err() {
                    tracing::warn!(
                        "a look at the files of TLS has panicked: what was in use stays"
                    );
                }
            }
            self.state().looks_at = None;
        }
    }

    /// Returns what is still in use. If nothing is, the thread ends, and whoever has files again starts
    /// another one.
    fn alive(&self) -> Option<Vec<Arc<dyn Look>>> {
        let mut state = self.state();
        state.watched.retain(|watched| watched.strong_count() > 0);
        let alive: Vec<_> = state.watched.iter().filter_map(Weak::upgrade).collect();
        if alive.is_empty() {
            state.thread_of = None;
            return None;
        }
        Some(alive)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use tracing::Level;

    use super::*;
    use crate::tests::log::logged;

    struct Counted(Mutex<Sender<Option<String>>>);

    impl Look for Counted {
        fn look(&self) {
            let name = thread::current().name().map(str::to_owned);
            let _ = self.0.lock().unwrap().send(name);
        }

        fn files(&self) -> String {
            "/a/file".to_owned()
        }
    }

    #[test]
    fn one_thread_looks_until_nothing_is_in_use() {
        static WATCHER: Watcher = Watcher::new(Duration::from_millis(1));
        for _ in 0..2 {
            let (looks, seen) = channel();
            let counted: Arc<dyn Look> = Arc::new(Counted(Mutex::new(looks)));
            WATCHER.add(Arc::downgrade(&counted)).unwrap();
            for _ in 0..3 {
                let name = seen.recv_timeout(Duration::from_secs(60)).unwrap();
                assert_eq!(name.as_deref(), Some("verbline-tls-files"));
            }
            drop(counted);
            while WATCHER.state().thread_of.is_some() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_child_of_a_fork_starts_a_thread_of_its_own() {
        static WATCHER: Watcher = Watcher::new(Duration::from_millis(1));
        let (looks, seen) = channel();
        let counted: Arc<dyn Look> = Arc::new(Counted(Mutex::new(looks)));
        // As a child has it.
        WATCHER.state().watched.push(Arc::downgrade(&counted));
        WATCHER.state().thread_of = Some(process::id() + 1);
        WATCHER.go_on();
        seen.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(WATCHER.state().thread_of, Some(process::id()));
    }

    #[test]
    fn a_look_without_an_end_is_told_once() {
        static WATCHER: Watcher = Watcher::new(Duration::from_secs(3600));
        let (looks, _seen) = channel();
        let hanging: Arc<dyn Look> = Arc::new(Counted(Mutex::new(looks)));
        WATCHER.add(Arc::downgrade(&hanging)).unwrap();
        let looks_for = |time: Duration| {
            WATCHER.state().looks_at = Some(LooksAt {
                watched: Arc::clone(&hanging),
                since: Instant::now().checked_sub(time).unwrap(),
                is_told: false,
            });
        };
        looks_for(LONGEST_LOOK / 2);
        assert_eq!(logged(|| WATCHER.go_on()), []);
        looks_for(LONGEST_LOOK);
        let lines = logged(|| (0..3).for_each(|_| WATCHER.go_on()));
        let [(Level::WARN, line)] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert!(line.contains("/a/file does not answer"), "{line}");
    }

    #[test]
    fn what_was_dropped_is_forgotten() {
        static WATCHER: Watcher = Watcher::new(Duration::from_secs(3600));
        let (looks, _seen) = channel();
        let kept: Arc<dyn Look> = Arc::new(Counted(Mutex::new(looks.clone())));
        let dropped: Arc<dyn Look> = Arc::new(Counted(Mutex::new(looks)));
        WATCHER.add(Arc::downgrade(&kept)).unwrap();
        WATCHER.add(Arc::downgrade(&dropped)).unwrap();
        drop(dropped);
        assert_eq!(WATCHER.alive().unwrap().len(), 1);
        assert_eq!(WATCHER.state().watched.len(), 1);
    }
}
