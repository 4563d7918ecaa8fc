//! [`Recovery`]: how soon all calls are good again after an overload.

use std::time::Duration;

/// The calls of a phase that follows an overload, in windows by their intended starts.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// Calls and good calls of each window.
    windows: Vec<(u32, u32)>,
}

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(100);

/// Share of a window's calls that have to be good for full goodput.
const FULL: f64 = 0.95;

impl Recovery {
    /// Counts a call that was to start `in_phase` after the overload ended.
    pub fn add(&mut self, in_phase: Duration, is_good: bool) {
        let index = (in_phase.as_nanos() / WINDOW.as_nanos()) as usize;
        if self.windows.len() <= index {
            self.windows.resize(index + 1, (0, 0));
        }
        let (calls, good) = &mut self.windows[index];
        *calls += 1;
        *good += u32::from(is_good);
    }

    /// Returns the time after which the goodput was full: the end of the last window of 100 ms in
    /// which less than 95 % of the calls were good. `None` if this is the last window of all.
    #[must_use]
    pub fn time(&self) -> Option<Duration> {
        let is_short = |&(calls, good): &(u32, u32)| f64::from(good) < f64::from(calls) * FULL;
        match self.windows.iter().rposition(is_short) {
            None => Some(Duration::ZERO),
            Some(last) if last + 1 == self.windows.len() => None,
            Some(last) => Some(WINDOW * (last as u32 + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovery(bad: impl Fn(u32) -> bool) -> Recovery {
        let mut recovery = Recovery::default();
        for call in 0..1000 {
            recovery.add(Duration::from_millis(u64::from(call)), !bad(call));
        }
        recovery
    }

    #[test]
    fn it_is_the_end_of_the_last_window_with_many_failures() {
        assert_eq!(recovery(|_| false).time(), Some(Duration::ZERO));
        let time = recovery(|call| call < 340).time();
        assert_eq!(time, Some(Duration::from_millis(400)));
        // A stray failure does not count, and a relapse does.
        let time = recovery(|call| call < 340 || call == 700).time();
        assert_eq!(time, Some(Duration::from_millis(400)));
        let time = recovery(|call| call < 340 || (610..620).contains(&call)).time();
        assert_eq!(time, Some(Duration::from_millis(700)));
    }

    #[test]
    fn calls_that_fail_to_the_end_have_not_recovered() {
        assert_eq!(recovery(|call| call % 2 == 0).time(), None);
    }
}
