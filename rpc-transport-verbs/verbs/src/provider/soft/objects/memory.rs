//! Protection domains and the regions and shared receive queues in them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use super::super::super::limits::in_range;
use super::unsupported::check_access;
use super::{LIMITS, SharedReceiveQueue};
use crate::affinity::start_thread;
use crate::provider::soft::capacities::{MAX_QUEUES, MAX_REGION_LEN, MAX_WR, exhausted};
use crate::provider::soft::context::receive_queue::{ReceiveQueue, SharedReceives};
use crate::provider::soft::context::regions::{MAX_REGIONS, NO_ARENA};
use crate::provider::soft::process::claims::{AwaitedClaim, Nonce, OnClaim};
use crate::provider::soft::process::node::domain::Domain;
use crate::provider::soft::shared::memory::{Mapping, SharedMemory};
use crate::types::{Access, Gid, LocalKey, ModifyError, QpNum, RemoteKey, VerbsError};

#[derive(Debug)]
pub(crate) struct ProtectionDomain {
    pub(crate) domain: Arc<Domain>,
    pub(crate) number: u32,
}

impl ProtectionDomain {
    pub(crate) fn register(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.domain.node.check()?;
        in_range("register", "len", len, 1, MAX_REGION_LEN)?;
        check_access(access)?;
        let node = &*self.domain.node;
        let (memory, arena) = if self.domain.gids.has_shared_memory() {
            let memory = Arc::new(SharedMemory::arena(len).map_err(failed)?);
            let arena = node.next_arena();
            (Memory::Arena(memory, arena), arena)
        } else {
            (
                Memory::Private(Mapping::private(len).map_err(failed)?),
                NO_ARENA,
            )
        };
        let bytes = (memory.start(), memory.len());
        self.enter_region(memory, arena, bytes, access)
    }

    /// Registers memory of the program where it is: in `pages`, or, if no peer in shared memory can
    /// reach the context, without.
    ///
    /// # Safety
    ///
    /// The bytes are the program's, readable and writable, and in `pages`. The program keeps them mapped
    /// as long as the region is there.
    #[cfg(feature = "shim")]
    pub(crate) unsafe fn register_at(
        &self,
        pages: Option<&Arc<SharedMemory>>,
        bytes: (NonNull<u8>, usize),
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        self.domain.node.check()?;
        in_range("register", "len", bytes.1, 1, MAX_REGION_LEN)?;
        check_access(access)?;
        let (memory, arena) = match pages {
            Some(pages) if self.domain.gids.has_shared_memory() => {
                let arena = self.domain.node.next_arena();
                (Memory::Arena(Arc::clone(pages), arena), arena)
            }
            _ => (
                Memory::Private(Mapping::of_program(bytes.0, bytes.1)),
                NO_ARENA,
            ),
        };
        self.enter_region(memory, arena, bytes, access)
    }

    fn enter_region(
        &self,
        memory: Memory,
        arena: u64,
        bytes: (NonNull<u8>, usize),
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let node = &*self.domain.node;
        let mut state = self.domain.enter()?;
        if state.common.memory.regions.len() == MAX_REGIONS {
            return Err(exhausted("register", "memory regions", MAX_REGIONS));
        }
        let (local_key, remote_key) = state.common.memory.regions.insert(
            node.next_serial(),
            self.number,
            bytes,
            access,
            arena,
        );
        #[cfg(feature = "shim")]
        {
            let offset = bytes.0.as_ptr().addr() - memory.start().as_ptr().addr();
            let regions = &mut state.common.memory.regions;
            regions.set_offset_in_arena(local_key, offset);
        }
        state.common.memory.publish_region(local_key);
        drop(state);
        if let Memory::Arena(memory, arena) = &memory {
            self.domain.add_arena(*arena, Arc::clone(memory));
        }
        let domain = Arc::clone(&self.domain);
        let region = MemoryRegion {
            domain,
            memory,
            local_key,
            remote_key,
        };
        if let Memory::Arena(memory, arena) = &region.memory {
            // If a peer cannot map it, dropping the region withdraws it from the others.
            let announced = node.announce_arena(&self.domain, *arena, memory);
            announced.map_err(failed)?;
        }
        Ok(region)
    }

