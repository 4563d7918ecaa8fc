//! Text output.

use std::fmt;

use crate::details::{Details, Opened};

/// Formats everything that a device reports, one item per line.
pub(super) struct Of<'a>(pub(super) &'a Details);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { name, info, opened } = self.0;
        write!(f, "device {name}")?;
        if let Some(info) = info {
            write!(f, ": {}, transport {}", info.node_type, info.transport)?;
        }
        match opened {
            Ok(opened) => write_opened(f, name, opened),
            Err(why) => write!(f, "\n  cannot be opened: {why}"),
        }
    }
}

fn write_opened(f: &mut fmt::Formatter<'_>, name: &str, opened: &Opened) -> fmt::Result {
    write_indented(f, &opened.attributes.to_string())?;
    for port in &opened.ports {
        write!(f, "\n\nport {} of {name}", port.number)?;
        write_indented(f, &port.attributes.to_string())?;
        for entry in &port.gids {
            let netdev = entry.netdev.as_deref().unwrap_or("no netdev");
            let gid = format!("{} ({}, {netdev})", entry.gid, entry.gid_type);
            write!(f, "\n  {:<20} {gid}", format!("gid {}", entry.index))?;
        }
        for (index, key) in &port.pkeys {
            write!(f, "\n  {:<20} {key}", format!("pkey {index}"))?;
        }
    }
    write!(f, "\n\na queue pair of {name}, connected to itself")?;
    match &opened.queue_pair {
        Ok(queue_pair) => {
            write_indented(f, &queue_pair.init.to_string())?;
            write_indented(f, &queue_pair.attributes.to_string())
        }
        Err(why) => write!(f, "\n  cannot be created: {why}"),
    }
}

fn write_indented(f: &mut fmt::Formatter<'_>, lines: &str) -> fmt::Result {
    lines.lines().try_for_each(|line| write!(f, "\n  {line}"))
}
