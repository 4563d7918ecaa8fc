//! JSON output: lengths in bytes, times in nanoseconds, rates in bits per second. Values that a
//! device does not report are null. Codes without a name in this version are numbers.

use std::error::Error;
use std::time::Duration;

use rpc_transport_verbs::verbs::{
    AddressVector, DeviceAttributes, PortAttributes, PortMtu, QpAttributes, QpInitAttributes, Rate,
};
use serde_json::{Map, Value, json};
use verbline::device::Survey;

use crate::details::{Details, Opened, Port};

/// Returns the whole report.
pub(super) fn value(
    survey: &Survey,
    devices: &[Details],
    limits: &Result<String, Box<dyn Error>>,
) -> Value {
    let (limits, error) = match limits {
        Ok(limits) => (Some(limits), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let usable = survey.devices.iter().map(|device| &device.verdict);
    json!({
        "named_by_environment": survey.named,
        "best": survey.best().map(|device| &device.name),
        "devices": devices
            .iter()
            .zip(usable)
            .map(|(details, verdict)| {
                let mut value = device(details);
                value["chosen_address"] = json!(verdict.as_ref().ok().map(ToString::to_string));
                value["not_usable_because"] = json!(verdict.as_ref().err());
                value
            })
            .collect::<Vec<_>>(),
        "poller": { "limits": limits, "error": error },
    })
}

fn device(details: &Details) -> Value {
    let Details { name, info, opened } = details;
    let mut value = json!({
        "name": name,
        "guid": info.as_ref().map(|info| info.guid.to_string()),
        "node_type": info.as_ref().map(|info| info.node_type.to_string()),
        "transport": info.as_ref().map(|info| info.transport.to_string()),
    });
    match opened {
        Ok(Opened {
            attributes,
            ports,
            queue_pair,
        }) => {
            value["attributes"] = device_attributes(attributes);
            value["ports"] = ports.iter().map(port).collect();
            value["queue_pair"] = match queue_pair {
                Ok(queue_pair) => json!({
                    "init": init_attributes(&queue_pair.init),
                    "attributes": qp_attributes(&queue_pair.attributes),
                }),
                Err(why) => json!({ "error": why }),
            };
        }
        Err(why) => value["error"] = json!(why),
    }
    value
}

/// Formats a set of flags of any type.
macro_rules! flags {
    ($set:expr) => {
        json!({
            "bits": $set.bits(),
            "names": $set.iter().map(|flag| flag.name()).collect::<Vec<_>>(),
            "unknown": $set.unknown().collect::<Vec<_>>(),
        })
    };
}

fn nanoseconds(time: Duration) -> Value {
    // JSON readers agree on integers of up to 53 bits, which is 104 days.
    json!(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn device_attributes(attributes: &DeviceAttributes) -> Value {
    // "No limit" is null.
    let limited = |bytes: usize| (bytes != usize::MAX).then_some(bytes);
    let mut value = json!({
        "fw_ver": attributes.fw_ver.as_str(),
        "node_guid": attributes.node_guid.to_string(),
        "sys_image_guid": attributes.sys_image_guid.to_string(),
        "vendor_id": attributes.vendor_id,
        "vendor_part_id": attributes.vendor_part_id,
        "hw_ver": attributes.hw_ver,
        "capabilities": flags!(attributes.capabilities),
        "atomic_cap": attributes.atomic_cap.to_string(),
        "page_sizes": attributes.page_sizes.iter().collect::<Vec<_>>(),
        "local_ca_ack_delay_ns": nanoseconds(attributes.local_ca_ack_delay),
        "port_count": attributes.port_count,
        "max_mr_len": limited(attributes.max_mr_len),
        "max_locked_len": limited(attributes.max_locked_len),
        "max_inline_data": attributes.max_inline_data,
    });
    for (name, count) in attributes.counts() {
        value[name] = json!(count);
    }
    value
}

fn port(port: &Port) -> Value {
    json!({
        "number": port.number,
        "attributes": port_attributes(&port.attributes),
        "gids": port
            .gids
            .iter()
            .map(|entry| {
                json!({
                    "index": entry.index,
                    "gid": entry.gid.to_string(),
                    "type": entry.gid_type.to_string(),
                    "netdev": entry.netdev,
                })
            })
            .collect::<Vec<_>>(),
        "pkeys": port
            .pkeys
            .iter()
            .map(|(index, key)| {
                json!({ "index": index, "pkey": key.0, "full_member": key.is_full_member() })
            })
            .collect::<Vec<_>>(),
    })
}

fn port_attributes(attributes: &PortAttributes) -> Value {
    let mtu = |mtu| match mtu {
        PortMtu::Known(mtu) => json!(mtu.bytes()),
        PortMtu::Unknown(code) => json!({ "unknown": code }),
    };
    json!({
        "state": attributes.state.to_string(),
        "physical_state": attributes.physical_state.to_string(),
        "link_layer": attributes.link_layer.to_string(),
        "max_mtu": mtu(attributes.max_mtu),
        "active_mtu": mtu(attributes.active_mtu),
        "max_msg_len": attributes.max_msg_len,
        "rate": attributes.rate.map(rate),
        "lid": attributes.lid,
        "lmc": attributes.lmc,
        "sm_lid": attributes.sm_lid,
        "sm_sl": attributes.sm_sl,
        "subnet_timeout_ns": attributes.subnet_timeout.map(nanoseconds),
        "init_type_reply": attributes.init_type_reply,
        "virtual_lanes": attributes.virtual_lanes.count(),
        "capabilities": flags!(attributes.capabilities),
        "flags": flags!(attributes.flags),
        "gid_count": attributes.gid_count,
        "pkey_count": attributes.pkey_count,
        "bad_pkey_count": attributes.bad_pkey_count,
        "qkey_violation_count": attributes.qkey_violation_count,
    })
}

fn rate(rate: Rate) -> Value {
    json!({
        "width": rate.width.to_string(),
        "speed": rate.speed.to_string(),
        "nominal": rate.nominal(),
        "bits_per_second": rate.bits_per_second(),
    })
}

fn init_attributes(init: &QpInitAttributes) -> Value {
    json!({
        "qp_num": init.qp_num.0,
        "qp_type": init.qp_type.to_string(),
        "max_send_wr": init.capabilities.max_send_wr,
        "max_recv_wr": init.capabilities.max_recv_wr,
        "max_send_sge": init.capabilities.max_send_sge,
        "max_recv_sge": init.capabilities.max_recv_sge,
        "max_inline_data": init.capabilities.max_inline_data,
        "sq_sig_all": init.sq_sig_all,
        "has_srq": init.has_srq,
    })
}

/// Returns only the attributes that exist in the queue pair's state.
fn qp_attributes(attributes: &QpAttributes) -> Value {
    let mut value = Map::new();
    let mut put = |name: &str, one: Option<Value>| {
        if let Some(one) = one {
            value.insert(name.to_owned(), one);
        }
    };
    let a = attributes;
    put("state", a.state.map(|state| json!(state.to_string())));
    put("sq_draining", a.sq_draining.map(Value::from));
    put("port", a.port.map(Value::from));
    put("pkey_index", a.pkey_index.map(Value::from));
    put("qkey", a.qkey.map(Value::from));
    put("access", a.access.map(|access| json!(access.bits())));
    put("dest_qp_num", a.dest_qp_num.map(|number| json!(number.0)));
    put("address", a.address.map(address));
    put("path_mtu", a.path_mtu.map(|mtu| json!(mtu.bytes())));
    put("rq_psn", a.rq_psn.map(|psn| json!(psn.get())));
    put("sq_psn", a.sq_psn.map(|psn| json!(psn.get())));
    // An unlimited timeout is null.
    let timeout = |time: Option<Duration>| time.map_or(Value::Null, nanoseconds);
    put("timeout_ns", a.timeout.map(|code| timeout(code.duration())));
    put("retry_cnt", a.retry_cnt.map(|count| json!(count.code())));
    put("rnr_retry", a.rnr_retry.map(|count| json!(count.limit())));
    let timer = a.min_rnr_timer.map(|timer| nanoseconds(timer.duration()));
    put("min_rnr_timer_ns", timer);
    put("max_rd_atomic", a.max_rd_atomic.map(Value::from));
    put("max_dest_rd_atomic", a.max_dest_rd_atomic.map(Value::from));
    let migration = a.path_migration.map(|state| json!(state.to_string()));
    put("path_migration", migration);
    let alternate = a.alternate_path.map(|path| {
        json!({
            "address": address(path.address),
            "pkey_index": path.pkey_index,
            "port": path.port,
            "timeout_ns": timeout(path.timeout.duration()),
        })
    });
    put("alternate_path", alternate);
    Value::Object(value)
}

fn address(address: AddressVector) -> Value {
    json!({
        "gid": address.gid.to_string(),
        "lid": address.lid,
        "sgid_index": address.sgid_index,
        "is_global": address.is_global,
        "port": address.port,
        "sl": address.sl,
        "src_path_bits": address.src_path_bits,
        "static_rate": address.static_rate,
        "flow_label": address.flow_label,
        "hop_limit": address.hop_limit,
        "traffic_class": address.traffic_class,
    })
}
