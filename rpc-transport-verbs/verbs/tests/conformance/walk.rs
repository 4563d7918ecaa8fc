//! Random walks: requests and calls that proptest generates, on two queue pairs, compared with a
//! model that predicts their results. `SEED` replays one walk.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use verbline_verbs::{Attribute, ModifyError, QpState};

use super::case::{Section, case};
use super::device::{Device, Kind};
use super::model::Model;
use super::rounds::Round;
use super::seed::seed;
use super::states::{attributes_of, specified, wait_until_drained};
use super::verbs_side::{Plan, Side};

pub(crate) const CASES: Section = Section {
    topic: "random walks",
    cases: &[
        case!(
            lists_of_random_requests_do_what_the_model_says,
            "the project's own; as random_walk of google/rdma-unit-test does"
        ),
        case!(
            random_changes_of_state_go_as_the_table_says,
            "specification: queue pair states"
        ),
    ],
};

/// Returns the number of walks. Fewer on an emulated processor.
fn walks(device: &Device) -> u32 {
    match device.kind {
        Kind::Soft => 150,
        _ => 10,
    }
}

/// Checks the property on as many inputs as the device's speed permits, from a seed that is
/// printed.
fn hold<S>(device: &Device, strategy: S, property: impl Fn(&S::Value))
where
    S: Strategy<Value: std::fmt::Debug>,
{
    let seed = seed();
    println!("           SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: walks(device),
        failure_persistence: None,
        // A walk that hangs takes the whole time limit each time.
        max_shrink_time: 40_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let run = runner.run(&strategy, |input| {
        property(&input);
        Ok(())
    });
    match run {
        Ok(()) => {}
        Err(TestError::Fail(reason, input)) => {
            panic!("SEED={seed}: {reason}\nthe least input that fails: {input:#?}")
        }
        Err(abort) => panic!("SEED={seed}: {abort}"),
    }
}

fn lists_of_random_requests_do_what_the_model_says(device: &Device) {
    let may_be_late = device.kind != Kind::Rxe;
    hold(device, vec(any::<Round>(), 1..12), |rounds| {
        let mut model = Model::new(may_be_late);
        for round in rounds {
            model.run(round);
        }
    });
}

/// A call of modify.
#[derive(Clone, Copy, Debug)]
struct Change {
    to: usize,
    /// The attributes that are set, in addition to or instead of the required ones.
    given: Given,
    which: usize,
}

#[derive(Clone, Copy, Debug)]
enum Given {
    Needed,
    AllThatMayBe,
    OneLess,
    OneMore,
}

fn change() -> impl Strategy<Value = Change> {
    let given = prop_oneof![
        4 => Just(Given::Needed),
        2 => Just(Given::AllThatMayBe),
        1 => Just(Given::OneLess),
        1 => Just(Given::OneMore),
    ];
    (0..QpState::ALL.len(), given, 0..Attribute::ALL.len()).prop_map(|(to, given, which)| Change {
        to,
        given,
        which,
    })
}

fn random_changes_of_state_go_as_the_table_says(device: &Device) {
    hold(device, vec(change(), 1..40), |changes| {
        let mut side = Side::new(Plan::default());
        let mut state = QpState::Reset;
        for change in changes {
            state = make(&mut side, state, *change);
            assert_eq!(side.state(), state);
        }
    });
}

/// Makes a change, which succeeds or is rejected according to the table. Returns the state after
/// it.
fn make(side: &mut Side, from: QpState, change: Change) -> QpState {
    let to = QpState::ALL[change.to];
    let Some((required, optional)) = specified(from, to) else {
        let attributes = attributes_of(side, from, to, []);
        let error = side.qp.modify(&attributes).unwrap_err();
        assert!(matches!(error, ModifyError::Transition { .. }), "{error}");
        return from;
    };
    let mut present = required.to_vec();
    let is_known = |one: &Attribute| required.contains(one) || optional.contains(one);
    let one = Attribute::ALL[change.which];
    match change.given {
        Given::Needed => {}
        // There is only one path, so there is no alternate.
        Given::AllThatMayBe => {
            let optional = optional.iter().copied();
            present.extend(optional.filter(|one| *one != Attribute::AlternatePath));
        }
        Given::OneLess if required.contains(&one) => present.retain(|other| *other != one),
        Given::OneMore if !is_known(&one) => present.push(one),
        Given::OneLess | Given::OneMore => {}
    }
    let attributes = attributes_of(side, from, to, present.iter().copied());
    let before = side.qp.query().unwrap();
    let result = side.qp.modify(&attributes);
    if required.iter().all(|one| present.contains(one)) && present.iter().all(is_known) {
        result.unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        if to == QpState::Sqd {
            wait_until_drained(side);
        }
        return to;
    }
    let error = result.unwrap_err();
    assert!(
        matches!(error, ModifyError::Missing { attribute, .. }
            | ModifyError::Superfluous { attribute, .. } if attribute == one),
        "{from} to {to}: {error}"
    );
    assert_eq!(side.qp.query().unwrap(), before);
    from
}
