//! An opened device of either provider.

use std::time::Duration;

#[cfg(feature = "rdma")]
use super::foreign;
#[cfg(not(feature = "rdma"))]
use super::kernel_devices::is_listed_by_kernel;
#[cfg(feature = "rdma")]
use super::rdma;
use super::{CompletionChannel, CompletionQueue, ProtectionDomain, forward, soft};
use crate::types::{
    AsyncEvent, DeviceAttributes, DeviceCounters, Gid, GidEntry, LockedMemory, OpenError,
    PartitionKey, PortAttributes, RnrCounters, SoftOptions, SoftPath, VerbsError,
};

#[derive(Clone, Debug)]
pub(crate) enum Context {
    Soft(soft::Context),
    #[cfg(feature = "rdma")]
    Rdma(rdma::Context),
}

impl Context {
    pub(crate) fn open(name: &str) -> Result<Self, OpenError> {
        if name == soft::DEVICE_NAME {
            return Self::open_soft(SoftOptions::default());
        }
        if name == soft::TCP_DEVICE_NAME {
            return Self::open_soft(SoftOptions {
                path: SoftPath::TCP_OVER_LOOPBACK,
                ..SoftOptions::default()
            });
        }
        #[cfg(feature = "rdma")]
        return rdma::Context::open(name).map(Self::Rdma);
        #[cfg(not(feature = "rdma"))]
        if is_listed_by_kernel(name) {
            let name = name.to_owned();
            Err(OpenError::NotInThisBuild { name })
        } else {
            let known = [soft::DEVICE_NAME, soft::TCP_DEVICE_NAME].join(", ");
            let name = name.to_owned();
            Err(OpenError::UnknownDevice { name, known })
        }
    }

    pub(crate) fn open_soft(options: SoftOptions) -> Result<Self, OpenError> {
        soft::Context::open(options).map(Self::Soft)
    }

    pub(crate) fn device_name(&self) -> &str {
        match self {
            Self::Soft(context) => context.device_name(),
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => context.device_name(),
        }
    }

    pub(crate) fn query_device(&self) -> DeviceAttributes {
        forward!(self, context => context.query_device())
    }

    pub(crate) fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        forward!(self, context => context.query_port(port))
    }

    pub(crate) fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        forward!(self, context => context.query_gid(port, index))
    }

    pub(crate) fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        forward!(self, context => context.query_gid_table(port))
    }

    pub(crate) fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        forward!(self, context => context.query_pkey(port, index))
    }

    pub(crate) fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        Ok(match self {
            Self::Soft(context) => ProtectionDomain::Soft(context.alloc_pd()?),
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => ProtectionDomain::Rdma(context.alloc_pd()?),
        })
    }

    pub(crate) fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        Ok(match self {
            Self::Soft(context) => CompletionChannel::Soft(context.create_comp_channel()?),
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => CompletionChannel::Rdma(context.create_comp_channel()?),
        })
    }

    pub(crate) fn create_cq(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
        vector: u32,
    ) -> Result<CompletionQueue, VerbsError> {
        Ok(match self {
            Self::Soft(context) => {
                let channel = match channel {
                    None => None,
                    Some(CompletionChannel::Soft(channel)) => Some(channel),
                    #[cfg(feature = "rdma")]
                    Some(_) => return Err(foreign("create_cq", "the completion channel")),
                };
                CompletionQueue::Soft(context.create_cq(depth, channel, vector)?)
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => {
                let channel = match channel {
                    None => None,
                    Some(CompletionChannel::Rdma(channel)) => Some(channel),
                    Some(_) => return Err(foreign("create_cq", "the completion channel")),
                };
                CompletionQueue::Rdma(context.create_cq(depth, channel, vector)?)
            }
        })
    }

    pub(crate) fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        forward!(self, context => context.get_async_event(timeout))
    }

    pub(crate) fn is_forked(&self) -> bool {
        forward!(self, context => context.is_forked())
    }

    pub(crate) fn interrupt_async_events(&self) {
        forward!(self, context => context.interrupt_async_events());
    }

    pub(crate) fn counters(&self) -> Result<DeviceCounters, VerbsError> {
        match self {
            Self::Soft(context) => context.counters(),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Err(VerbsError::NotCounted),
        }
    }

    pub(crate) fn rnr_counters(&self, port: u8) -> Option<RnrCounters> {
        forward!(self, context => context.rnr_counters(port))
    }

    /// Returns what this process has locked, if the device locks memory.
    pub(crate) fn locked_memory(&self) -> Option<LockedMemory> {
        match self {
            Self::Soft(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Some(rdma::locked_memory()),
        }
    }

    /// Returns why memory windows of type 2 do not protect memory from peers, if the device's
    /// attributes say that they do not.
    pub(crate) fn why_windows_do_not_protect(&self) -> Option<&'static str> {
        match self {
            Self::Soft(_) => None,
            #[cfg(feature = "rdma")]
            Self::Rdma(context) => context.why_windows_do_not_protect(),
        }
    }

    /// Returns true if only a trial shows whether its windows protect memory.
    pub(crate) fn has_unknown_windows(&self) -> bool {
        match self {
            #[cfg(feature = "test-util")]
            Self::Soft(context) => context.has_window_fault(),
            #[cfg(not(feature = "test-util"))]
            Self::Soft(_) => false,
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => true,
        }
    }

    pub(crate) fn counts_on_data_path(&self) -> bool {
        matches!(self, Self::Soft(_))
    }
}
