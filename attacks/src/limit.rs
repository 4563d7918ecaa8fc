//! [`Limiter`]: keeps a process to a share of a core by stopping it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use benches::child::{CpuTime, Process};

/// Time between two looks at the processor time.
const PERIOD: Duration = Duration::from_millis(2);

/// Limits a process until this is dropped.
#[derive(Debug)]
pub(crate) struct Limiter {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Limiter {
    /// Limits `process` to `share` of a core from now on. A stopped process keeps all that it
    /// holds.
    #[must_use]
    pub(crate) fn start(process: &Process, share: f64) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (for_thread, pid, cpu_time) = (Arc::clone(&ends), process.pid(), process.cpu_time());
        let thread = thread::spawn(move || limit(&for_thread, pid, &cpu_time, share));
        Self {
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Limiter {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

fn limit(ends: &AtomicBool, pid: Pid, cpu_time: &CpuTime, share: f64) {
    let start = Instant::now();
    let Ok(before) = cpu_time.read() else {
        return;
    };
    while !ends.load(Ordering::Relaxed) {
        let Ok(used) = cpu_time.read() else {
            return;
        };
        let allowed = start.elapsed().mul_f64(share) + PERIOD;
        let signal = match used - before > allowed {
            true => Signal::STOP,
            false => Signal::CONT,
        };
        // A process that has ended needs no limit.
        let _ = kill_process(pid, signal);
        thread::sleep(PERIOD);
    }
    let _ = kill_process(pid, Signal::CONT);
}
