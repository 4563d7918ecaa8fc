//! Plain values of the verbs: attributes, states, numbers, flags, completions and errors.

pub(crate) mod access;
pub(crate) mod async_event;
pub(crate) mod busy;
pub(crate) mod claim_error;
pub(crate) mod counters;
pub(crate) mod device_attributes;
pub(crate) mod device_capabilities;
pub(crate) mod device_info;
pub(crate) mod device_name_error;
pub(crate) mod explanation;
pub(crate) mod extended_queue_pair;
pub(crate) mod flags;
pub(crate) mod fork_status;
pub(crate) mod forked;
pub(crate) mod gid;
pub(crate) mod guid;
pub(crate) mod keys;
pub(crate) mod lines;
pub(crate) mod locked_memory;
pub(crate) mod modify_error;
pub(crate) mod open_error;
#[cfg_attr(
    not(feature = "shim"),
    expect(unreachable_pub, reason = "for_shim shows them")
)]
pub(crate) mod operation;
pub(crate) mod port_attributes;
pub(crate) mod port_capabilities;
pub(crate) mod post_error;
pub(crate) mod queue_pair_attributes;
pub(crate) mod queue_pair_capabilities;
pub(crate) mod queue_pair_query;
pub(crate) mod queue_pair_state;
pub(crate) mod queue_pair_transitions;
pub(crate) mod rate;
pub(crate) mod soft_options;
pub(crate) mod srq_attributes;
pub(crate) mod timers;
pub(crate) mod verbs_error;
pub(crate) mod window_type;
pub(crate) mod work_completion;
pub(crate) mod wr_id;

pub use access::Access;
pub use async_event::{AsyncEvent, SrqNum};
pub use busy::Busy;
pub use claim_error::ClaimError;
pub use counters::{DeviceCounters, RnrCounters};
#[cfg(feature = "rdma")]
pub(crate) use device_attributes::time_of_code;
pub use device_attributes::{AtomicCapability, DeviceAttributes, FirmwareVersion, PageSizes};
pub use device_capabilities::{DeviceCapabilities, DeviceCapability};
pub use device_info::{DeviceInfo, NodeType, TransportType};
pub use device_name_error::DeviceNameError;
pub use explanation::Explanation;
pub use extended_queue_pair::{CreateFlags, ExtendedConfig, SendOps};
pub use fork_status::ForkStatus;
pub use forked::Forked;
pub use gid::{Gid, GidEntry, GidType, PartitionKey};
pub use guid::Guid;
pub use keys::{LocalKey, RemoteKey, RemoteMemory};
pub use locked_memory::LockedMemory;
pub use modify_error::ModifyError;
pub use open_error::OpenError;
#[cfg_attr(
    not(feature = "shim"),
    expect(unreachable_pub, reason = "for_shim shows them")
)]
pub use operation::{Operation, RemoteOperation};
pub use port_attributes::{
    LinkLayer, PhysicalState, PortAttributes, PortFlag, PortFlags, PortMtu, PortState, VirtualLanes,
};
pub use port_capabilities::{PortCapabilities, PortCapability};
pub use post_error::{PostError, PostErrorReason};
pub use queue_pair_attributes::{
    AddressVector, AlternatePath, Mtu, PathMigration, Psn, QpAttributes, QpNum, RemoteEndpoint,
    RtrAttributes, RtsAttributes,
};
pub use queue_pair_capabilities::QueuePairCapabilities;
pub use queue_pair_query::QpInitAttributes;
pub use queue_pair_state::{Attribute, AttributeMask, QpState, QpType};
pub use rate::{LinkSpeed, LinkWidth, Rate};
#[cfg(any(test, feature = "test-util"))]
pub use soft_options::LinkRecords;
#[cfg(feature = "test-util")]
pub use soft_options::WindowFault;
pub use soft_options::{ReadExecution, ReceiveOrder, SoftOptions, SoftPath};
pub use srq_attributes::SrqAttributes;
pub use timers::{AckTimeout, InvalidCode, RetryCount, RnrRetry, RnrTimer};
pub use verbs_error::VerbsError;
pub use window_type::WindowType;
pub(crate) use work_completion::Extras;
pub use work_completion::{CompletionOpcode, CompletionStatus, WorkCompletion};
pub use wr_id::{WorkKind, WrId};
