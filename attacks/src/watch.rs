//! What an attacked process shows from outside: where its threads wait, and its memory.

use std::collections::BTreeMap;
use std::fs;

use benches::Outcome;

/// The kernel functions in which a thread that has nothing to do waits, by the beginnings of their
/// names. `0` is a thread that runs. One thread of the server reads questions from a pipe.
const AT_REST: [&str; 8] = [
    "0",
    "futex",
    "do_futex",
    "ep_poll",
    "do_epoll",
    "hrtimer_nanosleep",
    "pipe_read",
    "anon_pipe_read",
];

/// The beginning of the names of the threads that may wait for a client: they set up connections,
/// and there are several of them.
const MAY_WAIT: &str = "verbline-prep";

/// Finds threads that stay in one place where no thread should wait.
#[derive(Debug)]
pub(crate) struct Watch {
    pid: u32,
    /// How often in a row each thread was seen where it is.
    seen: BTreeMap<String, (String, u32)>,
    blocked: BTreeMap<String, String>,
}

impl Watch {
    /// Looks in a row after which a thread counts as blocked.
    const LOOKS: u32 = 3;

    /// Watches a process.
    #[must_use]
    pub(crate) fn new(pid: u32) -> Self {
        Self {
            pid,
            seen: BTreeMap::new(),
            blocked: BTreeMap::new(),
        }
    }

    /// Looks once at each thread.
    ///
    /// # Errors
    ///
    /// Fails if the process has ended.
    pub(crate) fn look(&mut self) -> Outcome<()> {
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))? {
            let task = task?.path();
            let read = |file: &str| fs::read_to_string(task.join(file));
            // A thread may end meanwhile.
            let (Ok(name), Ok(place)) = (read("comm"), read("wchan")) else {
                continue;
            };
            let id = task.file_name().unwrap_or_default().to_string_lossy();
            let thread = format!("{} {id}", name.trim_end());
            if AT_REST.iter().any(|rest| place.starts_with(rest)) {
                self.seen.remove(&thread);
                continue;
            }
            let (last, count) = self.seen.entry(thread.clone()).or_default();
            *count = if *last == place { *count + 1 } else { 1 };
            last.clone_from(&place);
            if *count >= Self::LOOKS {
                self.blocked.insert(thread, place);
            }
        }
        Ok(())
    }

    /// Returns the threads that were blocked, and where; empty if none was.
    #[must_use]
    pub(crate) fn blocked(&self) -> String {
        let threads = self.blocked.iter();
        let threads: Vec<String> = threads
            .map(|(thread, place)| format!("{thread} in {place}"))
            .collect();
        threads.join(", ")
    }

    /// Returns true if a thread was blocked that never has to wait for a client.
    #[must_use]
    pub(crate) fn is_harmed(&self) -> bool {
        let mut threads = self.blocked.keys();
        threads.any(|thread| !thread.starts_with(MAY_WAIT))
    }
}

/// Returns the resident memory of a process in MiB.
///
/// # Errors
///
/// Fails if the process has ended.
pub(crate) fn resident_mib(pid: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: u64 = kib.ok_or("the kernel does not tell the memory")?.parse()?;
    Ok(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_a_socket_is_blocked() {
        use std::io::Read;
        use std::os::unix::net::UnixStream;

        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let reader = std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || ours.read(&mut [0]));
        let reader = reader.expect("a thread");
        let mut watch = Watch::new(std::process::id());
        for _ in 0..100 {
            watch.look().expect("this process runs");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // Not every kernel tells where a thread waits.
        let text = watch.blocked();
        let tells = fs::read_to_string("/proc/self/wchan").is_ok_and(|place| !place.is_empty());
        assert!(
            !tells || text.contains("reader") && watch.is_harmed(),
            "{text}"
        );
        drop(theirs);
        reader
            .join()
            .expect("it ends")
            .expect("the end of the stream");
    }
}
