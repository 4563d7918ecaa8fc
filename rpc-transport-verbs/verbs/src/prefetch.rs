//! Requests for cache lines that are not waited for.
//!
//! Where lines come from another core, the requests of several are under way at once; the loads or stores
//! themselves would wait for one after the other.

/// Bytes of a cache line.
pub(crate) const LINE_LEN: usize = 64;

/// Requests the line of an address for reading. The address may be any.
#[inline(always)]
pub(crate) fn to_read(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch changes nothing and does not fail, whatever the address; every x86-64 processor
    // has it.
    unsafe {
        std::arch::asm!(
            "prefetcht0 [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// Requests the line of an address for writing: another core that has read it gives it up. The address may
/// be any.
#[inline(always)]
pub(crate) fn to_write(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as in `to_read`. Some processors have the instruction as a no-op.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}
