//! What counts as a call between files, and that each ceiling is felt, on crates of a few lines.

use tidy::calls::arrows;
use tidy::definitions::Definitions;
use tidy::figures::guards;
use tidy::source::Crate;
use tidy::tangles::{Ceiling, Tangles};

/// A type and its two fields; `b.rs` defines its method `finish`.
const STATE: &str = "
    mod a; mod b; mod c;
    pub struct State { open: u32, peer: Peer, maybe: Option<Peer> }
    pub struct Peer;
";
const FINISH: &str = "use super::State; impl State { pub fn finish(&mut self) -> u32 { 0 } }";

/// The calls among files of a crate, as `a State::finish` for one from `a.rs`.
fn calls(texts: &[(&str, &str)]) -> Vec<String> {
    let source = Crate::from_texts("small", texts);
    let arrows = arrows(&source, &Definitions::of(&source));
    let name = |file: usize| source.files[file].module.join("::");
    let call = |arrow: &tidy::calls::Arrow| {
        format!(
            "{} -> {}: {}",
            name(arrow.from),
            name(arrow.to),
            arrow.called
        )
    };
    arrows.iter().map(call).collect()
}

/// The calls of `a.rs`, beside the type and its method `finish` in `b.rs`.
fn calls_of(a: &str) -> Vec<String> {
    calls(&[("lib.rs", STATE), ("a.rs", a), ("b.rs", FINISH)])
}

const FINISHES: [&str; 1] = ["a -> b: State::finish"];

#[test]
fn a_method_in_another_file_is_called_where_the_type_can_be_seen() {
    for body in [
        "impl State { fn f(&mut self) { self.finish(); } }",
        "impl State { fn f(&mut self) { Self::finish(self); } }",
        "impl State { fn f(&mut self) { let this = &mut *self; this.finish(); } }",
        "impl State { fn f(&mut self) { let end = Self::finish; end(self); } }",
        "impl Clone for State { fn clone(&self) -> Self { self.finish() } }",
        "impl State {} fn f(state: &mut State) { if true { state.finish(); } }",
        "impl State {} fn f(state: Pin<&mut State>) { state.as_mut().finish(); }",
        "impl State {} struct Turn { state: State } impl Turn { fn f(&mut self) { self.state.finish(); } }",
        "impl State {} struct Turn { state: RefCell<State> } fn f(turn: &Turn) { turn.state.borrow_mut().finish(); }",
        "impl State { fn this(&mut self) -> &mut Self { self } fn f(&mut self) { self.this().finish(); } }",
        "impl State {} fn f(states: Option<&mut State>) { if let Some(state) = states { state.finish(); } }",
        "impl State {} fn f(states: Option<&mut State>) { let Some(state) = states else { return }; state.finish(); }",
        "impl State {} struct Turn { state: State } fn f(turn: Turn) { let Turn { state } = turn; state.finish(); }",
        "impl State {} fn f() { run(|state: &mut State| state.finish()); }",
        "impl State {} fn f(states: &mut [State]) { states[0].finish(); }",
        "impl State {} fn f(states: Vec<State>) { for state in &mut states { state.finish(); } }",
        "impl State {} fn f(states: Vec<Box<State>>) { for (i, state) in states.iter_mut().enumerate() { state.finish(); } }",
        "impl State {} struct All { by_name: HashMap<u32, State> } fn f(all: &mut All) { all.by_name.get_mut(&7).unwrap().finish(); }",
        "impl State {} fn f(states: &mut Slab<State>) { if let Some(state) = states.get_mut(7) { state.finish(); } }",
        "impl State {} fn f(maybe: Option<&mut State>) { maybe.map(|state| state.finish()); }",
        "impl State {} fn f(states: Vec<State>) { states.iter_mut().for_each(|state| state.finish()); }",
        "impl State {} fn f(cell: &RefCell<State>) { if let Ok(state) = cell.try_borrow_mut() { state.finish(); } }",
        "impl State {} enum Link { Open(u32, State) } fn f(link: &mut Link) { match link { Link::Open(_, state) => state.finish() } }",
        "impl State {} enum Link { Open { state: State } } fn f(link: &mut Link) { if let Link::Open { state } = link { state.finish(); } }",
        "impl State {} fn f(pair: (u32, State)) { let (_, state) = pair; state.finish(); }",
        "impl State {} fn f(pair: (u32, State)) { pair.1.finish(); }",
    ] {
        let found = calls_of(&format!("use crate::State; {body}"));
        assert_eq!(found, FINISHES, "{body}");
    }
}

