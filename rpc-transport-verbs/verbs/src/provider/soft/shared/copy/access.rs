//! The loads and stores of this module's copies.
//!
//! A peer may write the bytes at the same moment. For Rust, a plain access, and a volatile one, would
//! then be a data race; an atomic one needs a reference to an atomic, which a pointer from `&[u8]`
//! cannot give. So the accesses are machine instructions: the compiler neither repeats nor splits
//! nor omits them, and what they read is whatever the memory holds at that moment.

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(super) use portable::{copy, load_byte, load_word, store_byte, store_word};
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) use x86_64::{copy, load_byte, load_word, store_byte, store_word};

/// Bytes of a word.
pub(super) const WORD: usize = 8;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::asm;
    use std::ptr::NonNull;

    use super::WORD;
    use crate::prefetch::{self, LINE_LEN};

    /// Above this length, the string instruction copies faster than a loop: longer than a slot.
    const LONG: usize = 8192;

    /// Bytes that the loop copies at a time.
    const BLOCK: usize = 64;

    /// Bytes whose cache lines are requested before any of them is copied. The lines of a message
    /// come from the sender's core, and a copy alone requests only as many ahead as the core
    /// buffers stores.
    const AHEAD: usize = 4096 + 256;

    /// Copies `len` bytes, reading some of them twice.
    ///
    /// # Safety
    ///
    /// `from` is readable and `to` is writable for `len` bytes, and the two do not overlap.
    #[inline(never)]
    pub(in super::super) unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
        // SAFETY: the caller guarantees `len` bytes on both sides. Each block below begins at the
        // first byte or ends at the last one, and is not longer than `len`; blocks may overlap.
        unsafe {
            if len > 128 {
                copy_long(from, to, len);
            } else if len >= 64 {
                asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups {d}, [{from} + 48]",
                    "movups {e}, [{from} + {len} - 64]",
                    "movups {f}, [{from} + {len} - 48]",
                    "movups {g}, [{from} + {len} - 32]",
                    "movups {h}, [{from} + {len} - 16]",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + 32], {c}",
                    "movups [{to} + 48], {d}",
                    "movups [{to} + {len} - 64], {e}",
                    "movups [{to} + {len} - 48], {f}",
                    "movups [{to} + {len} - 32], {g}",
                    "movups [{to} + {len} - 16], {h}",
                    from = in(reg) from.as_ptr(),
                    to = in(reg) to.as_ptr(),
                    len = in(reg) len,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    e = out(xmm_reg) _,
                    f = out(xmm_reg) _,
                    g = out(xmm_reg) _,
                    h = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            } else if len >= 32 {
                asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + {len} - 32]",
                    "movups {d}, [{from} + {len} - 16]",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + {len} - 32], {c}",
                    "movups [{to} + {len} - 16], {d}",
                    from = in(reg) from.as_ptr(),
                    to = in(reg) to.as_ptr(),
                    len = in(reg) len,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            } else if len >= 16 {
                asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + {len} - 16]",
                    "movups [{to}], {a}",
                    "movups [{to} + {len} - 16], {b}",
                    from = in(reg) from.as_ptr(),
                    to = in(reg) to.as_ptr(),
                    len = in(reg) len,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            } else if len >= WORD {
                let last = len - WORD;
                let (head, tail) = (load_word(from), load_word(from.add(last)));
                store_word(to, head);
                store_word(to.add(last), tail);
            } else {
                for offset in 0..len {
                    store_byte(to.add(offset), load_byte(from.add(offset)));
                }
            }
        }
    }

    /// Copies more than 64 bytes.
    ///
    /// # Safety
    ///
    /// As for `copy`.
    #[cold]
    #[inline(never)]
    unsafe fn copy_long(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
        if len > LONG {
            // SAFETY: the caller guarantees `len` bytes on both sides; the direction flag is clear
            // at the beginning of an `asm` block.
            unsafe {
                asm!(
                    "rep movsb",
                    inout("rsi") from.as_ptr() => _,
                    inout("rdi") to.as_ptr() => _,
                    inout("rcx") len => _,
                    options(nostack, preserves_flags),
                );
            }
            return;
        }
        let mut offset = 0;
        while offset < len.min(AHEAD) {
            prefetch::to_read(from.as_ptr().wrapping_add(offset));
            offset += LINE_LEN;
        }
        let last = len - BLOCK;
        let mut offset = 0;
        while offset < last {
            // SAFETY: `offset` is less than `last`, so a block from there is within both ranges.
            unsafe { copy_block(from.add(offset), to.add(offset)) };
            offset += BLOCK;
        }
        // SAFETY: the last block ends with both ranges, which are longer than a block.
        unsafe { copy_block(from.add(last), to.add(last)) };
    }

    /// Copies [`BLOCK`] bytes.
    ///
    /// # Safety
    ///
    /// As for `copy`.
    #[inline(always)]
    unsafe fn copy_block(from: NonNull<u8>, to: NonNull<u8>) {
        // SAFETY: the caller guarantees the bytes of a block on both sides.
        unsafe {
            asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + 32], {c}",
                "movups [{to} + 48], {d}",
                from = in(reg) from.as_ptr(),
                to = in(reg) to.as_ptr(),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }

    macro_rules! access {
        ($load:ident, $store:ident, $number:ty, $class:ident, $moves:literal, $stores:literal) => {
            /// # Safety
            ///
            /// The bytes of the number are mapped and readable.
            #[inline(always)]
            pub(in super::super) unsafe fn $load(from: NonNull<u8>) -> $number {
                let value: $number;
                // SAFETY: the caller guarantees that the bytes are readable.
                unsafe {
                    asm!(
                        $moves,
                        out($class) value,
                        in(reg) from.as_ptr(),
                        options(nostack, preserves_flags, readonly),
                    );
                }
                value
            }

            /// # Safety
            ///
            /// The bytes of the number are mapped and writable.
            #[inline(always)]
            pub(in super::super) unsafe fn $store(to: NonNull<u8>, value: $number) {
                // SAFETY: the caller guarantees that the bytes are writable.
                unsafe {
                    asm!(
                        $stores,
                        in(reg) to.as_ptr(),
                        in($class) value,
                        options(nostack, preserves_flags),
                    );
                }
            }
        };
    }

    access!(
        load_word,
        store_word,
        u64,
        reg,
        "mov {0}, qword ptr [{1}]",
        "mov qword ptr [{0}], {1}"
    );
    access!(
        load_byte,
        store_byte,
        u8,
        reg_byte,
        "mov {0}, byte ptr [{1}]",
        "mov byte ptr [{0}], {1}"
    );
}

