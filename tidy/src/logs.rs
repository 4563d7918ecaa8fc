//! Log lines that peers can cause: each is limited, and what a peer did is never an error.

use crate::Violation;
use crate::source::Crate;

/// Folders of code that peers drive. In each of them, a line at INFO or above, or of a level that is
/// computed, is written with `log_limited!`, or it is in [`UNLIMITED`]. It is found by the name of its
/// macro, which is not imported under another one.
const PATHS_OF_PEERS: &[&str] = &[
    "gateway/src/",
    "rpc-core/src/catch_panic.rs",
    "rpc-core/src/client/",
    "rpc-core/src/codec/",
    "rpc-core/src/driver/",
    "rpc-core/src/protocol/",
    "rpc-core/src/server/",
    "rpc-core/src/service/",
    "rpc-core/src/shared/",
    "rpc-core/src/stream/",
    "rpc-transport-verbs/src/connect/",
    "rpc-transport-verbs/src/transport/",
    "rpc-transport-verbs/verbs/src/provider/soft/",
];

/// A log line with these words in this file, and why it may be there.
type Row = (&'static str, &'static str, &'static str);

/// Lines without a limit: no peer can cause them as often as it likes.
pub const UNLIMITED: &[Row] = &[
    (
        "gateway/src/server.rs",
        "have not ended in time",
        "once in a shutdown",
    ),
    (
        "driver/handlers.rs",
        "rejecting calls:",
        "at powers of two of a number that only grows",
    ),
    ("driver/serving.rs", "shutting down:", "once in a shutdown"),
    (
        "driver/connections.rs",
        "shutting down:",
        "once in a shutdown",
    ),
    (
        "driver/links.rs",
        "This is a bug in Verbline",
        "a bug of this side",
    ),
    (
        "server/watchdog.rs",
        "poller's thread for more than",
        "once for each method",
    ),
    (
        "server/shutdown.rs",
        "panicked when it was told",
        "by each service and poller, once in a shutdown",
    ),
    (
        "server/threads.rs",
        "the server stopped",
        "once in a server",
    ),
    (
        "server/start.rs",
        "the grace is longer than",
        "once in a server",
    ),
    (
        "shared/open.rs",
        "cannot open the device",
        "this side's device, after growing delays",
    ),
    (
        "shared/dial_threads.rs",
        "the end of a handshake panicked",
        "a bug of this side",
    ),
    (
        "control_thread/sockets.rs",
        "the control thread cannot wait",
        "once in a process",
    ),
    (
        "transport/reserve.rs",
        "only a part of the reserve",
        "this side's device",
    ),
    (
        "transport/reserve.rs",
        "cannot be armed",
        "this side's device",
    ),
    (
        "transport/queue_pairs.rs",
        "a device has failed",
        "once for each device of a poller",
    ),
    (
        "transport/sleep.rs",
        "epoll failed",
        "no peer makes a wait fail",
    ),
    ("transport/events.rs", "has panicked", "once in a lane"),
    (
        "transport/events.rs",
        "cannot be read",
        "after a change of this side's port",
    ),
    (
        "transport/events.rs",
        "until its settings are possible again",
        "after a change of this side's port",
    ),
    (
        "transport/device_event.rs",
        "{self}",
        "this side's device and its ports",
    ),
    (
        "memory_pool/mod.rs",
        "cannot register more memory",
        "every few seconds",
    ),
    (
        "memory_pool/mod.rs",
        "gives no more memory windows",
        "every few seconds",
    ),
    (
        "long_messages/one_sided_requests.rs",
        "failed to bind a memory window",
        "once in a lane",
    ),
    (
        "soft/shared/memory.rs",
        "could not be unmapped",
        "no peer makes it fail",
    ),
    (
        "soft/process/engine.rs",
        "cannot wait in epoll",
        "no peer makes a wait fail",
    ),
    (
        "soft/process/gid.rs",
        "/proc cannot be read",
        "once in a process",
    ),
];

/// Errors with a limit: failures of the application, which a peer's requests can repeat.
pub const ERRORS: &[Row] = &[
    (
        "client/encode.rs",
        "the encoded length",
        "a message of this side's application",
    ),
    (
        "codec/beside.rs",
        "the waker of a task",
        "a panic of the application",
    ),
    (
        "driver/handlers.rs",
        "destructor of a handler's answer",
        "a panic of the application",
    ),
    (
        "src/catch_panic.rs",
        "the handler panicked",
        "a panic of the application",
    ),
    (
        "service/handler_cells.rs",
        "handler's future or response",
        "a panic of the application",
    ),
    (
        "stream/wakers.rs",
        "the waker of a task",
        "a panic of the application",
    ),
];

/// Returns the lines that are neither limited nor allowed, and the rows that allow no line.
#[must_use]
pub fn unlimited(crates: &[Crate], unlimited: &[Row], errors: &[Row]) -> Vec<Violation> {
    let mut unused: Vec<&Row> = unlimited.iter().chain(errors).collect();
    let mut violations = Vec::new();
    for file in crates.iter().flat_map(Crate::product) {
        let path = file.path.to_string_lossy().into_owned();
        if !PATHS_OF_PEERS.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        for line in renaming_imports(&file.text) {
            violations.push(Violation {
                file: file.path.clone(),
                line,
                message: "import the macros of `tracing` under their own names: its log lines are \
                          looked for by them"
                    .to_owned(),
            });
        }
        for (line, macro_name, text) in log_lines(&file.text) {
            let (rows, remedy) = match macro_name {
                "log_limited!" if !text.trim_start().starts_with("error") => continue,
                "log_limited!" => (
                    errors,
                    "what a peer did is a warning at most: log it as one",
                ),
                _ => (
                    unlimited,
                    "peers could fill the log: write it with `log_limited!`",
                ),
            };
            let allows = |(file, words, _): &Row| path.ends_with(file) && text.contains(words);
            let before = unused.len();
            unused.retain(|row| !(rows.contains(row) && allows(row)));
            if before == unused.len() && !rows.iter().any(allows) {
                violations.push(Violation {
                    file: file.path.clone(),
                    line,
                    message: format!("{remedy}; or say in tidy/src/logs.rs why no peer causes it"),
                });
            }
        }
    }
    violations.extend(unused.into_iter().map(|(file, words, _)| Violation {
        file: "tidy/src/logs.rs".into(),
        line: 1,
        message: format!("no line of {file} says '{words}': remove the row"),
    }));
    violations
}

/// Returns the calls of macros that log at INFO or above: the line, the macro and its arguments.
fn log_lines(text: &str) -> Vec<(usize, &'static str, &str)> {
    const MACROS: [&str; 5] = ["error!", "warn!", "info!", "event!", "log_limited!"];
    let mut found = Vec::new();
    for name in MACROS {
        for (at, _) in text.match_indices(name) {
            let is_in_name = |before: char| before.is_alphanumeric() || before == '_';
            let rest = text[at + name.len()..].trim_start();
            if !text[..at].ends_with(is_in_name)
                && let Some(arguments) = rest.strip_prefix(['(', '[', '{'])
            {
                found.push((line_of(text, at), name, arguments_of(arguments)));
            }
        }
    }
    found
}

/// Returns the lines of imports that give macros of `tracing`, or the crate, another name.
fn renaming_imports(text: &str) -> Vec<usize> {
    let imports = text.match_indices("use tracing");
    let renames = |at: &usize| {
        let import = text[*at..].split(';').next().unwrap_or_default();
        import.contains(" as ")
    };
    let found = imports.map(|(at, _)| at).filter(renames);
    found.map(|at| line_of(text, at)).collect()
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

/// Returns the text up to the parenthesis that closes the arguments, in which strings may have others.
fn arguments_of(text: &str) -> &str {
    let (mut depth, mut in_string, mut is_escaped) = (1, false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if in_string => is_escaped = true,
            '"' => in_string = !in_string,
            '(' if !in_string => depth += 1,
            ')' if !in_string => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_limit_an_error_and_a_row_for_nothing_are_found() {
        let text = r#"
fn log() {
    tracing::warn!(%error, "a peer (or two) is wrong");
    tracing::debug!("a detail");
    log_limited!(warn, "a peer is wrong");
    tracing::warn!(
        "this device is wrong"
    );
    log_limited!(error, "a peer is wrong");
    warn!("a peer is wrong");
    event!(Level::WARN, "a peer is wrong");
    tracing::event!(level, "a peer is wrong");
    compile_error!("not a line");
}
use tracing::{Level, warn as say};
use tracing::{Level, event, warn};
"#;
        let crates = [Crate::from_texts("rpc-core", &[("driver/links.rs", text)])];
        let rows = [
            ("links.rs", "this device", "of this side"),
            ("links.rs", "nothing", "of nobody"),
        ];
        let violations = unlimited(&crates, &rows, &[]);
        let lines: Vec<usize> = violations.iter().map(|violation| violation.line).collect();
        assert_eq!(lines, [15, 3, 10, 11, 12, 9, 1], "{violations:?}");
        assert!(violations[6].message.contains("'nothing'"));
    }
}