    /// Registers bytes of the application, which nobody writes. Peers over TCP may read what windows are
    /// bound over. Peers in shared memory do not map them.
    pub(crate) fn lend(&self, bytes: Bytes) -> Result<MemoryRegion, VerbsError> {
        let node = &*self.domain.node;
        node.check()?;
        in_range("lend", "len", bytes.len(), 1, MAX_REGION_LEN)?;
        let place = (NonNull::from(&*bytes).cast(), bytes.len());
        let (serial, access) = (node.next_serial(), Access::MW_BIND);
        let mut state = self.domain.enter()?;
        let regions = &mut state.common.memory.regions;
        if regions.len() == MAX_REGIONS {
            return Err(exhausted("lend", "memory regions", MAX_REGIONS));
        }
        let (local_key, remote_key) = regions.insert(serial, self.number, place, access, NO_ARENA);
        drop(state);
        Ok(MemoryRegion {
            domain: Arc::clone(&self.domain),
            memory: Memory::Lent(bytes),
            local_key,
            remote_key,
        })
    }

    /// Waits for the process of `gid` to prove that the GID is its own, and that it offers
    /// `qp_num`. `on_claim` runs once, on the device's thread, and must not wait.
    pub(crate) fn expect_claim(
        &self,
        gid: Gid,
        qp_num: QpNum,
        on_claim: OnClaim,
    ) -> Result<AwaitedClaim, VerbsError> {
        let node = &self.domain.node;
        node.check()?;
        node.expect_claim(gid, qp_num, on_claim)
            .map_err(|source| VerbsError::Os {
                call: "expect_claim",
                source,
            })
    }

    /// Proves to the process of `gid` that this process's GID is its own, and that it offers
    /// `qp_num`. Takes about this time at most.
    pub(crate) fn claim(
        &self,
        gid: Gid,
        nonce: Nonce,
        qp_num: QpNum,
        time: Duration,
    ) -> Result<(), ModifyError> {
        self.domain.node.check()?;
        self.domain.node.claim(gid, nonce, qp_num, time)
    }

    pub(crate) fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        self.domain.node.check()?;
        in_range("create_srq", "max_wr", max_wr, 1, MAX_WR)?;
        in_range("create_srq", "max_sge", max_sge, 0, LIMITS.max_sge)?;
        let number = self.domain.node.next_serial();
        let mut state = self.domain.enter()?;
        let order = state.common.options.shared_receive_order;
        let queue = ReceiveQueue::new(max_wr, order);
        if state.common.shared_receive_queues.len() == MAX_QUEUES {
            return Err(exhausted("create_srq", "shared receive queues", MAX_QUEUES));
        }
        let index = state.common.shared_receive_queues.insert(SharedReceives {
            queue,
            number,
            domain: self.number,
        });
        Ok(SharedReceiveQueue {
            domain: Arc::clone(&self.domain),
            index,
            number,
        })
    }
}

#[derive(Debug)]
pub(crate) struct MemoryRegion {
    domain: Arc<Domain>,
    memory: Memory,
    local_key: LocalKey,
    remote_key: RemoteKey,
}

fn failed(source: std::io::Error) -> VerbsError {
    VerbsError::Os {
        call: "register",
        source,
    }
}

/// The memory of a region.
#[derive(Debug)]
enum Memory {
    /// Memory that peers in shared memory map, and its number.
    Arena(Arc<SharedMemory>, u64),
    /// Memory of a context that no peer in shared memory can reach.
    Private(Mapping),
    Lent(Bytes),
}

impl Memory {
    fn start(&self) -> NonNull<u8> {
        match self {
            Self::Arena(memory, _) => memory.mapping.start(),
            Self::Private(mapping) => mapping.start(),
            Self::Lent(bytes) => NonNull::from(&**bytes).cast(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Arena(memory, _) => memory.mapping.len(),
            Self::Private(mapping) => mapping.len(),
            Self::Lent(bytes) => bytes.len(),
        }
    }
}

impl MemoryRegion {
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    pub(crate) fn local_key(&self) -> LocalKey {
        self.local_key
    }

