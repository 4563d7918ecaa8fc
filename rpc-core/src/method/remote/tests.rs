#![expect(clippy::print_stdout, reason = "a test prints what it has leaked")]

use super::*;

const UNARY: MethodKind = MethodKind::Unary;

/// Counts the specs of the process whose paths begin so, and the bytes that they take. Other tests
/// intern other paths.
fn leaked(prefix: &str) -> (usize, usize) {
    let interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    let lens: Vec<_> = interned
        .values()
        .filter(|spec| spec.path.starts_with(prefix))
        .map(|spec| spec.path.len() + size_of::<MethodSpec>())
        .collect();
    (lens.len(), lens.iter().sum())
}

fn named(methods: &[(&str, u16, MethodKind)]) -> Arc<NamedMethods> {
    let methods = methods.iter();
    Arc::new(
        methods
            .map(|&(path, number, kind)| (path.to_owned(), (number, kind)))
            .collect(),
    )
}

#[test]
fn methods_are_found_by_path_and_listed_in_order() {
    let latest = LatestMethods::default();
    assert!(latest.get().is_none());
    let methods = [
        ("found.B/C", 0, UNARY),
        ("found.A/D", 1, MethodKind::Streaming),
    ];
    latest.set(named(&methods));
    let listed = latest.get().unwrap();
    let paths: Vec<_> = listed.iter().map(|spec| (spec.path, spec.kind)).collect();
    assert_eq!(
        paths,
        [("found.A/D", MethodKind::Streaming), ("found.B/C", UNARY)]
    );
    assert_eq!(listed.get("found.B/C").unwrap().kind, UNARY);
    for path in ["", "found.B/", "/found.B/C", "found.B/Cc"] {
        assert_eq!(listed.get(path), None, "{path}");
    }
    assert_eq!(format!("{listed:?}"), r#"["found.A/D", "found.B/C"]"#);
}

#[test]
fn channels_and_connections_share_the_specs_of_a_path_and_kind() {
    let [one, other] = [LatestMethods::default(), LatestMethods::default()];
    let methods = named(&[("shared.A/B", 3, UNARY)]);
    one.set(Arc::clone(&methods));
    other.set(methods);
    let spec = |latest: &LatestMethods| latest.get().unwrap().get("shared.A/B").unwrap();
    let first = spec(&one);
    assert!(std::ptr::eq(first, spec(&other)));
    // The next server has another number for it, and the one after that another kind.
    one.set(named(&[("shared.A/B", 4, UNARY)]));
    assert!(std::ptr::eq(first, spec(&one)));
    one.set(named(&[("shared.A/B", 3, MethodKind::Streaming)]));
    assert!(!std::ptr::eq(first, spec(&one)));
    assert_eq!(leaked("shared.").0, 2);
}

#[test]
fn a_server_that_renames_its_methods_leaks_no_more_than_the_channels_limit() {
    let latest = LatestMethods::default();
    let mut listed = 0;
    let mut bytes = 0;
    for name in 0..100_000 {
        let path = format!("renamed.Service/Method{name}");
        latest.set(named(&[
            ("renamed.Service/Always", 0, UNARY),
            (&path, 1, UNARY),
        ]));
        let methods = latest.get().unwrap();
        assert!(methods.get("renamed.Service/Always").is_some());
        assert_eq!(
            methods.get(&path).is_some(),
            name < MOST_OF_CHANNEL - 1,
            "{path}"
        );
        listed += methods.iter().len();
        if name == 10_000 {
            bytes = leaked("renamed.").1;
        }
    }
    let (specs, after) = leaked("renamed.");
    assert_eq!(specs, MOST_OF_CHANNEL);
    assert_eq!(after, bytes, "the last 90,000 names leak nothing");
    assert_eq!(listed, 100_000 + MOST_OF_CHANNEL - 1);
    println!("100,000 names of methods have leaked {specs} specs, {after} bytes");
    // Another channel to the same server takes none of its own.
    let other = LatestMethods::default();
    other.set(named(&[("renamed.Service/Method0", 0, UNARY)]));
    assert_eq!(other.get().unwrap().iter().len(), 1);
    assert_eq!(leaked("renamed.").0, MOST_OF_CHANNEL);
}

#[test]
fn a_long_path_and_one_beyond_the_limit_of_a_list_are_left_out() {
    let longest = format!("long.{}", "x".repeat(LONGEST_PATH - 5));
    let longer = format!("{longest}x");
    let latest = LatestMethods::default();
    latest.set(named(&[(&longest, 0, UNARY), (&longer, 1, UNARY)]));
    let listed = latest.get().unwrap();
    assert!(listed.get(&longest).is_some());
    assert!(listed.get(&longer).is_none());
    assert_eq!(leaked("long."), (1, LONGEST_PATH + size_of::<MethodSpec>()));

    let paths: Vec<_> = (0..2 * MOST_OF_CHANNEL)
        .map(|name| format!("many.A/{name:05}"))
        .collect();
    let many: Vec<_> = paths.iter().map(|path| (&**path, 0, UNARY)).collect();
    let latest = LatestMethods::default();
    latest.set(named(&many));
    let listed = latest.get().unwrap();
    let expected = paths[..MOST_OF_CHANNEL].iter();
    assert!(listed.iter().map(|spec| spec.path).eq(expected));
}
