//! The two halves of a fence between threads of which one passes all the time and the other rarely:
//! [`light`] costs nothing, [`heavy`] makes each `light` of the process a full fence.
//!
//! `membarrier(2)`, `MEMBARRIER_CMD_PRIVATE_EXPEDITED`: when it returns, each running thread of the process
//! has passed a state where all its memory accesses before a point of its program happened before those after it.

#[cfg(not(loom))]
pub(crate) use with_kernel::{heavy, is_available, light};

#[cfg(loom)]
pub(crate) use with_loom::{heavy, is_available, light};

#[cfg(not(loom))]
mod with_kernel {
    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::io::Errno;
    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    /// Returns true if the kernel has the call, and has registered this process for it.
    #[inline]
    pub(crate) fn is_available() -> bool {
        static IS_AVAILABLE: OnceLock<bool> = OnceLock::new();
        *IS_AVAILABLE.get_or_init(|| {
            let needed = MembarrierQuery::PRIVATE_EXPEDITED;
            membarrier_query().contains(needed)
                && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
        })
    }

    /// The half of the thread that passes all the time: no instruction, and the compiler moves no access
    /// across it.
    #[inline]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The half of the other thread.
    ///
    /// # Aborts
    ///
    /// Ends the process if the kernel refuses what it has granted before: a filter of system calls was set in
    /// between. Nothing else can take the place of the call then, and a thread that went on would leave the
    /// lock to nobody.
    #[cold]
    pub(crate) fn heavy() {
        if let Err(error) = membarrier(MembarrierCommand::PrivateExpedited) {
            refused(error);
        }
    }

    #[cold]
    #[expect(
        clippy::print_stderr,
        reason = "the process ends, and nothing else can say why"
    )]
    fn refused(error: Errno) -> ! {
        eprintln!(
            "verbline: membarrier(2) failed although the kernel granted it to this process before: {error}. \
             Let the process's filter of system calls permit it, or set the filter before the first use"
        );
        std::process::abort()
    }
}

/// Loom knows no `membarrier`. In each order of the two halves, it has the effect of a full fence in both.
#[cfg(loom)]
mod with_loom {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn is_available() -> bool {
        true
    }

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}
