//! Which thread this is.

/// Identifies a thread among those that run: the address of a variable that each has for itself. A thread may have
/// the one of a thread that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadId(pub(super) u64);

#[repr(align(16))]
struct Place;

impl ThreadId {
    /// No thread's number has bits below this.
    // Used by an assertion of a constant, which the oldest supported compiler does not count.
    #[allow(dead_code)]
    pub(super) const ALIGN: u64 = align_of::<Place>() as u64;

    #[inline]
    pub(super) fn current() -> Self {
        thread_local! {
            // Without a destructor: it has its address to the very end of the thread.
            static PLACE: Place = const { Place };
        }
        PLACE.with(|place| Self(std::ptr::from_ref(place).addr() as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_run_have_different_numbers_and_keep_theirs() {
        let here = ThreadId::current();
        assert_eq!(here, ThreadId::current());
        assert_eq!(here.0 % ThreadId::ALIGN, 0);
        assert_ne!(here.0, 0);
        thread::scope(|scope| {
            let there = scope.spawn(ThreadId::current);
            assert_ne!(here, there.join().unwrap());
        });
    }
}