    pub(crate) fn remote_key(&self) -> RemoteKey {
        self.remote_key
    }

    /// Returns whether a window is bound to the region. In the child of a fork, none is.
    #[cfg(feature = "shim")]
    pub(crate) fn has_window(&self) -> bool {
        let state = self.domain.enter();
        state.is_ok_and(|state| state.common.memory.windows.has_bound_to(self.local_key))
    }
}

/// Drops the application's bytes on a thread for that. Their destructor may be code of the application,
/// and this thread may be in the middle of a poll, which that code must not enter.
fn drop_elsewhere(bytes: Bytes) {
    static DROPPER: OnceLock<Option<Sender<Bytes>>> = OnceLock::new();
    if bytes.is_unique() {
        // Only an owner's destructor is code of the application, and bytes of an owner are never unique
        // (`Bytes::is_unique`), even if these are the last.
        return;
    }
    let dropper = DROPPER.get_or_init(|| {
        let (sender, receiver) = channel::<Bytes>();
        let run = move || {
            for bytes in receiver {
                // A destructor that panics ends neither the thread nor what others have lent.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(bytes)));
            }
        };
        let thread = start_thread("verbline-lent", run);
        thread.ok().map(|_| sender)
    });
    if let Some(dropper) = dropper {
        // Without the thread, they are dropped here.
        let _ = dropper.send(bytes);
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // Acquiring the context's lock waits for a copy in progress, and later copies do not find the
        // key. In the child of a fork there is nothing to release.
        if let Ok(mut state) = self.domain.enter() {
            state.common.memory.remove_region(self.local_key);
            drop(state);
            match &mut self.memory {
                Memory::Arena(_, arena) => {
                    self.domain.remove_arena(*arena);
                    self.domain.node.withdraw_arena(*arena);
                }
                Memory::Private(_) => {}
                Memory::Lent(bytes) => drop_elsewhere(std::mem::take(bytes)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! What the device itself refuses, whatever the safe layer above checks.

    use super::super::Context;
    use super::*;
    use crate::provider::work::WindowBinding;
    use crate::provider::{RegionName, WindowName};
    use crate::types::{CompletionStatus, SoftOptions, WindowType};

    fn domain() -> ProtectionDomain {
        let context = Context::open(SoftOptions::default()).expect("soft is everywhere");
        context.alloc_pd().expect("its first domain")
    }

    #[test]
    fn rights_of_peers_to_write_need_local_write() {
        let domain = domain();
        for peers in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
            let error = domain.register(4096, peers).expect_err("EINVAL");
            assert!(
                matches!(error, VerbsError::RemoteWithoutLocalWrite),
                "{error}"
            );
            let both = domain.register(4096, peers | Access::LOCAL_WRITE);
            both.expect("what the kernel accepts");
        }
        domain
            .register(4096, Access::REMOTE_READ | Access::MW_BIND)
            .expect("nobody writes");
    }

    #[test]
    fn a_window_outside_of_its_region_is_not_bound() {
        let domain = domain();
        let region = domain.register(4096, Access::MW_BIND).expect("memory");
        let window = domain.alloc_mw(WindowType::Type2).expect("a window");
        let first = region.start().as_ptr().addr() as u64;
        let bind = |addr, len| {
            let binding = WindowBinding {
                window: WindowName::Soft(window.name()),
                region: RegionName::Soft(region.local_key()),
                addr,
                len,
                access: Access::REMOTE_READ,
                key: window.first_key(),
            };
            let mut state = domain.domain.enter().expect("this process");
            state
                .common
                .memory
                .bind_window(&binding, domain.number, QpNum(1))
        };
        let refused = Err(CompletionStatus::MemoryWindowBind);
        for (addr, len) in [
            (first - 8, 8),
            (first - 8, 16),
            (first + 4088, 9),
            (first + 4097, 1),
            (first, 4097),
            (first + 8, u64::MAX),
            (0, u64::MAX),
        ] {
            assert_eq!(bind(addr, len), refused, "{addr:#x}, {len}");
        }
        assert_eq!(bind(first, 4096), Ok(()));
    }
}
