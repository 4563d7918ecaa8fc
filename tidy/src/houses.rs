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
        room("hooks", &["hooks"], &[]),
        room("event_fd", &["event_fd"], &[]),
        room("verbs::types", &["verbs::types"], &[]),
        room("provider", &["provider"], &["hooks", "event_fd", "verbs::types"]),
        room("verbs", &["verbs"], &["event_fd", "verbs::types", "provider"]),
        room("transport", &["transport"], &["hooks", "event_fd", "verbs::types", "verbs"]),
        room("connect", &["connect"], &["hooks", "event_fd", "verbs::types", "verbs", "transport"]),
        room("device", &["device"], &["hooks", "event_fd", "verbs::types", "provider", "verbs", "transport", "connect"]),
        room(
            "testing",
            &["testing"],
            &["hooks", "event_fd", "verbs::types", "provider", "verbs", "transport", "connect", "device"],
        ),
    ],
};
