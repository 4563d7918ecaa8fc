//! [`Pools`]: the registered memory for messages of a lane.
//!
//! Two sides that send each other long messages must not wait for memory in a circle. The memory of
//! a message to send is freed when its receiver has fetched it. Therefore:
//!
//! - Messages to send and messages that arrive have chunks of their own, and messages to send use at
//!   most half of the limit ([`Purpose`]).
//! - A lane in which no message arrives or is kept gets memory for one, even if those of other lanes
//!   use all that the process may register. So does a message that is longer than the share of
//!   messages that arrive, if no other message uses this memory.
//! - A message for which its receiver has memory gets memory and a window for its next piece, even if
//!   others that wait for their receivers use all others.
//!
//! So the process may register more than its limit: for each lane, the chunk of one message and
//! that of one piece. Free chunks of earlier such messages stay for some seconds; all chunks of a
//! lane for one message have at most `limit` bytes.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use rpc_core::transport::AllocateError;
use verbline_verbs::MemoryWindow;
use verbline_verbs::for_transport::BlockRegion;

use super::memory_pool::{MemoryPool, NoWindow, PoolConfig};
use super::process_memory::Purpose;
use super::registered_buf::RegisteredBuf;
use super::registrar::{self, RegisteringPool};
use super::size_class::block_len;

/// The registered memory for messages of a lane.
#[derive(Debug)]
pub(crate) struct Pools {
    sending: Arc<MemoryPool>,
    receiving: Arc<MemoryPool>,
    /// One piece of a message for which its receiver has memory.
    accepted_piece: Arc<MemoryPool>,
    /// One message of a lane that has none.
    only_message: Arc<MemoryPool>,
}

impl Pools {
    /// Makes pools without memory. Pieces that are copied have at most `piece_len` bytes.
    ///
    /// # Errors
    ///
    /// If the thread that registers their memory cannot be started.
    pub(crate) fn new(config: &PoolConfig, piece_len: usize) -> io::Result<Self> {
        registrar::start()?;
        let pool = |purpose: Purpose| {
            MemoryPool::new(config.clone(), purpose, purpose.share_of(config.limit))
        };
        let beyond_the_limit = |purpose, limit| {
            let config = PoolConfig {
                process_memory: Arc::default(),
                limit,
                ..config.clone()
            };
            MemoryPool::new(config, purpose, limit)
        };
        let piece_len = block_len(piece_len) as u64;
        Ok(Self {
            sending: pool(Purpose::Sending),
            receiving: pool(Purpose::Receiving),
            accepted_piece: beyond_the_limit(Purpose::Sending, piece_len),
            only_message: beyond_the_limit(Purpose::Receiving, config.limit),
        })
    }

    fn all(&self) -> [&Arc<MemoryPool>; 4] {
        [
            &self.sending,
            &self.receiving,
            &self.accepted_piece,
            &self.only_message,
        ]
    }

    /// Takes memory for a message that this side makes.
    pub(crate) fn allocate_to_send(&self, len: usize) -> Result<RegisteredBuf, AllocateError> {
        self.sending.allocate(len)
    }

    /// Takes memory for a piece of a message. If `is_accepted`, the receiver has memory for the
    /// whole message.
    pub(super) fn allocate_piece(&self, len: usize, is_accepted: bool) -> Option<RegisteredBuf> {
        let piece = self.sending.allocate(len);
        if !is_accepted {
            return piece.ok();
        }
        piece.or_else(|_| self.accepted_piece.allocate(len)).ok()
    }

    /// Takes memory for a message that arrives.
    pub(crate) fn allocate_to_receive(&self, len: usize) -> Result<RegisteredBuf, AllocateError> {
        match self.receiving.allocate(len) {
            Err(AllocateError::InUse) if self.receiving.is_untouched() => {}
            Err(AllocateError::TooLong { .. }) => {}
            other => return other,
        }
        match self.only_message.is_untouched() {
            true => self.only_message.allocate(len),
            false => Err(AllocateError::InUse),
        }
    }

    /// Returns true if the memory is of a pool for messages that arrive.
    pub(super) fn receives_into(&self, memory: &RegisteredBuf) -> bool {
        memory.is_of(&*self.receiving) || memory.is_of(&*self.only_message)
    }

    /// Returns the region in which `bytes` lie, if it is one of this lane.
    pub(super) fn region_of(&self, bytes: &Bytes) -> Option<Arc<BlockRegion>> {
        self.all().iter().find_map(|pool| pool.region_of(bytes))
    }

