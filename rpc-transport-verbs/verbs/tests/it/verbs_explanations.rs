//! Checks that `docs/verbs-errors.md` matches the explanations in the code.
//!
//! `UPDATE_GOLDEN=1 cargo test -p verbline-verbs --test it verbs_explanations` updates the file.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use verbline_verbs::{AsyncEvent, CompletionStatus, Explanation};

/// Renders the page from the explanations.
fn page() -> String {
    let mut page = String::from(
        "# What verbs report, and what to do

This page is generated from the code: `CompletionStatus::explanation()` and `AsyncEvent::explanation()` return the same
texts (`UPDATE_GOLDEN=1 cargo test -p verbline-verbs --test it verbs_explanations` writes it). The messages of
Verbline's transport are in [rdma.md](rdma.md#messages-and-what-to-do).

## How a work request ends

The status of a work completion. If it is not `SUCCESS`, only the status, the request's id, the queue pair's number and
the vendor's error number are valid. The first completion of a queue pair that is neither `SUCCESS` nor `WR_FLUSH_ERR`
has the cause.
",
    );
    for status in CompletionStatus::NAMED {
        let name = status.verbs_name();
        entry(
            &mut page,
            &format!("{name} ({})", status.code()),
            status.explanation(),
        );
    }
    page.push_str(
        "
## Asynchronous events

Events of a completion queue (CQ), a queue pair (QP), a shared receive queue (SRQ), a port, or the device.
",
    );
    for (code, name, explanation) in AsyncEvent::explained() {
        entry(&mut page, &format!("{name} ({code})"), explanation);
    }
    page
}

fn entry(page: &mut String, title: &str, explanation: Explanation) {
    let Explanation {
        meaning,
        causes,
        look_at,
        ..
    } = explanation;
    write!(
        page,
        "\n### {title}\n\n{meaning}\n\n- **Usual causes:** {causes}\n- **Look at:** {look_at}\n"
    )
    .unwrap();
}

#[test]
fn the_page_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/verbs-errors.md");
    let page = page();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/verbs-errors.md is not what the code says: run this test with UPDATE_GOLDEN=1"
    );
}
