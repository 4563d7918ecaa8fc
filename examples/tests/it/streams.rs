//! The examples with streams, each run as a user does: `route_guide`, `chat` and `watch`.

use crate::program::Program;

const ROUTE_GUIDE: [&str; 2] = [
    env!("CARGO_BIN_EXE_route_guide_server"),
    env!("CARGO_BIN_EXE_route_guide_client"),
];
const CHAT: [&str; 2] = [
    env!("CARGO_BIN_EXE_chat_server"),
    env!("CARGO_BIN_EXE_chat_client"),
];
const WATCH: [&str; 2] = [
    env!("CARGO_BIN_EXE_watch_server"),
    env!("CARGO_BIN_EXE_watch_client"),
];

#[test]
fn the_route_guide_answers_each_kind_of_call() {
    let (_server, address) = Program::server(ROUTE_GUIDE[0], &["127.0.0.1:0"]);
    for earlier in [0, 3] {
        let mut client = Program::start(ROUTE_GUIDE[1], &[&address]);
        let (status, lines) = client.finish();
        assert!(status.success(), "{lines:?}");
        let mut expected = vec![
            "feature: Eiger",
            "in the Oberland: Jungfraujoch",
            "in the Oberland: Eiger",
            "in the Oberland: Lauterbrunnen church",
            "in the Oberland: Harder Kulm",
            "in the Oberland: Thun castle",
            "route: 5 points, 5 features, 41723 m",
        ];
        // Each of the three notes is sent after those before it, those of an earlier client too.
        let notes = ["first", "second", "third"]
            .map(|note| format!("earlier at the same point: {note} note"));
        for sent in 0..3 {
            expected.extend(
                notes
                    .iter()
                    .cycle()
                    .take(earlier + sent)
                    .map(String::as_str),
            );
        }
        assert_eq!(lines, expected);
    }
}

#[test]
fn everyone_in_the_room_sees_who_enters_speaks_and_leaves() {
    let (_server, address) = Program::server(CHAT[0], &["127.0.0.1:0"]);
    let enter = |name| {
        let client = Program::start(CHAT[1], &[name, &address]);
        (name, client)
    };
    let (_, mut ada) = enter("Ada");
    assert_eq!(ada.line(), "Ada has entered");
    let (_, mut grace) = enter("Grace");
    // Those who were there already come first.
    assert_eq!(grace.line(), "Ada has entered");
    for client in [&ada, &grace] {
        assert_eq!(client.line(), "Grace has entered");
    }
    let (_, barbara) = enter("Barbara");
    for name in ["Ada", "Grace"] {
        assert_eq!(barbara.line(), format!("{name} has entered"));
    }
    for client in [&ada, &grace, &barbara] {
        assert_eq!(client.line(), "Barbara has entered");
    }
    for (text, line) in [("hello", "Ada: hello"), ("still here?", "Ada: still here?")] {
        ada.say(text);
        for client in [&ada, &grace, &barbara] {
            assert_eq!(client.line(), line);
        }
    }
    let (status, lines) = Program::start(CHAT[1], &["Ada", &address]).finish();
    assert_eq!((status.code(), &lines[..]), (Some(1), &[][..]));

    // Grace leaves by ending her input, and Barbara's process dies.
    let (status, lines) = grace.finish();
    assert!(status.success() && lines.is_empty(), "{status}: {lines:?}");
    for client in [&ada, &barbara] {
        assert_eq!(client.line(), "Grace has left");
    }
    barbara.kill();
    assert_eq!(ada.line(), "Barbara has left");
    assert!(ada.finish().0.success());
}

#[test]
fn a_watcher_resumes_after_the_server_was_killed_and_misses_and_repeats_nothing() {
    let file = std::env::temp_dir().join(format!("verbline-watch-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let (server, address) = Program::server(WATCH[0], &[path, "127.0.0.1:0"]);
    let put = |key: &str, value: &str| {
        let mut client = Program::start(WATCH[1], &["--address", &address, "put", key, value]);
        let (status, lines) = client.finish();
        assert!(status.success(), "{lines:?}");
        lines
    };
    assert_eq!(put("color/sky", "blue"), ["revision 1"]);
    assert_eq!(put("size/house", "small"), ["revision 2"]);
    let watch = |prefix| Program::start(WATCH[1], &["--address", &address, "watch", prefix]);
    let (colors, all) = (watch("color/"), watch(""));
    for line in ["1: color/sky = blue", "2: size/house = small"] {
        assert_eq!(all.line(), line);
    }
    assert_eq!(colors.line(), "1: color/sky = blue");
    assert_eq!(put("color/grass", "green"), ["revision 3"]);
    for client in [&colors, &all] {
        assert_eq!(client.line(), "3: color/grass = green");
    }
    server.kill();
    let (server, _) = Program::server(WATCH[0], &[path, &address]);
    assert_eq!(put("size/house", "large"), ["revision 4"]);
    assert_eq!(put("color/sky", "gray"), ["revision 5"]);
    assert_eq!(all.line(), "4: size/house = large");
    for client in [&colors, &all] {
        assert_eq!(client.line(), "5: color/sky = gray");
    }
    drop(server);
    std::fs::remove_file(file).unwrap();
}
