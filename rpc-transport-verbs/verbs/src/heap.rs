//! [`give_back_free_heap`]: memory that the process has freed goes back to the system.

/// Gives the whole pages of free memory of the heap back to the system. Without this, glibc keeps what lies
/// between blocks that are still in use: malloc_trim(3). It takes a microsecond or two for each piece, in
/// which other threads that use the same arena wait for memory. Does nothing with another C library.
pub fn give_back_free_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes the locks of malloc itself, and touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
