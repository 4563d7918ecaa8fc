//! Generates `CONFORMANCE.md` from the results of the runs on three devices.
//!
//! ```text
//! conformance --render <results on soft, of each run> <results on tcp> <results on rxe>
//! conformance --render <results on soft, of each run> <results on tcp> --committed <an earlier report, for its column of rxe>
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use super::SECTIONS;
use super::cards;
use super::deviations;
use super::rdma_unit_test;

const INTRODUCTION: &str = "\
# Conformance

<!-- Written by `make conformance`, and compared by CI: not to be edited. -->

What the verbs layer does on three devices, case by case: on `soft`, the software device over shared memory, on `tcp`,
the same over TCP connections, and on `rxe`, the kernel's Soft-RoCE (Linux 6.1, rdma-core 44). The cases are in
[tests/conformance](tests/conformance), one function each; `make conformance` runs them on all devices, and
`cargo test --test conformance -- <part of a name>` runs some.

**pass**: what the specification says. **deviation**: exactly what the [reason](#reasons) says instead, and the case
fails as soon as it does not occur any more. **not supported**: the device lacks what the case is about. On
[network cards](#network-cards), of which none was tried, there is a fourth outcome, **differs**.

*Specification* is the InfiniBand architecture, as the man pages of libibverbs, the kernel's code and its users'
tests restate it. Names such as `rc_test: Send` are cases of
[google/rdma-unit-test](https://github.com/google/rdma-unit-test) (Apache License 2.0), from which situations and
expected statuses were taken; the code is our own. [At the end](#google-rdma-unit-test) stands which of its cases have
no counterpart here, and why.
";

pub(crate) fn render(arguments: &[String]) -> ExitCode {
    let read = |file: &String| {
        std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"))
    };
    let (runs, rxe) = match arguments {
        [runs @ .., flag, committed] if flag == "--committed" => (runs, column(&read(committed))),
        [runs @ .., rxe] => (runs, results(&read(rxe))),
        [] => (&[][..], Cells::new()),
    };
    let Some((tcp, runs)) = runs
        .split_last()
        .filter(|(_, runs)| runs.len() == RUNS.len())
    else {
        eprintln!(
            "--render <soft, {} runs> <tcp> <rxe>, or --render <soft, {0} runs> <tcp> --committed <report>",
            RUNS.len()
        );
        return ExitCode::FAILURE;
    };
    let runs: Vec<Cells> = runs.iter().map(|file| results(&read(file))).collect();
    print!("{}", document(&runs, &results(&read(tcp)), &rxe));
    ExitCode::SUCCESS
}

/// How the suite runs on `soft`: the command, what executes READs, and which receive of a shared queue
/// is taken first. The column of `soft` is that of the first run.
const RUNS: [[&str; 3]; 3] = [
    [
        "cargo test --test conformance",
        "the reader, in place",
        "the newest",
    ],
    [
        "READS=target cargo test --test conformance",
        "the side that owns the memory",
        "the newest",
    ],
    [
        "SHARED_RECEIVES=oldest cargo test --test conformance",
        "the reader, in place",
        "the oldest",
    ],
];

const ABOUT_RUNS: &str = "
## The runs on soft

`soft` executes READs in one of two ways, and takes the receives of a shared queue in one of two orders
(`SoftOptions`). `make conformance` runs all cases each way; *other* is the number of cases whose outcome is not that of
the first run, which is the column of `soft` below. Situations that only READs in place have, such as a READ of a process
that is stopped, are tested in [tests/it/verbs_reads](tests/it/verbs_reads).

| run | READs are executed by | shared receives | pass | deviation | not supported | other |
| --- | --- | --- | ---: | ---: | ---: | ---: |
";

fn section_of_runs(runs: &[Cells]) -> String {
    let mut out = ABOUT_RUNS.to_owned();
    for (cells, [command, reads, receives]) in runs.iter().zip(RUNS) {
        let count = |beginning| {
            let cells = cells.values();
            cells.filter(|cell| cell.starts_with(beginning)).count()
        };
        let is_other = |(name, cell): &(&String, &String)| cells.get(*name) != Some(*cell);
        let other = runs[0].iter().filter(is_other).count();
        writeln!(
            out,
            "| `{command}` | {reads} | {receives} | {} | {} | {} | {other} |",
            count("pass"),
            count("deviation"),
            count("not supported")
        )
        .unwrap();
    }
    out
}

/// Outcomes by the name of the case.
type Cells = HashMap<String, String>;

fn results(lines: &str) -> Cells {
    lines
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, cell)| (name.to_owned(), cell.to_owned()))
        .collect()
}

/// Returns the rxe column of an existing report.
fn column(report: &str) -> Cells {
    report
        .lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.strip_prefix("| ")?.split(" | ").collect();
            let [name, _source, _soft, _tcp, rxe] = cells[..] else {
                return None;
            };
            Some((name.to_owned(), rxe.strip_suffix(" |")?.to_owned()))
        })
        .collect()
}

fn document(runs: &[Cells], tcp: &Cells, rxe: &Cells) -> String {
    let soft = &runs[0];
    const MISSING: &str = "**not run**";
    let cell = |cells: &Cells, name: &str| {
        cells
            .get(name)
            .map_or_else(|| MISSING.to_owned(), Clone::clone)
    };
    let names = || {
        SECTIONS
            .iter()
            .flat_map(|section| section.cases)
            .map(|case| case.name())
    };
    let count = |cells: &Cells, beginning: &str| {
        names()
            .filter(|name| cell(cells, name).starts_with(beginning))
            .count()
    };
    let mut out = INTRODUCTION.to_owned();
    let cases = names().count();
    write!(
        out,
        "\n| {cases} cases | soft | tcp | rxe |\n| --- | ---: | ---: | ---: |\n"
    )
    .unwrap();
    for (what, beginning) in [
        ("pass", "pass"),
        ("deviation", "deviation"),
        ("not supported", "not supported"),
        ("failed or not run", "**"),
    ] {
        let [soft, tcp, rxe] = [soft, tcp, rxe].map(|cells| count(cells, beginning));
        if !beginning.starts_with('*') || soft + tcp + rxe > 0 {
            writeln!(out, "| {what} | {soft} | {tcp} | {rxe} |").unwrap();
        }
    }
    out.push_str(&section_of_runs(runs));
    for section in SECTIONS {
        write!(
            out,
            "\n## {}{}\n\n| case | from | soft | tcp | rxe |\n| --- | --- | --- | --- | --- |\n",
            section.topic[..1].to_uppercase(),
            &section.topic[1..]
        )
        .unwrap();
        for case in section.cases {
            let name = case.name();
            let [soft, tcp, rxe] = [soft, tcp, rxe].map(|cells| cell(cells, &name));
            writeln!(out, "| {name} | {} | {soft} | {tcp} | {rxe} |", case.source).unwrap();
        }
    }
    out.push_str("\n## Reasons\n\n| reason | what rxe does | evidence |\n| --- | --- | --- |\n");
    for reason in deviations::ALL {
        writeln!(
            out,
            "| {} | {} | {} |",
            reason.key, reason.what, reason.evidence
        )
        .unwrap();
    }
    out.push_str(&cards::section());
    out.push_str(&rdma_unit_test::section());
    out
}
