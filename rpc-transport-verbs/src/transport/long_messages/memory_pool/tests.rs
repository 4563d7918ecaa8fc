//! Blocks are taken and given back on several threads, within the limit, and chunks come and go.

use std::thread;
use std::time::{Duration, Instant};

use rpc_core::transport::MessageMemory;
use rustix::event::{PollFd, PollFlags, poll};
use verbline_verbs::Context;

use super::super::process_memory::CountedBytes;
#[cfg(feature = "test-util")]
use super::super::registrar::IS_UNHEARD;
use super::super::registrar::{Shared, TICK, ask, does_tick, round, start};
use super::state::REFUSAL_TICKS;
use super::*;

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn pool_of(process_memory: &Arc<ProcessMemory>, limit: usize) -> Arc<MemoryPool> {
    let config = PoolConfig {
        domain: Context::open("soft").unwrap().alloc_pd().unwrap(),
        wakeup: Wakeup::new().unwrap(),
        process_memory: Arc::clone(process_memory),
        limit: limit as u64,
        max_region_len: 1 << 30,
        is_readable: false,
    };
    start().expect("the registrar");
    MemoryPool::new(config, Purpose::Receiving, limit as u64)
}

fn pool(limit: usize) -> Arc<MemoryPool> {
    pool_of(&Arc::default(), limit)
}

/// Takes a block, and waits while one is registered.
fn take(pool: &MemoryPool, len: usize) -> RegisteredBuf {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match pool.allocate(len) {
            Ok(buf) => return buf,
            Err(AllocateError::NotNow | AllocateError::InUse) => {
                assert!(Instant::now() < deadline, "{len} bytes");
            }
            Err(error) => panic!("{error}"),
        }
        thread::yield_now();
    }
}

/// Like [`take`], of a pool that never says that memory is in use.
fn take_while_told_to_wait(pool: &MemoryPool, len: usize) {
    wait_until("there is memory", || match pool.allocate(len) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, AllocateError::NotNow);
            false
        }
    });
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Ticks, as the registrar does each second.
fn tick_until(what: &str, pool: &MemoryPool, mut done: impl FnMut() -> bool) {
    let most_ticks = 2 * REFUSAL_TICKS;
    let ticks = (0..most_ticks).find(|_| {
        pool.tick();
        done()
    });
    assert!(ticks.is_some(), "{what}, after {most_ticks} ticks");
}

#[test]
fn memory_is_registered_when_it_is_wanted_and_goes_when_it_is_not() {
    let pool = pool(16 * MIB);
    assert_eq!(pool.bytes(), (0, 0));
    assert_eq!(pool.allocate(5000).unwrap_err(), AllocateError::NotNow);
    let mut buf = take(&pool, 5000);
    assert_eq!((buf.as_mut().len(), buf.block_len()), (5000, 8192));
    assert_eq!(pool.bytes(), (256 << 10, 8192));
    drop(buf);
    assert_eq!(pool.bytes(), (256 << 10, 0));
    tick_until("the idle chunk goes", &pool, || pool.bytes() == (0, 0));
    drop(take(&pool, 5000));
}

#[test]
fn blocks_are_exclusive_and_keep_what_was_written() {
    let pool = pool(16 * MIB);
    let lens = [1, 8192, 8193, 100_000, MIB, 5 * MIB];
    let mut bufs: Vec<_> = (0..18).map(|at| take(&pool, lens[at % 3])).collect();
    bufs.extend(lens[3..].iter().map(|len| take(&pool, *len)));
    for (number, buf) in bufs.iter_mut().enumerate() {
        buf.as_mut().fill(number as u8);
    }
    for (number, buf) in bufs.iter_mut().enumerate() {
        assert!(buf.as_mut().iter().all(|byte| *byte == number as u8));
    }
    let shared: Vec<_> = bufs
        .into_iter()
        .map(|buf| Box::new(buf).freeze(1))
        .collect();
    for (number, bytes) in shared.iter().enumerate() {
        assert_eq!(bytes[..], [number as u8]);
        assert!(pool.region_of(bytes).is_some());
    }
    assert!(pool.region_of(&Bytes::from_static(b"elsewhere")).is_none());
    drop(shared);
    assert_eq!(pool.bytes().1, 0);
}

