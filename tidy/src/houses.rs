/// `rpc-core`.
pub const CORE: House = House {
    package: "rpc-core",
    rooms: &[
        room("values", &["status", "metadata", "method", "message", "limits", "clock"], &[]),
        room("transport", &["transport"], &["values"]),
        room("call_error", &["call_error"], &["values", "transport"]),
        room("protocol", &["protocol"], &["values", "transport"]),
        room("stats", &["stats"], &["values", "transport", "protocol"]),
        room("metrics", &["metrics"], &["values", "stats"]),
        room("service", &["service"], &["values"]),
        room(
            "driver",
            &["driver"],
            &["values", "transport", "call_error", "protocol", "stats", "service"],
        ),
        room("client", &["client"], &["values", "transport", "call_error", "protocol", "stats", "driver"]),
        room(
            "poller",
            &["poller"],
            &["values", "transport", "stats", "service", "driver", "client"],
        ),
        room(
            "server",
            &["server"],
            &["values", "transport", "protocol", "stats", "service", "driver", "poller"],
        ),
        room(
            "shared",
            &["shared"],
            &["values", "transport", "call_error", "protocol", "stats", "service", "driver", "client", "poller"],
        ),
        room("codegen", &["codegen"], &["values", "call_error", "client", "service", "shared"]),
        room(
            "testing",
            &["testing"],
            &["values", "transport", "call_error", "protocol", "stats", "service", "driver", "poller", "client", "server", "shared"],
        ),
    ],
};

/// `rpc-transport-verbs`.
pub const VERBS: House = House {
    package: "rpc-transport-verbs",
    rooms: &[
        room(
            "hooks",
            &["hooks"],
            &[],
        ),
        room(
            "event_fd",
            &["event_fd"],
            &[],
        ),
        room(
            "verbs::types",
            &["verbs::types"],
            &[],
        ),
        room(
            "provider::work",
            &["provider::work", "provider::limits", "provider::fork_guard", "provider::names", "provider::queue_pair_options", "provider::kernel_devices", "provider::soft::names", "provider::rdma::names"],
            &["verbs::types"],
        ),
        room(
            "soft::shared",
            &["provider::soft::shared"],
            &["hooks", "event_fd", "verbs::types", "provider::work"],
        ),
        room(
            "soft::capacities",
            &["provider::soft::capacities"],
            &["verbs::types", "provider::work", "soft::shared"],
        ),
        room(
            "soft::context",
            &["provider::soft::context"],
            &["hooks", "event_fd", "verbs::types", "provider::work", "soft::shared", "soft::capacities"],
        ),
        room(
            "soft::process",
            &["provider::soft::process"],
            &["hooks", "event_fd", "verbs::types", "provider::work", "soft::shared", "soft::capacities", "soft::context"],
        ),
        room(
            "soft::reliable",
            &["provider::soft::reliable"],
            &["hooks", "event_fd", "verbs::types", "provider::work", "soft::shared", "soft::capacities", "soft::context"],
        ),
        room(
            "soft::unreliable",
            &["provider::soft::unreliable"],
            &["hooks", "event_fd", "verbs::types", "provider::work", "soft::shared", "soft::capacities", "soft::context", "soft::process"],
        ),
        room(
            "soft::objects",
            &["provider::soft::objects"],
            &["hooks", "event_fd", "verbs::types", "provider::work", "soft::shared", "soft::capacities", "soft::context", "soft::process", "soft::unreliable"],
        ),
        room(
            "soft",
            &["provider::soft"],
            &["hooks", "event_fd", "verbs::types", "provider::work", "soft::shared", "soft::capacities", "soft::context", "soft::process", "soft::objects"],
        ),
        room(
            "rdma",
            &["provider::rdma"],
            &["event_fd", "verbs::types", "provider::work", "soft::capacities"],
        ),
        room(
            "provider",
            &["provider"],
            &["verbs::types", "provider::work", "soft", "rdma"],
        ),
        room(
            "verbs",
            &["verbs"],
            &["event_fd", "verbs::types", "provider"],
        ),
        room(
            "transport",
            &["transport"],
            &["hooks", "event_fd", "verbs::types", "verbs"],
        ),
        room(
            "connect::handshake",
            &["connect::handshake"],
            &["verbs", "transport"],
        ),
        room(
            "connect::liveness",
            &["connect::keepalive", "connect::liveness"],
            &["hooks", "event_fd", "verbs::types", "verbs", "transport"],
        ),
        room(
            "connect::server",
            &["connect::server"],
            &["hooks", "event_fd", "verbs::types", "verbs", "transport", "connect::handshake", "connect::liveness"],
        ),
        room(
            "connect::control_thread",
            &["connect::control_thread"],
            &["hooks", "event_fd", "verbs::types", "verbs", "transport", "connect::handshake", "connect::liveness", "connect::server"],
        ),
        room(
            "connect",
            &["connect"],
            &["hooks", "event_fd", "verbs::types", "verbs", "transport", "connect::handshake", "connect::liveness", "connect::server", "connect::control_thread"],
        ),
        room(
            "device",
            &["device"],
            &["hooks", "event_fd", "verbs::types", "provider", "verbs", "transport", "connect::server", "connect::control_thread", "connect"],
        ),
        room(
            "testing",
            &["testing"],
            &["hooks", "event_fd", "verbs::types", "provider", "verbs", "transport", "connect", "device"],
        ),
    ],
};