    /// Returns the registered bytes, and those of them that are taken.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let pools = self.all().map(|pool| pool.bytes());
        let sum = |sum: (u64, u64), pool: &(u64, u64)| (sum.0 + pool.0, sum.1 + pool.1);
        pools.iter().fold((0, 0), sum)
    }

    /// Returns the bytes that received messages keep, as [`ProcessMemory::kept`] does. Messages in
    /// `only_message` are not among them.
    ///
    /// [`ProcessMemory::kept`]: super::process_memory::ProcessMemory::kept
    pub(crate) fn kept_by_process(&self) -> u64 {
        self.receiving.process_memory().kept()
    }

    /// Takes a window that is not bound, as [`MemoryPool::take_window`] does.
    pub(super) fn take_window(&self, is_accepted: bool) -> Result<MemoryWindow, NoWindow> {
        self.sending.take_window(is_accepted)
    }

    /// Allocates the first windows.
    pub(crate) fn allocate_first_windows(&self) {
        self.sending.allocate_first_windows();
    }

    /// Gives no window any more, because the device does not bind them. Returns true the first time.
    pub(super) fn give_windows_up(&self) -> bool {
        self.sending.give_windows_up()
    }

    /// Notes that a window which was taken does not come back.
    pub(super) fn forget_window(&self) {
        self.sending.forget_window();
    }

    /// Puts back a window that was taken and not bound.
    pub(super) fn put_window_back(&self, window: MemoryWindow) {
        self.sending.put_window_back(window);
    }

    /// Takes back a window whose invalidation has completed.
    pub(super) fn give_back_window(&self, window: MemoryWindow) {
        self.sending.give_back_window(window);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rpc_core::transport::MessageMemory;
    use verbline_verbs::Context;

    use super::super::process_memory::ProcessMemory;
    use super::*;
    use crate::transport::wakeup::Wakeup;

    const MIB: usize = 1 << 20;
    const PIECE_LEN: usize = 64 << 10;

    fn pools(process_memory: &Arc<ProcessMemory>) -> Pools {
        let config = PoolConfig {
            domain: Context::open("soft").unwrap().alloc_pd().unwrap(),
            wakeup: Wakeup::new().unwrap(),
            process_memory: Arc::clone(process_memory),
            limit: 2 * MIB as u64,
            max_region_len: 1 << 30,
            is_readable: false,
        };
        Pools::new(&config, PIECE_LEN).unwrap()
    }

    /// Tries for this long.
    fn try_for(
        patience: Duration,
        mut attempt: impl FnMut() -> Option<RegisteredBuf>,
    ) -> Option<RegisteredBuf> {
        let end = Instant::now() + patience;
        while Instant::now() < end {
            if let Some(buf) = attempt() {
                return Some(buf);
            }
            std::thread::yield_now();
        }
        None
    }

    fn take(attempt: impl FnMut() -> Option<RegisteredBuf>) -> RegisteredBuf {
        try_for(Duration::from_secs(20), attempt).expect("there is memory")
    }

    fn is_refused(attempt: impl FnMut() -> Option<RegisteredBuf>) -> bool {
        try_for(Duration::from_millis(300), attempt).is_none()
    }

    #[test]
    fn a_lane_without_a_message_gets_memory_for_one() {
        let process_memory = Arc::default();
        let lanes = [pools(&process_memory), pools(&process_memory)];
        let receive = |lane: usize| lanes[lane].allocate_to_receive(MIB).ok();
        let _all = take(|| receive(0));
        assert!(is_refused(|| receive(0)), "it has a message");
        let only = take(|| receive(1));
        assert!(lanes[1].receives_into(&only));
        assert!(is_refused(|| receive(1)), "it has a message");
        drop(only);
        drop(take(|| receive(1)));
    }

    #[test]
    fn messages_that_are_kept_count_with_their_chunks_and_for_all_lanes() {
        let process_memory = Arc::default();
        let lanes = [pools(&process_memory), pools(&process_memory)];
        let receive = || take(|| lanes[0].allocate_to_receive(8 << 10).ok());
        let freeze = |buf: RegisteredBuf| Box::new(buf).freeze(8 << 10);
        let arriving = receive();
        assert_eq!(lanes[1].kept_by_process(), 0, "it has not arrived");
        let chunk = lanes[0].bytes().0;
        assert!(chunk > 8 << 10);
        let kept = [freeze(arriving), freeze(receive())];
        assert_eq!(lanes[1].kept_by_process(), chunk);
        let sent = take(|| lanes[0].allocate_to_send(8 << 10).ok());
        let _sent = freeze(sent);
        let [first, second] = kept;
        drop(first);
        assert_eq!(lanes[1].kept_by_process(), chunk);
        drop(second);
        assert_eq!(lanes[1].kept_by_process(), 0);
    }

    #[test]
    fn messages_to_send_leave_memory_to_those_that_arrive_and_to_accepted_pieces() {
        let lane = pools(&Arc::default());
        let _half = take(|| lane.allocate_to_send(MIB).ok());
        assert!(is_refused(|| lane.allocate_to_send(1).ok()));
        let accepted = || lane.allocate_piece(PIECE_LEN, true);
        assert!(is_refused(|| lane.allocate_piece(PIECE_LEN, false)));
        let piece = take(accepted);
        assert!(is_refused(accepted));
        drop(piece);
        drop(take(accepted));
        drop(take(|| lane.allocate_to_receive(MIB).ok()));
    }
}