#[test]
fn what_can_never_fit_is_refused_and_what_may_fit_waits() {
    let pool = pool(MIB);
    let error = pool.allocate(MIB + 1).unwrap_err();
    let (len, limit) = (MIB + 1, MIB);
    assert_eq!(error, AllocateError::TooLong { len, limit });
    let all = take(&pool, MIB);
    assert_eq!(pool.allocate(1).unwrap_err(), AllocateError::NotNow);
    wait_until("it is known that there is no room", || {
        pool.allocate(1).unwrap_err() == AllocateError::InUse
    });
    assert_eq!(pool.bytes().0, MIB as u64);
    // The chunk goes to make room for blocks of another length, long before it is idle. Until then,
    // nobody is told that it is in use.
    drop(all);
    assert_ne!(pool.allocate(1).err(), Some(AllocateError::InUse));
    let short = take(&pool, 1);
    assert!(pool.bytes().0 <= MIB as u64);
    drop(short);
}

#[test]
fn two_lengths_for_which_there_is_no_room_at_once_do_not_take_each_others_chunk() {
    let pool = pool(MIB);
    let is_served = || {
        let state = pool.lock();
        state.wanted.is_empty() || state.room != Room::Made
    };
    let attempt = |len| {
        let taken = pool.allocate(len).ok();
        wait_until("the registrar has served it", is_served);
        taken
    };
    let one = (0..20).find_map(|_| attempt(MIB / 2).or_else(|| attempt(MIB)));
    assert!(one.is_some(), "each deregisters the chunk of the other");
}

#[test]
fn a_chunk_that_nobody_takes_is_reserved_for_a_while() {
    let pool = pool(MIB);
    let before = hooks::now();
    assert_eq!(pool.allocate(1).unwrap_err(), AllocateError::NotNow);
    wait_until("there is a chunk", || pool.bytes().0 > 0);
    let removed = |now| pool.lock().remove_free_chunk(now);
    assert!(removed(before).is_none());
    assert!(removed(hooks::now() + TIME_TO_TAKE).is_some());
}

#[test]
fn a_reserved_chunk_of_another_pool_makes_nobody_say_that_memory_is_in_use() {
    let process_memory = Arc::default();
    let [first, second] = [0, 1].map(|_| pool_of(&process_memory, MIB));
    assert_eq!(first.allocate(MIB).unwrap_err(), AllocateError::NotNow);
    wait_until("there is a chunk", || first.bytes().0 > 0);
    take_while_told_to_wait(&second, MIB);
}

#[test]
fn an_earlier_shortage_says_nothing_of_another_length() {
    let pool = pool(MIB);
    pool.lock().room = Room::None;
    for _ in 0..2 {
        assert_ne!(pool.allocate(1).err(), Some(AllocateError::InUse));
    }
}

#[test]
fn lengths_that_nobody_wants_any_more_hold_up_no_other() {
    let pool = pool(2 * MIB);
    let [half, quarter] = [MIB / 2, MIB / 4];
    let mut bufs = [half, half, half, quarter].map(|len| Some(take(&pool, len)));
    // Two messages wait. Each gets the memory of one that is long enough.
    for len in [half, quarter] {
        wait_until("it is known that there is no room", || {
            pool.allocate(len).err() == Some(AllocateError::InUse)
        });
    }
    for (at, len) in [quarter, half].into_iter().enumerate() {
        drop(bufs[at].take());
        bufs[at] = Some(take(&pool, len));
    }
    drop((bufs[0].take(), bufs[1].take()));
    take_while_told_to_wait(&pool, MIB);
}

#[test]
fn a_limit_that_is_no_power_of_two_can_be_used_up() {
    let pool = pool(100_000);
    let all = take(&pool, 100_000);
    assert_eq!(all.block_len(), 100_000);
    assert!(pool.allocate(100_001).is_err());
}

/// Returns true if the pool's poller is woken within this time.
fn is_woken(pool: &MemoryPool, patience: Duration) -> bool {
    let patience = patience.try_into().unwrap();
    let mut file = [PollFd::new(&pool.config.wakeup, PollFlags::IN)];
    poll(&mut file, Some(&patience)).unwrap() == 1
}

/// Clears the notification of a chunk or of windows that the test has taken, after waiting for it:
/// the registrar notifies the poller after it has added them, when the test may have them already.
fn await_and_clear_notification(pool: &MemoryPool) {
    assert!(is_woken(pool, PATIENCE));
    pool.config.wakeup.clear();
}

/// Has the system refuse memory, so that the pool asks the registrar for none: its poller is woken by
/// those who give back alone, for the ten ticks of the refusal.
fn have_memory_refused(pool: &MemoryPool) {
    pool.refused(MIB, &VerbsError::RemoteWithoutLocalWrite);
}

