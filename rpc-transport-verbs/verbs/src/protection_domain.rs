//! Protection domains: the regions, queues and queue pairs that may be used together.

use std::sync::Arc;
use std::time::Duration;

use super::context::Context;
use super::registered_memory::RegisteredMemory;
use super::types::access::Access;
use super::types::busy::Busy;
use super::types::gid::Gid;
use super::types::modify_error::ModifyError;
use super::types::queue_pair_attributes::QpNum;
use super::types::verbs_error::VerbsError;
use crate::provider;
use crate::provider::AwaitedClaim;

/// A protection domain (`ibv_alloc_pd(3)`). Cloning it is cheap; it is destroyed after everything
/// that was created from it.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(super) raw: Arc<provider::ProtectionDomain>,
}

impl Context {
    /// Allocates a protection domain (`ibv_alloc_pd(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Exhausted`], [`VerbsError::QueueMemory`] or [`VerbsError::Os`] if resources
    /// run out, [`VerbsError::Forked`] in a forked child.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(self)
    }
}

impl ProtectionDomain {
    fn new(context: &Context) -> Result<Self, VerbsError> {
        Ok(Self {
            raw: Arc::new(context.raw.alloc_pd()?),
        })
    }

    pub(super) fn reg_mr(
        &self,
        len: usize,
        access: Access,
    ) -> Result<RegisteredMemory, VerbsError> {
        let raw = self.raw.register(len, access)?;
        Ok(RegisteredMemory::new(raw, Arc::clone(&self.raw)))
    }

    /// Waits, on the software device, for a process to prove that a GID is its own, and that it
    /// offers the queue pair `qp_num`. `on_claim` runs once, with the result, on the device's
    /// thread, and must not wait.
    #[doc(hidden)]
    pub fn expect_claim(
        &self,
        gid: Gid,
        qp_num: QpNum,
        on_claim: impl FnOnce(bool) + Send + 'static,
    ) -> Result<AwaitedClaim, VerbsError> {
        self.raw.expect_claim(gid, qp_num, Box::new(on_claim))
    }

    /// Proves to the process of `gid` that this process's GID is its own, on the software device:
    /// sends it a number that it has made up, with that of the queue pair that was offered. Takes
    /// about this time at most.
    #[doc(hidden)]
    pub fn claim(
        &self,
        gid: Gid,
        nonce: [u8; 16],
        qp_num: QpNum,
        time: Duration,
    ) -> Result<(), ModifyError> {
        self.raw.claim(gid, nonce, qp_num, time)
    }

    /// Deallocates the domain (`ibv_dealloc_pd(3)`).
    ///
    /// # Errors
    ///
    /// [`Busy`], with the domain, while there are clones of it, or regions, windows, address
    /// handles, queue pairs or shared receive queues that were created from it.
    pub fn dealloc(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("dealloc_pd", self.raw, |raw| Self { raw })
    }
}
