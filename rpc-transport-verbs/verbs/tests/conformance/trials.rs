//! Tests of the suite itself: what a run does on a network card, of which there is none. They run with
//! the whole suite on `soft`. Each starts this program again, for a few cases, with two variables:
//!
//! * `CONFORMANCE_CARD=mlx5`: the software device counts as a card of this provider; of none that is
//!   known, if it is `unknown`;
//! * `CONFORMANCE_PLANTED=<case>=differs`: this case fails; with `=hangs`, it does not end.

use std::fs;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use verbline_verbs::VerbsError;

use super::cards::{Lacks, Provider};
use super::case::Outcome;
use super::device::PRETENDED_CARD;
use super::differences::Outcomes;

/// Time after which a planted case counts as hanging.
pub(crate) const LIMIT: Duration = Duration::from_millis(300);

const PLANTED: &str = "CONFORMANCE_PLANTED";

/// What happens in place of a case.
#[derive(Clone, Copy)]
pub(crate) enum Planted {
    Differs,
    Hangs,
}

/// Returns what is planted in place of a case.
pub(crate) fn planted(case: &str) -> Option<Planted> {
    let planted = std::env::var(PLANTED).ok()?;
    let (name, what) = planted.split_once('=')?;
    (name == case).then(|| match what {
        "differs" => Planted::Differs,
        "hangs" => Planted::Hangs,
        other => panic!("{PLANTED} is differs or hangs, not {other:?}"),
    })
}

impl Planted {
    pub(crate) fn run(self) {
        match self {
            Self::Differs => panic!("a planted\ndifference"),
            Self::Hangs => loop {
                thread::park();
            },
        }
    }
}

/// Runs the tests, and returns a sentence for each that fails.
pub(crate) fn problems() -> Vec<String> {
    let trials: [(&str, fn()); 7] = [
        ("a difference of a card is listed and fails nothing", listed),
        ("what is known of a card is a deviation", known),
        ("a hang on a card does not end the run", hangs),
        ("without a card a difference fails", fails),
        ("a provider is known by its driver", providers),
        ("what a device lacks is not supported", lacks),
        ("what was seen survives a new start", survives),
    ];
    let failed = |(name, trial): (&str, fn())| {
        let ended = catch_unwind(AssertUnwindSafe(trial));
        ended.err().map(|_| format!("the suite itself: {name}: no"))
    };
    trials.into_iter().filter_map(failed).collect()
}

/// Two cases that take no time, of which the first is planted, in the order of the report.
const CASES: [&str; 2] = [
    "a-device-is-opened-and-says-its-name",
    "wishes-for-an-address-that-cannot-be-met-are-explained",
];

/// A case that is known to differ on some cards.
const READ: &str = "a-read-without-bytes-succeeds";

/// Runs these cases with the variables, and checks how the program ends. Returns what it printed.
fn run(cases: &[&str], variables: &[(&str, &str)], succeeds: bool) -> String {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(cases).envs(variables.iter().copied());
    let output: Output = program.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.success(), succeeds, "{text}{errors}");
    text
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

fn listed() {
    let planted = format!("{}=differs", CASES[0]);
    for card in ["unknown", "mlx5", "efa"] {
        let text = run(&CASES, &[(PRETENDED_CARD, card), (PLANTED, &planted)], true);
        assert_has(
            &text,
            &[
                "soft differs from the specification in 1 cases",
                "Please send us this report",
                &format!("differs: {}: ", CASES[0]),
                "a planted\n    difference",
                "1 pass, 0 deviate, 0 not supported, 1 differ, 0 failed",
                "test result: ok. 1 passed; 0 failed; 1 ignored;",
            ],
        );
    }
    // On a card without a difference, there is no list.
    let text = run(&CASES, &[(PRETENDED_CARD, "mlx5")], true);
    assert_has(&text, &["2 pass, 0 deviate, 0 not supported, 0 differ"]);
    assert!(!text.contains("Please send"), "{text}");
}

fn known() {
    let planted = format!("{READ}=differs");
    for (card, counts, cell) in [
        (
            "mlx4",
            "0 pass, 1 deviate, 0 not supported, 0 differ",
            "deviation: mlx4-empty-reads",
        ),
        (
            "mlx5",
            "0 pass, 0 deviate, 0 not supported, 1 differ",
            "differs",
        ),
    ] {
        let variables = [(PRETENDED_CARD, card), (PLANTED, &*planted)];
        assert_has(&run(&[READ], &variables, true), &[counts, cell]);
    }
    // Cards vary: what is known need not occur.
    let text = run(&[READ], &[(PRETENDED_CARD, "mlx4")], true);
    assert_has(&text, &["1 pass, 0 deviate, 0 not supported, 0 differ"]);
}

