//! [`MessageMemory`]: the bytes that long messages of requests may take.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use verbline::message::bytes::Bytes;

/// Shorter messages are not counted: each call has memory for one (`limits.rs`).
pub(crate) const COUNTED_FROM: usize = 16 << 10;

/// What one permit stands for, in bytes.
const UNIT: u64 = 1024;

/// The memory for long messages of all connections, and the share of one of them.
#[derive(Clone, Debug)]
pub(crate) struct MessageMemory {
    all: Arc<Semaphore>,
    share: Arc<Semaphore>,
    share_units: usize,
}

/// Memory for one message. Dropping it gives the memory back.
pub(crate) struct Claim {
    _share: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// A wait for memory.
pub(crate) type Claiming = Pin<Box<dyn Future<Output = Option<Claim>> + Send>>;

impl MessageMemory {
    /// `total` and `max_message_len` are in bytes.
    pub(crate) fn new(total: u64, max_message_len: usize) -> Self {
        let share = (total / 4).max(max_message_len as u64);
        let share_units = units(share);
        Self {
            all: Arc::new(Semaphore::new(units(total.max(share)))),
            share: Arc::new(Semaphore::new(share_units)),
            share_units,
        }
    }

    /// The memory of one connection, with a share of its own.
    pub(crate) fn of_connection(&self) -> Self {
        Self {
            share: Arc::new(Semaphore::new(self.share_units)),
            ..self.clone()
        }
    }

    /// Waits for memory for a message of `len` bytes. Messages get it in the order in which they came.
    pub(crate) fn claim(&self, len: usize) -> Claiming {
        let units = u32::try_from(units(len as u64)).unwrap_or(u32::MAX);
        let (share, all) = (Arc::clone(&self.share), Arc::clone(&self.all));
        Box::pin(async move {
            // The connection's share first: who waits for it keeps nothing of what all share.
            let share = share.acquire_many_owned(units).await.ok()?;
            let all = all.acquire_many_owned(units).await.ok()?;
            Some(Claim {
                _share: share,
                _all: all,
            })
        })
    }
}

fn units(bytes: u64) -> usize {
    let units = usize::try_from(bytes.div_ceil(UNIT)).unwrap_or(usize::MAX);
    units.min(Semaphore::MAX_PERMITS)
}

impl Claim {
    /// Ties the memory to the message: it is given back when the message's last slice is dropped,
    /// which is when it has been sent to the server.
    pub(crate) fn tie(self, message: Bytes) -> Bytes {
        Bytes::from_owner(Claimed {
            message,
            _claim: self,
        })
    }
}

struct Claimed {
    message: Bytes,
    _claim: Claim,
}

impl AsRef<[u8]> for Claimed {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll(claiming: &mut Claiming) -> Option<Claim> {
        match claiming
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(claim) => claim,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_connection_gets_its_share_and_another_one_still_gets_some() {
        let memory = MessageMemory::new(400 << 10, 1 << 10);
        let (one, other) = (memory.of_connection(), memory.of_connection());
        let claim = poll(&mut one.claim(100 << 10)).unwrap();
        let mut next = one.claim(1);
        assert!(poll(&mut next).is_none());
        let theirs = poll(&mut other.claim(100 << 10));
        assert!(theirs.is_some());
        let message = claim.tie(Bytes::from_static(b"abc"));
        let slice = message.slice(1..2);
        drop(message);
        assert!(poll(&mut next).is_none());
        drop(slice);
        assert!(poll(&mut next).is_some());
    }

    #[test]
    fn the_longest_message_always_fits() {
        let memory = MessageMemory::new(1, 4 << 20).of_connection();
        assert!(poll(&mut memory.claim(4 << 20)).is_some());
    }
}