#[test]
fn a_call_in_the_body_of_a_macro_counts() {
    for body in [
        "debug_assert!(self.finish() > 0);",
        "trace!(target: \"x\", sum = 1 + self.finish(), \"ends {}\", 7);",
        "select! { _ = wait() => { self.finish(); } }",
    ] {
        let a = format!("use crate::State; impl State {{ fn f(&mut self) {{ {body} }} }}");
        assert_eq!(calls_of(&a), FINISHES, "{body}");
    }
}

#[test]
fn a_shadowed_name_is_another_value() {
    for body in [
        "let state = 7; state.finish();",
        "run(|state| state.finish());",
        "for state in others { state.finish(); }",
        "match other { Other(state) => state.finish() }",
        "match state { Other(state) => state.finish() }",
        "state.map(|it| it).finish();",
        "let (.., state) = (7, 7, other()); state.finish();",
        "let (state, _) = others; debug_assert!(state.finish());",
    ] {
        let a = format!("use crate::State; impl State {{}} fn f(state: &mut State) {{ {body} }}");
        assert_eq!(calls_of(&a), [""; 0], "{body}");
    }
    let ends = "use crate::State; impl State {} fn f(state: &mut State) { { let state = 7; } state.finish(); }";
    assert_eq!(calls_of(ends), FINISHES);
}

#[test]
fn a_function_that_takes_the_type_by_mut_is_a_method_in_all_but_name() {
    let b = "use super::State; pub fn finish(state: &mut State) {} pub fn look(state: &State) {}";
    let of = |a: &str| calls(&[("lib.rs", STATE), ("a.rs", a), ("b.rs", b)]);
    let calls_finish = "impl State { fn f(&mut self) { b::finish(self); } }";
    assert_eq!(
        of(&format!("use crate::{{State, b}}; {calls_finish}")),
        FINISHES
    );
    let imported =
        "use crate::{State, b::finish}; impl State { fn f(&mut self) { finish(self); } }";
    assert_eq!(of(imported), FINISHES);
    let shared = "use crate::{State, b}; impl State { fn f(&mut self) { b::look(self); } }";
    assert_eq!(of(shared), [""; 0]);
    let variable =
        "use crate::State; impl State { fn f(&mut self) { let finish = |_| {}; finish(self); } }";
    assert_eq!(of(variable), [""; 0]);
    let own = "use crate::State; fn finish(state: &mut State) {} impl State { fn f(&mut self) { finish(self); } }";
    assert_eq!(of(own), [""; 0]);
    // Methods of other types too.
    let b = "use super::{Peer, State}; impl Peer { pub fn finish(&self, state: &mut State) {} }";
    let a = "use crate::State; impl State { fn f(&mut self) { self.peer.finish(self); } }";
    assert_eq!(
        calls(&[("lib.rs", STATE), ("a.rs", a), ("b.rs", b)]),
        FINISHES
    );
}

#[test]
fn a_trait_for_the_type_in_a_third_file_is_part_of_it() {
    let a = "use crate::State; impl State { fn f(&mut self) { self.close(); } pub fn g(&self) {} }";
    let c = "use super::State; impl Close for State { fn close(&mut self) { self.g(); } }";
    let found = calls(&[("lib.rs", STATE), ("a.rs", a), ("c.rs", c)]);
    assert_eq!(found, ["a -> c: State::close", "c -> a: State::g"]);
}

#[test]
fn a_name_that_could_be_several_is_left_out() {
    let a = "use crate::State; impl State { fn f(&mut self) { self.finish(); } }";
    let twice = "use super::State; impl Finish for State { fn finish(&mut self) {} }";
    let found = calls(&[
        ("lib.rs", STATE),
        ("a.rs", a),
        ("b.rs", FINISH),
        ("c.rs", twice),
    ]);
    assert_eq!(found, [""; 0]);
    // Another type with the same name.
    let other = "struct State; impl State { fn f(&mut self) { self.finish(); } }";
    assert_eq!(calls_of(other), [""; 0]);
    let foreign = "use std::thread::State; fn f(state: &mut State) { state.finish(); }";
    assert_eq!(calls_of(foreign), [""; 0]);
}