/// Volatile accesses, for other processors and for Miri: on memory that another process writes, as
/// close as Rust itself comes.
#[cfg(any(not(target_arch = "x86_64"), miri))]
mod portable {
    use std::ptr::NonNull;

    use super::WORD;

    /// # Safety
    ///
    /// `from` is readable and `to` is writable for `len` bytes, and the two do not overlap.
    pub(in super::super) unsafe fn copy(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
        let words = len / WORD * WORD;
        // SAFETY: every offset is less than `len`, which the caller guarantees on both sides.
        unsafe {
            for offset in (0..words).step_by(WORD) {
                store_word(to.add(offset), load_word(from.add(offset)));
            }
            for offset in words..len {
                store_byte(to.add(offset), load_byte(from.add(offset)));
            }
        }
    }

    /// # Safety
    ///
    /// The eight bytes are mapped and readable.
    pub(in super::super) unsafe fn load_word(from: NonNull<u8>) -> u64 {
        if from.cast::<u64>().is_aligned() {
            // SAFETY: the pointer is aligned, as just checked; the caller guarantees the rest.
            return unsafe { from.cast::<u64>().read_volatile() };
        }
        // SAFETY: each offset is less than eight, and the caller guarantees eight bytes.
        u64::from_ne_bytes(std::array::from_fn(|at| unsafe { load_byte(from.add(at)) }))
    }

    /// # Safety
    ///
    /// The eight bytes are mapped and writable.
    pub(in super::super) unsafe fn store_word(to: NonNull<u8>, value: u64) {
        if to.cast::<u64>().is_aligned() {
            // SAFETY: the pointer is aligned, as just checked; the caller guarantees the rest.
            return unsafe { to.cast::<u64>().write_volatile(value) };
        }
        for (at, byte) in value.to_ne_bytes().into_iter().enumerate() {
            // SAFETY: the offset is less than eight, and the caller guarantees eight bytes.
            unsafe { store_byte(to.add(at), byte) };
        }
    }

    /// # Safety
    ///
    /// The byte is mapped and readable.
    pub(in super::super) unsafe fn load_byte(from: NonNull<u8>) -> u8 {
        // SAFETY: the caller guarantees that the byte is readable; every value is valid.
        unsafe { from.read_volatile() }
    }

    /// # Safety
    ///
    /// The byte is mapped and writable.
    pub(in super::super) unsafe fn store_byte(to: NonNull<u8>, value: u8) {
        // SAFETY: the caller guarantees that the byte is writable.
        unsafe { to.write_volatile(value) };
    }
}
