//! Queries everything that a device reports.

use std::error::Error;

use rpc_transport_verbs::verbs::{
    Access, AddressWish, Context, DeviceAttributes, DeviceInfo, GidEntry, PartitionKey,
    PortAttributes, Psn, QpAttributes, QpInitAttributes, QueuePairConfig, RemoteEndpoint,
    RtrAttributes, RtsAttributes, devices,
};
use verbline::device::SurveyedDevice;

/// Everything that a device reports, or the reason why it could not be queried.
pub(super) struct Details {
    pub(super) name: String,
    /// Information available without opening the device; `None` if this build cannot open it.
    pub(super) info: Option<DeviceInfo>,
    pub(super) opened: Result<Opened, String>,
}

/// Information available from an open device.
pub(super) struct Opened {
    pub(super) attributes: DeviceAttributes,
    pub(super) ports: Vec<Port>,
    pub(super) queue_pair: Result<QueuePair, String>,
}

pub(super) struct Port {
    pub(super) number: u8,
    pub(super) attributes: PortAttributes,
    pub(super) gids: Vec<GidEntry>,
    pub(super) pkeys: Vec<(u16, PartitionKey)>,
}

/// A queue pair with a reliable connection to itself, in RTS.
pub(super) struct QueuePair {
    pub(super) init: QpInitAttributes,
    pub(super) attributes: QpAttributes,
}

impl Details {
    pub(super) fn gather(device: &SurveyedDevice) -> Self {
        let name = device.name.clone();
        Self {
            info: devices().into_iter().find(|info| info.name == name),
            opened: look_into(&name).map_err(|error| error.to_string()),
            name,
        }
    }
}

fn look_into(name: &str) -> Result<Opened, Box<dyn Error>> {
    let context = Context::open(name)?;
    let attributes = context.query_device();
    let mut ports = Vec::new();
    for number in 1..=attributes.port_count {
        ports.push(Port {
            number,
            attributes: context.query_port(number)?,
            gids: context.query_gid_table(number)?,
            pkeys: context.query_pkey_table(number)?,
        });
    }
    Ok(Opened {
        attributes,
        ports,
        queue_pair: connect_to_itself(&context).map_err(|error| error.to_string()),
    })
}

/// Connects a queue pair to itself. It needs a peer to reach RTS, and it can be its own peer.
fn connect_to_itself(context: &Context) -> Result<QueuePair, Box<dyn Error>> {
    let address = context.choose_address(AddressWish::default())?;
    let domain = context.alloc_pd()?;
    let completions = context.create_cq(2)?;
    let handle = completions.handle();
    let mut queue_pair = domain.create_qp(QueuePairConfig {
        max_send_wr: 1,
        max_recv_wr: 1,
        ..QueuePairConfig::new(&handle, &handle)
    })?;
    queue_pair.to_init(address.port, Access::NONE)?;
    let psn = Psn::new(0);
    let itself = RemoteEndpoint {
        gid: address.gid,
        lid: address.lid,
        qp_num: queue_pair.qp_num(),
        psn,
    };
    queue_pair.to_rtr(RtrAttributes {
        sgid_index: address.gid_index,
        path_mtu: address.mtu,
        ..RtrAttributes::new(itself)
    })?;
    queue_pair.to_rts(RtsAttributes::new(psn))?;
    Ok(QueuePair {
        init: queue_pair.query_init(),
        attributes: queue_pair.query()?,
    })
}