fn hangs() {
    let planted = format!("{}=hangs", CASES[0]);
    let directory = scratch("hangs");
    let results = directory.join("results").to_str().unwrap().to_owned();
    let arguments = [CASES[0], CASES[1], "--results", &results];
    let variables = [(PRETENDED_CARD, "unknown"), (PLANTED, &*planted)];
    let text = run(&arguments, &variables, true);
    assert_has(
        &text,
        &[
            &format!("differs: {}: hangs", CASES[0]),
            "1 pass, 0 deviate, 0 not supported, 1 differ, 0 failed",
        ],
    );
    let cells = fs::read_to_string(&results).unwrap();
    assert_eq!(
        cells,
        format!("{}\tdiffers\n{}\tpass\n", CASES[0], CASES[1])
    );
    fs::remove_dir_all(directory).unwrap();
    // Elsewhere it ends the run.
    let text = run(&CASES, &[(PLANTED, &planted)], false);
    assert!(!text.contains(CASES[1]), "{text}");
}

fn fails() {
    let planted = format!("{}=differs", CASES[0]);
    let text = run(&CASES, &[(PLANTED, &planted)], false);
    assert_has(&text, &["1 pass, 0 deviate, 0 not supported, 1 failed"]);
}

fn providers() {
    let directory = scratch("providers");
    let device = |name: &str, driver: &str| {
        let device = directory.join(name).join("device");
        fs::create_dir_all(&device).unwrap();
        // As in sysfs, where it leads up and to the bus.
        let target = Path::new("../../../../bus/pci/drivers").join(driver);
        symlink(target, device.join("driver")).unwrap();
        Provider::of_listed(&directory, name)
    };
    for (driver, provider) in [
        ("mlx5_core", Some(Provider::Mlx5)),
        ("mlx4_core", Some(Provider::Mlx4)),
        ("ice", Some(Provider::Irdma)),
        ("i40e", Some(Provider::Irdma)),
        ("bnxt_en", Some(Provider::BnxtRe)),
        ("hns3", Some(Provider::Hns)),
        ("efa", Some(Provider::Efa)),
        ("ionic", None),
    ] {
        // Udev may give it another name than its driver does.
        let name = format!("rocep1s0-{driver}");
        assert_eq!(device(&name, driver), provider, "{driver}");
    }
    // Soft-RoCE has no device above it, and some devices no driver.
    fs::create_dir_all(directory.join("rxe0")).unwrap();
    fs::create_dir_all(directory.join("mlx5_7/device")).unwrap();
    for name in ["rxe0", "mlx5_7", "nothing"] {
        assert_eq!(Provider::of_listed(&directory, name), None, "{name}");
    }
    fs::remove_dir_all(directory).unwrap();
}

fn lacks() {
    let error = |call| {
        let source = std::io::ErrorKind::Unsupported.into();
        // As `unwrap` says it.
        format!("{:?}", VerbsError::Os { call, source })
    };
    let windows = Lacks {
        windows: true,
        ..Lacks::default()
    };
    assert_eq!(windows.explain(&error("alloc_mw")), Some("no-windows"));
    assert_eq!(windows.explain(&error("create_srq")), None);
    assert_eq!(Lacks::default().explain(&error("alloc_mw")), None);
    let others = Lacks {
        shared_receive_queues: true,
        reliable_connections: true,
        windows: false,
    };
    for (call, key) in [
        ("create_srq", Some("no-shared-queues")),
        ("create_qp", Some("no-reliable-connections")),
        ("alloc_mw", None),
    ] {
        assert_eq!(others.explain(&error(call)), key, "{call}");
    }
}

fn survives() {
    let outcomes = [
        Outcome::Pass,
        Outcome::Deviation(vec!["one".to_owned(), "two".to_owned()]),
        Outcome::NotSupported("no-windows".to_owned()),
        Outcome::Differs("left: \"1\\n\"\n\tright: …".to_owned()),
        Outcome::Failed(String::new()),
    ];
    let mut before = Outcomes::default();
    for (number, outcome) in outcomes.into_iter().enumerate() {
        before.push(format!("case-{number}"), outcome);
    }
    assert_eq!(Outcomes::parse(&before.text()).all, before.all);
}

/// Returns a new directory.
fn scratch(what: &str) -> std::path::PathBuf {
    let name = format!("conformance-{what}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).unwrap();
    directory
}
