//! [`ThreadTime`]: how long a thread keeps others from using it, which is less than the time that
//! passes if other threads have its processor meanwhile.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The files of the system about one thread: proc_pid_stat(5), and "Scheduler Statistics" in the
/// kernel's documentation.
#[derive(Debug)]
pub(super) struct ThreadTime {
    stat: PathBuf,
    schedstat: PathBuf,
}

/// The times of a thread at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) now: Instant,
    /// `None` if the system does not say.
    pub(super) times: Option<Times>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Time on a processor.
    pub(super) ran: Duration,
    /// Time for which the thread was ready, and waited for a processor.
    pub(super) was_ready: Duration,
    /// The thread runs, or is ready. Otherwise it waits in a system call.
    pub(super) is_running: bool,
}

impl ThreadTime {
    /// Returns the files of the calling thread.
    pub(super) fn of_this_thread() -> Self {
        let id = rustix::thread::gettid().as_raw_nonzero();
        let directory = PathBuf::from(format!("/proc/self/task/{id}"));
        Self {
            stat: directory.join("stat"),
            schedstat: directory.join("schedstat"),
        }
    }

    pub(super) fn sample(&self) -> Sample {
        Sample {
            now: Instant::now(),
            times: self.times(),
        }
    }

    fn times(&self) -> Option<Times> {
        let mut buf = [0; START_LEN];
        let stat = start_of(&self.stat, &mut buf)?;
        // The name, in parentheses, may contain any character. It has at most 15.
        let (_, after_name) = stat.rsplit_once(')')?;
        let is_running = after_name.trim_start().starts_with('R');
        let schedstat = start_of(&self.schedstat, &mut buf)?;
        let mut fields = schedstat.split_whitespace();
        let mut next = || Some(Duration::from_nanos(fields.next()?.parse().ok()?));
        Some(Times {
            ran: next()?,
            was_ready: next()?,
            is_running,
        })
    }
}

/// Bytes of each file that are read: more than the fields that are used have.
const START_LEN: usize = 128;

/// Reads the start of a file, without an allocation: tests count those of a process that serves.
fn start_of<'a>(path: &Path, buf: &'a mut [u8; START_LEN]) -> Option<&'a str> {
    let len = File::open(path).and_then(|mut file| file.read(buf)).ok()?;
    // A thread's name may be cut in the middle of a character.
    let valid = match str::from_utf8(&buf[..len]) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    };
    str::from_utf8(&buf[..valid]).ok()
}

impl Sample {
    /// Returns how long the thread was in use since `earlier`: it ran, or waited in a system call. All
    /// of the time that passed, if the system does not say more.
    pub(super) fn in_use_since(&self, earlier: &Self) -> Duration {
        let passed = self.now.saturating_duration_since(earlier.now);
        let (Some(now), Some(before)) = (self.times, earlier.times) else {
            return passed;
        };
        // A kernel that is configured not to count prints zeros.
        if now.ran.is_zero() {
            return passed;
        }
        let ran = now.ran.saturating_sub(before.ran);
        if now.is_running {
            // The time for which a ready thread has waited is counted when the wait ends.
            ran.min(passed)
        } else {
            passed.saturating_sub(now.was_ready.saturating_sub(before.was_ready))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn sample(start: Instant, [passed, ran, was_ready]: [u32; 3], is_running: bool) -> Sample {
        Sample {
            now: start + MS * passed,
            times: Some(Times {
                ran: MS * ran,
                was_ready: MS * was_ready,
                is_running,
            }),
        }
    }

    #[test]
    fn time_in_which_others_had_the_processor_does_not_count() {
        let start = Instant::now();
        let first = sample(start, [0, 5, 5], true);
        // It ran for 3 ms, waited for 50, and waits again.
        let later = sample(start, [100, 8, 55], true);
        assert_eq!(later.in_use_since(&first), MS * 3);
        // It sleeps, and had waited for 40 ms before.
        let later = sample(start, [100, 8, 45], false);
        assert_eq!(later.in_use_since(&first), MS * 60);
        let uncounted = sample(start, [100, 0, 0], true);
        let nothing = sample(start, [0, 0, 0], true);
        assert_eq!(uncounted.in_use_since(&nothing), MS * 100);
        let unknown = Sample {
            times: None,
            ..later
        };
        assert_eq!(unknown.in_use_since(&first), MS * 100);
    }

    #[test]
    fn a_thread_that_computes_and_one_that_sleeps_are_in_use() {
        let time = ThreadTime::of_this_thread();
        let first = time.sample();
        assert!(first.times.is_some(), "{time:?} cannot be read");
        let mut sum = 0u64;
        while time.sample().in_use_since(&first) < MS * 5 {
            sum = black_box(sum + 1);
        }
        let (time, sleeper) = {
            let (send, receive) = std::sync::mpsc::channel();
            let (wake, woken) = std::sync::mpsc::channel::<()>();
            let sleeper = thread::spawn(move || {
                send.send(ThreadTime::of_this_thread()).unwrap();
                let _ = woken.recv();
            });
            (receive.recv().unwrap(), (sleeper, wake))
        };
        while time.sample().times.is_none_or(|times| times.is_running) {
            thread::yield_now();
        }
        let first = time.sample();
        thread::sleep(MS * 5);
        assert!(time.sample().in_use_since(&first) >= MS * 5);
        let (thread, wake) = sleeper;
        drop(wake);
        thread.join().unwrap();
    }
}