#[test]
fn tests_do_not_count() {
    let a = "use crate::State; #[cfg(test)] mod tests { impl State { fn f(&mut self) { self.finish(); } } }
             impl State { #[cfg(test)] fn g(&mut self) { self.finish(); } }";
    assert_eq!(calls_of(a), [""; 0]);
}

/// Three files that call each other in a circle.
fn circle_of_three() -> Crate {
    let method = |name: &str, next: &str| {
        format!("use super::State; impl State {{ pub fn {name}(&mut self) {{ self.{next}(); }} }}")
    };
    let (a, b, c) = (method("a", "b"), method("b", "c"), method("c", "a"));
    let texts = [("lib.rs", STATE), ("a.rs", &a), ("b.rs", &b), ("c.rs", &c)];
    Crate::from_texts("small", &texts)
}

fn ceiling(files: usize, name: &'static str) -> Ceiling {
    Ceiling {
        files,
        package: "small",
        name,
    }
}

fn messages(source: &Crate, circles: &[Ceiling], types: &[Ceiling]) -> Vec<String> {
    let violations = Tangles::of(source).violations(circles, types);
    violations.iter().map(ToString::to_string).collect()
}

#[test]
fn a_circle_above_its_ceiling_is_named_with_the_calls_that_close_it() {
    let source = circle_of_three();
    assert_eq!(messages(&source, &[ceiling(3, "")], &[]), [""; 0]);
    for ceilings in [&[ceiling(2, "")][..], &[]] {
        let found = messages(&source, ceilings, &[]);
        assert_eq!(found.len(), 3, "{found:?}");
        let start = "small/src/a.rs:1: calls State::b in small/src/b.rs, which leads back here: a circle of 3 files";
        assert!(found[0].starts_with(start), "{found:?}");
    }
}

/// The others of a circle that was there before are not named.
#[test]
fn of_a_circle_that_grew_the_new_call_is_named() {
    let pair = "use super::State; impl State { pub fn a(&mut self) { self.b(); self.c(); } }";
    let back = "use super::State; impl State { pub fn b(&mut self) { self.a(); } }";
    let new = "use super::State; impl State { pub fn c(&mut self) { self.b(); } }";
    let texts = [
        ("lib.rs", STATE),
        ("a.rs", pair),
        ("b.rs", back),
        ("c.rs", new),
    ];
    let found = messages(&Crate::from_texts("small", &texts), &[ceiling(2, "")], &[]);
    let callers: Vec<&str> = found
        .iter()
        .filter_map(|text| text.split(" in small").next())
        .collect();
    let expected = [
        "small/src/a.rs:1: calls State::c",
        "small/src/b.rs:1: calls State::a",
        "small/src/c.rs:1: calls State::b",
    ];
    assert_eq!(callers, expected);
}

#[test]
fn a_type_in_too_many_files_is_named() {
    let mut texts = vec![("lib.rs".to_owned(), "pub struct State;".to_owned())];
    for file in ["a", "b", "c"] {
        let text = format!("use crate::State; impl State {{ fn {file}(&self) {{}} }}");
        texts.push((format!("{file}.rs"), text));
    }
    texts.push((
        "d.rs".into(),
        "use crate::State; fn change(state: &mut State) {}".into(),
    ));
    let source = |texts: &[(String, String)]| {
        let texts: Vec<(&str, &str)> = texts
            .iter()
            .map(|(path, text)| (&**path, &**text))
            .collect();
        Crate::from_texts("small", &texts)
    };
    assert_eq!(messages(&source(&texts), &[], &[]), [""; 0]);
    texts.push((
        "e.rs".into(),
        "use crate::State; impl Drop for State { fn drop(&mut self) {} }".into(),
    ));
    let found = messages(&source(&texts), &[], &[]);
    assert!(found[0].contains("State: its impls"), "{found:?}");
    assert!(found[0].contains("5 files, at most 4"), "{found:?}");
    assert!(found[0].ends_with("The files: a, b, c, d, e"), "{found:?}");
    assert_eq!(
        messages(&source(&texts), &[], &[ceiling(5, "State")]),
        [""; 0]
    );
}

#[test]
fn a_ceiling_comes_down_with_what_it_holds() {
    let source = circle_of_three();
    assert_eq!(messages(&source, &[ceiling(5, "")], &[]), [""; 0]);
    let found = messages(&source, &[ceiling(6, "")], &[]);
    assert!(found[0].ends_with("lower it to 5"), "{found:?}");
    let found = messages(
        &source,
        &[ceiling(3, ""), ceiling(4, "a")],
        &[ceiling(7, "State")],
    );
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found.iter().all(|text| text.ends_with("take this row out")),
        "{found:?}"
    );
}

#[test]
fn a_guard_is_silent_if_it_only_returns() {
    let count = |body: &str| {
        let text = format!("fn f(x: Option<u32>) {{ {body} }}");
        guards(&Crate::from_texts("small", &[("lib.rs", &text)]))
    };
    assert_eq!(count("let Some(x) = x else { return };"), 1);
    assert_eq!(count("let Some(x) = x else { return; };"), 1);
    assert_eq!(count("let Some(x) = x else { return None };"), 0);
    assert_eq!(count("let Some(x) = x else { warn!(); return };"), 0);
    assert_eq!(count("if x.is_none() { return }"), 0);
}