#[test]
fn whoever_waits_is_woken_from_the_thread_that_gives_back() {
    let pool = pool(MIB);
    let all = take(&pool, MIB);
    await_and_clear_notification(&pool);
    have_memory_refused(&pool);
    assert_eq!(pool.allocate(MIB).unwrap_err(), AllocateError::InUse);
    thread::spawn(move || drop(all)).join().unwrap();
    assert!(is_woken(&pool, Duration::ZERO));
    drop(take(&pool, MIB));
}

#[test]
fn pollers_share_the_limit_of_the_process() {
    let process_memory = Arc::default();
    let pools = [0, 1].map(|_| pool_of(&process_memory, 2 * MIB));
    let first = take(&pools[0], 2 * MIB);
    assert_eq!(pools[1].allocate(MIB).unwrap_err(), AllocateError::NotNow);
    // What the first one holds free is deregistered for the second.
    drop(first);
    let second = take(&pools[1], MIB);
    let sum = || pools[0].bytes().0 + pools[1].bytes().0;
    assert!(sum() <= 2 * MIB as u64);
    drop(second);
}

/// Counts bytes of a process that may register 1 MiB.
fn reserve(memory: &Arc<ProcessMemory>, len: usize) -> Result<CountedBytes, Full> {
    let limit = MIB as u64;
    memory.reserve(Purpose::Sending, len as u64, (limit, limit))
}

#[test]
fn memory_outlives_its_pool_and_is_counted_until_it_is_dropped() {
    let process_memory: Arc<ProcessMemory> = Arc::default();
    let pool = pool_of(&process_memory, MIB);
    let mut buf = take(&pool, MIB);
    buf.write(3, b"bytes");
    let bytes = Box::new(buf).freeze(MIB);
    drop(pool);
    thread::spawn(move || {
        assert_eq!(&bytes[3..8], b"bytes");
        assert!(reserve(&process_memory, 1).is_err());
        drop(bytes);
        wait_until("the memory is gone", || {
            reserve(&process_memory, MIB).is_ok()
        });
    })
    .join()
    .unwrap();
}

#[test]
fn threads_give_back_while_the_poller_takes() {
    let pool = pool(4 * MIB);
    let (sender, receiver) = crossbeam_channel::bounded::<RegisteredBuf>(64);
    thread::scope(|scope| {
        for _ in 0..2 {
            let receiver = receiver.clone();
            scope.spawn(move || {
                for mut buf in receiver {
                    let first = buf.as_mut()[0];
                    assert!(buf.as_mut().iter().all(|byte| *byte == first));
                }
            });
        }
        for number in 0..5000_usize {
            let len = [100, 9000, 60_000, 300_000][number % 4];
            let mut buf = take(&pool, len);
            buf.as_mut().fill(number as u8);
            sender.send(buf).unwrap();
        }
        drop(sender);
    });
    assert_eq!(pool.bytes().1, 0);
    assert!(pool.bytes().0 <= 4 * MIB as u64);
}

#[test]
fn windows_come_in_batches_and_are_used_again() {
    let pool = pool(MIB);
    assert!(pool.take_window(true).is_err());
    let mut windows = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while windows.len() < 2 * WINDOW_BATCH {
        assert!(Instant::now() < deadline);
        windows.extend(pool.take_window(true));
        thread::yield_now();
    }
    pool.give_back_window(windows.remove(0));
    assert!(pool.take_window(true).is_ok());
}

/// Takes a window, and waits while some are allocated.
fn take_window(pool: &MemoryPool) -> MemoryWindow {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(window) = pool.take_window(true) {
            return window;
        }
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
}

#[test]
fn whoever_waits_for_memory_is_not_woken_by_a_window() {
    let pool = pool(MIB);
    let window = take_window(&pool);
    await_and_clear_notification(&pool);
    let all = take(&pool, MIB);
    await_and_clear_notification(&pool);
    have_memory_refused(&pool);
    assert_eq!(pool.allocate(1).unwrap_err(), AllocateError::InUse);
    pool.give_back_window(window);
    assert!(!is_woken(&pool, Duration::from_millis(100)));
    drop(all);
    assert!(is_woken(&pool, Duration::ZERO));
}

#[test]
fn whoever_waits_for_a_window_sleeps_until_one_is_given_back() {
    let pool = pool(MIB);
    let mut windows = Vec::new();
    wait_until("the device has no more windows", || {
        windows.extend(std::iter::from_fn(|| pool.take_window(true).ok()));
        pool.lock().were_windows_refused()
    });
    pool.config.wakeup.clear();
    assert!(pool.take_window(true).is_err());
    assert!(!is_woken(&pool, Duration::from_millis(100)));
    pool.give_back_window(windows.remove(0));
    assert!(is_woken(&pool, Duration::ZERO));
    drop(take_window(&pool));
    // Other windows of the device are free: after some ticks, they are asked for.
    assert!(pool.take_window(true).is_err());
    windows.clear();
    tick_until("windows may be asked for again", &pool, || {
        !pool.lock().were_windows_refused()
    });
    drop(take_window(&pool));
}

