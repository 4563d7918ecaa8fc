//! Regions: what a child of a fork sees of them, and windows that are bound to them.

use std::ffi::{c_int, c_void};
use std::mem::{transmute, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::thread;

use super::{PAGE, Program, ibv_dereg_mr, pages};
use crate::abi::{ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_pd, ibv_qp};
use crate::post::flag;

/// `IBV_ACCESS_LOCAL_WRITE`, `_REMOTE_WRITE` and `_MW_BIND`.
const BINDABLE: c_int = 1 | 2 | 16;

#[test]
fn a_child_of_a_fork_writes_into_pages_of_its_own() {
    let program = Program::new(0);
    let bytes = pages(2);
    bytes.fill(1);
    let mr = program.register(&mut bytes[..10]);
    let earlier = program.register(&mut bytes[PAGE..][..10]);
    assert!(!mr.is_null() && !earlier.is_null());
    // SAFETY: the program's region, which no request names.
    assert_eq!(unsafe { ibv_dereg_mr(earlier) }, 0);
    write_in_child(bytes, &[0, PAGE - 1, PAGE, 2 * PAGE - 1]);
    assert!(bytes.iter().all(|byte| *byte == 1), "of the child");
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
}

#[test]
fn so_does_one_that_is_forked_while_other_threads_register() {
    const FORKS: usize = 100;
    let program = Program::new(0);
    let bytes = pages(1);
    bytes.fill(1);
    let mr = program.register(&mut bytes[..10]);
    assert!(!mr.is_null());
    /// Also if a child is not what it should be.
    struct StopAtEnd<'a>(&'a AtomicBool);
    impl Drop for StopAtEnd<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stops = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = StopAtEnd(&stops);
        for _ in 0..2 {
            scope.spawn(|| {
                let (program, own) = (Program::new(0), pages(1));
                while !stops.load(Ordering::Relaxed) {
                    let mr = program.register(&mut own[..10]);
                    assert!(!mr.is_null());
                    // SAFETY: the program's region, which no request names.
                    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
                }
            });
        }
        let wrote = (0..FORKS).filter(|_| {
            bytes.fill(1);
            write_in_child(bytes, &[0, PAGE - 1]);
            bytes.iter().any(|byte| *byte != 1)
        });
        let wrote = wrote.count();
        drop(stop);
        assert_eq!(wrote, 0, "of {FORKS} children");
    });
    // SAFETY: as above.
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
}

/// A program's own function before a fork, as of a cache of registrations, registers and deregisters.
#[test]
fn a_function_before_a_fork_may_deregister() {
    static REGISTERED: AtomicPtr<ibv_mr> = AtomicPtr::new(ptr::null_mut());
    extern "C" fn deregister() {
        let mr = REGISTERED.swap(ptr::null_mut(), Ordering::Relaxed);
        if !mr.is_null() {
            // SAFETY: the program's region, which no request names.
            assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
        }
    }
    let program = Program::new(0);
    let bytes = pages(1);
    bytes.fill(1);
    // SAFETY: the function may run before any fork.
    let failed = unsafe { libc::pthread_atfork(Some(deregister), None, None) };
    assert_eq!(failed, 0);
    REGISTERED.store(program.register(&mut bytes[..10]), Ordering::Relaxed);
    write_in_child(bytes, &[0]);
    assert!(REGISTERED.load(Ordering::Relaxed).is_null());
    assert!(bytes.iter().all(|byte| *byte == 1), "of the child");
}

/// Forks, and lets the child write 2 at these places.
fn write_in_child(bytes: &mut [u8], at: &[usize]) {
    // SAFETY: the child writes into its memory, and ends.
    unsafe {
        match libc::fork() {
            0 => {
                for at in at {
                    bytes.as_mut_ptr().add(*at).write_volatile(2);
                }
                libc::_exit(0);
            }
            child => {
                assert!(child > 0);
                let mut status = -1;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                assert_eq!(status, 0);
            }
        }
    }
}

#[test]
fn a_region_with_a_window_is_busy() {
    type Alloc = unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw;
    type Bind = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int;
    type Dealloc = unsafe extern "C" fn(*mut ibv_mw) -> c_int;
    for device in [0, 1] {
        let program = Program::new(device);
        let bytes = pages(1);
        let (addr, length) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the program's objects, and functions of these types at their places.
        unsafe {
            let ops = &(*program.context).ops;
            let alloc = transmute::<*const c_void, Alloc>(ops[7]);
            let bind = transmute::<*const c_void, Bind>(ops[8]);
            let dealloc = transmute::<*const c_void, Dealloc>(ops[9]);
            let mr: *mut ibv_mr = super::ibv_reg_mr(program.pd, addr.cast(), length, BINDABLE);
            let mw = alloc(program.pd, 1);
            assert!(!mr.is_null() && !mw.is_null());
            let mut request: ibv_mw_bind = zeroed();
            request.send_flags = flag::SIGNALED;
            request.info = ibv_mw_bind_info {
                mr,
                addr: addr.expose_provenance() as u64,
                length: 10,
                access: 2,
            };
            for (len, expected) in [(10, libc::EBUSY), (0, 0)] {
                request.info.length = len;
                assert_eq!(bind(program.qp, mw, ptr::from_mut(&mut request)), 0);
                assert_eq!(program.status(), 0);
                assert_eq!(ibv_dereg_mr(mr), expected, "{device}");
            }
            assert_eq!(dealloc(mw), 0);
        }
    }
}