/// Nothing else asks the registrar: without windows, messages travel in fragments.
#[test]
fn windows_that_were_refused_when_the_lane_was_opened_are_asked_for_again() {
    let pool = pool(MIB);
    let next = || pool.config.domain.alloc_mw(WindowType::Type2).ok();
    let others: Vec<_> = std::iter::from_fn(next).collect();
    pool.allocate_first_windows();
    assert_eq!(pool.take_window(true).err(), Some(NoWindow::Over));
    drop(others);
    assert!(does_tick(&pool.this));
    tick_until("windows may be asked for again", &pool, || {
        !pool.lock().were_windows_refused()
    });
    drop(take_window(&pool));
}

#[test]
fn idle_chunks_go_while_others_ask_for_memory() {
    let [idle, asking] = [MIB, MIB].map(pool);
    drop(take(&idle, 5000));
    // A registrar that is asked whenever it looks at its clock, four times in each tick.
    let shared = Shared::new();
    let mut now = hooks::now();
    let mut next_tick = now + TICK;
    let mut clock = || {
        now += TICK / 4;
        for pool in [&idle, &asking] {
            ask(&mut shared.lock(), &pool.this);
        }
        now
    };
    let rounds = (0..100).find(|_| {
        assert!(round(&shared, &mut next_tick, &mut clock), "it was asked");
        idle.bytes() == (0, 0)
    });
    assert!(rounds.is_some(), "the idle chunk goes");
}

#[test]
fn memory_that_the_device_refuses_is_asked_for_again_later() {
    let pool = pool(MIB);
    let buf = take(&pool, 8192);
    let error = VerbsError::RemoteWithoutLocalWrite;
    pool.refused(8192, &error);
    let limit = 8192;
    let len = 8193;
    assert_eq!(
        pool.allocate(len).unwrap_err(),
        AllocateError::TooLong { len, limit }
    );
    drop(buf);
    drop(take(&pool, 100));
    tick_until("memory may be asked for again", &pool, || {
        !pool.lock().was_refused()
    });
    drop(take(&pool, len));
}

/// Some windows of a device that gives no more after them.
#[cfg(feature = "test-util")]
#[test]
fn it_is_known_whether_a_window_may_come() {
    use super::state::NoWindow;
    use verbline_verbs::SoftOptions;
    use verbline_verbs::for_transport::WindowFault;

    let options = SoftOptions {
        window_fault: WindowFault::RefusedAfter(2),
        ..SoftOptions::default()
    };
    let context = Context::open_soft(options).unwrap();
    let config = PoolConfig {
        domain: context.alloc_pd().unwrap(),
        ..pool(MIB).config.clone()
    };
    let pool = MemoryPool::new(config, Purpose::Sending, MIB as u64);
    // The registrar does not come between.
    IS_UNHEARD.set(true);
    assert_eq!(
        pool.take_window(true).err(),
        Some(NoWindow::Scarce),
        "not asked"
    );
    pool.allocate_windows();
    let [first, second] = [0, 1].map(|_| pool.take_window(true).unwrap());
    assert_eq!(pool.take_window(true).err(), Some(NoWindow::Soon));
    pool.allocate_windows();
    assert_eq!(
        pool.take_window(true).err(),
        Some(NoWindow::Scarce),
        "in use"
    );
    pool.give_back_window(first);
    // The last one is for a message that its receiver has accepted.
    assert_eq!(pool.take_window(false).err(), Some(NoWindow::Scarce));
    let first = pool.take_window(true).unwrap();
    // Their connections end.
    for window in [first, second] {
        drop(window);
        pool.forget_window();
    }
    // The device may give others in the place of those that were deallocated.
    assert_eq!(pool.take_window(true).err(), Some(NoWindow::Scarce));
    pool.allocate_windows();
    assert_eq!(pool.take_window(true).err(), Some(NoWindow::Over));
    assert!(is_woken(&pool, Duration::ZERO), "it has to know");
    // It is asked again later. Until it has answered, nobody waits for it.
    tick_until("windows may be asked for again", &pool, || {
        !pool.lock().were_windows_refused()
    });
    assert_eq!(pool.take_window(true).err(), Some(NoWindow::Scarce));
    IS_UNHEARD.set(false);
}
