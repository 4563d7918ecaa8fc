//! Each error names the file and, if there is one, the line, and says what to change.

#[path = "errors/names.rs"]
mod names;

use std::fs;
use std::path::{Path, PathBuf};

use rpc_codegen::{Builder, Error, configure};
use tempfile::TempDir;

/// A directory of `.proto` files. The tests compile `a.proto`.
struct Protos {
    dir: TempDir,
}

impl Protos {
    fn new(files: &[(&str, &str)]) -> Protos {
        let dir = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Protos { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings(&self) -> Builder {
        configure().out_dir(self.path("out"))
    }

    fn compile(&self, settings: Builder) -> Result<(), Error> {
        settings.compile_protos(&[self.path("a.proto")], &[self.dir.path()])
    }

    fn error(&self) -> Error {
        let error = self.compile(self.settings()).unwrap_err();
        let written = fs::read_dir(self.path("out")).map_or(0, Iterator::count);
        assert_eq!(written, 0, "files were written despite the error");
        error
    }

    /// Returns the message, with paths relative to the directory.
    fn message(&self, error: &Error) -> String {
        error
            .to_string()
            .replace(&format!("{}/", self.dir.path().display()), "")
    }

    #[track_caller]
    fn fails_with(&self, expected: &str) -> Error {
        let error = self.error();
        assert_eq!(self.message(&error), expected);
        error
    }
}

/// What the error of a file that the parser rejects says at its end.
const ADVICE: &str =
    "\n  = help: if protoc takes this file, have it read by protoc: set `.protoc(\"protoc\")`";

#[test]
fn a_mistake_is_shown_with_its_line() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\npackage a;\nmessage A {\n  string name 1;\n}\n",
    )]);
    let error = protos.fails_with(&format!(
        "a.proto:4:15: expected '=', but found '1'\n  \
           |\n\
         4 |   string name 1;\n  \
           |               ^ found here{ADVICE}"
    ));
    let Error::Proto { problems } = error else {
        panic!("{error}")
    };
    assert_eq!(problems[0].file, protos.path("a.proto"));
    assert_eq!(
        (problems[0].places[0].line, problems[0].places[0].column),
        (4, 15)
    );
}

#[test]
fn a_build_script_prints_the_message() {
    let protos = Protos::new(&[("a.proto", "message A {")]);
    let error = protos.error();
    assert_eq!(format!("{error:?}"), error.to_string());
    // The cause follows, because Rust does not print the source of an error that `main` returns.
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";")]);
    let error = protos
        .compile(configure().out_dir(protos.path("a.proto")))
        .unwrap_err();
    assert!(
        format!("{error:?}").starts_with(&format!("{error}: ")),
        "the cause is missing: {error:?}"
    );
}

#[test]
fn a_file_that_ends_too_early() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";\nmessage A {\n\n")]);
    let error = protos.error();
    let message = protos.message(&error);
    assert!(message.starts_with("a.proto:2:12: expected "), "{message}");
    assert!(
        message.ends_with(&format!(
            "\n2 | message A {{\n  |            ^ the file ends here{ADVICE}"
        )),
        "{message}"
    );
}

/// The line and the column of the first location of the first problem in `error`.
#[track_caller]
fn location(error: &Error) -> (usize, usize) {
    let Error::Proto { problems } = error else {
        panic!("{error}")
    };
    (problems[0].places[0].line, problems[0].places[0].column)
}

#[test]
fn an_undefined_type() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\npackage a;\nmessage B {}\nservice S {\n  rpc Go(B) returns (C);\n}\n",
    )]);
    assert_eq!(location(&protos.error()), (5, 22));
}

#[test]
fn of_two_definitions_the_second_is_shown_first() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nmessage A {}\n\nmessage A {}\n",
    )]);
    protos.fails_with(&format!(
        "a.proto:4:9: name 'A' is defined twice\n  \
           |\n\
         4 | message A {{}}\n  \
           |         ^ defined again here\n  \
           |\n\
         2 | message A {{}}\n  \
           |         ^ first defined here{ADVICE}"
    ));
}

#[test]
fn a_mistake_in_an_imported_file_names_that_file() {
    let protos = Protos::new(&[
        ("a.proto", "syntax = \"proto3\";\nimport \"b.proto\";\n"),
        (
            "b.proto",
            "syntax = \"proto3\";\nmessage B { strin s = 1; }\n",
        ),
    ]);
    let error = protos.error();
    assert_eq!(location(&error), (2, 13));
    assert!(
        matches!(&error, Error::Proto { problems } if problems[0].file == protos.path("b.proto")),
        "{error}"
    );
}

#[test]
fn a_missing_import_lists_the_include_directories() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nimport \"gone/b.proto\";\n",
    )]);
    let error = protos.error();
    assert_eq!(location(&error), (2, 1));
    let Error::Proto { problems } = &error else {
        panic!("{error}")
    };
    let (help, includes) = (problems[0].help.as_ref(), protos.dir.path().display());
    assert!(
        help.is_some_and(|help| help.contains(&includes.to_string())),
        "{error}"
    );
}

#[test]
fn a_missing_file() {
    let protos = Protos::new(&[]);
    let error = protos.error();
    assert!(
        matches!(&error, Error::FileNotFound { path } if *path == protos.path("a.proto")),
        "{error}"
    );

    let error = rpc_codegen::compile_protos("nowhere.proto").unwrap_err();
    assert!(matches!(error, Error::FileNotFound { .. }), "{error}");

    let error = rpc_codegen::compile_protos("src").unwrap_err();
    assert_eq!(
        error.to_string(),
        "src: this is a directory: name the `.proto` files in it"
    );
}

#[test]
fn a_file_outside_the_include_directories() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";")]);
    let elsewhere = TempDir::new().unwrap();
    let error = protos
        .settings()
        .compile_protos(&[protos.path("a.proto")], &[elsewhere.path()])
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotIncluded { includes, .. } if includes == &[elsewhere.path()]),
        "{error}"
    );
    // A relative path starts in the current directory or in an include directory.
    let error = protos
        .settings()
        .compile_protos(&["tests/protos/greeter.proto"], &["src"])
        .unwrap_err();
    assert!(matches!(&error, Error::NotIncluded { .. }), "{error}");
}

#[test]
fn editions_are_rejected() {
    let protos = Protos::new(&[(
        "a.proto",
        "// Newer.\nedition = \"2023\";\npackage a;\nmessage A {}\n",
    )]);
    let error = protos.error();
    assert!(
        matches!(&error, Error::Edition { line: Some(2), edition: Some(edition), .. } if edition == "2023"),
        "{error}"
    );
    let message = protos.message(&error);
    assert!(message.starts_with("a.proto:2: "), "{message}");
}

#[test]
fn editions_in_descriptors_are_rejected() {
    let file = prost_types::FileDescriptorProto {
        name: Some("a.proto".to_owned()),
        syntax: Some("editions".to_owned()),
        ..Default::default()
    };
    let dir = TempDir::new().unwrap();
    let set = prost_types::FileDescriptorSet { file: vec![file] };
    let error = configure()
        .out_dir(dir.path())
        .compile_fds(set)
        .unwrap_err();
    assert!(
        matches!(&error, Error::Edition { file, line: None, .. } if file == Path::new("a.proto")),
        "{error}"
    );
}

#[test]
fn several_mistakes_are_all_named() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nmessage M {}\nservice S {\n  rpc Go(M) returns (M);\n  \
         rpc go(M) returns (M);\n  rpc _(M) returns (M);\n}\nservice s {}\n",
    )]);
    let error = protos.fails_with(
        "a.proto:5: method `go` of service `S` and method `Go` of service `S` would both have the Rust name \
         `go`: rename one of them\n\n\
         a.proto:6: method `_` of service `S` has no valid Rust name: rename it\n\n\
         a.proto:8: service `s` and service `S` would both have the Rust name `s_client`: rename one of them",
    );
    assert!(
        matches!(&error, Error::Several { errors } if errors.len() == 3),
        "{error}"
    );
}

#[test]
fn all_settings_that_match_nothing_are_named() {
    let proto =
        "syntax = \"proto3\";\npackage a;\nmessage A {}\nservice S { rpc Go(A) returns (A); }\n";
    let protos = Protos::new(&[("a.proto", proto)]);
    let messages = |settings: Builder| match protos.compile(settings).unwrap_err() {
        Error::Several { errors } => errors.iter().map(Error::to_string).collect(),
        error => vec![error.to_string()],
    };
    let attributes = protos
        .settings()
        .trait_attribute(".a.S", "#[x]")
        .trait_attribute(".a.T", "#[x]")
        .client_attribute(".", "#[x]")
        .client_attribute("T", "#[x]")
        .server_attribute(".a.S.Go", "#[x]");
    assert_eq!(
        messages(attributes),
        [
            "trait_attribute: no service has the path `.a.T`",
            "client_attribute: no service has the path `T`",
            "server_attribute: no service has the path `.a.S.Go`",
        ]
    );
    let bytes = protos.settings().bytes(".b").bytes(".c");
    assert_eq!(messages(bytes).len(), 2);
    let limits = protos
        .settings()
        .max_request_len(".a.T", 1)
        .max_response_len(".b", 1);
    assert_eq!(messages(limits).len(), 2);
}

#[test]
fn an_argument_for_protoc_needs_protoc() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";")]);
    let error = protos
        .compile(protos.settings().protoc_arg("--fast"))
        .unwrap_err();
    assert!(
        matches!(&error, Error::Setting { message } if message.starts_with("protoc_arg: ")),
        "{error}"
    );
}

#[test]
fn a_missing_protoc_is_explained() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";")]);
    let error = protos
        .compile(protos.settings().protoc("no-such-protoc"))
        .unwrap_err();
    assert!(matches!(&error, Error::ProtocNotFound { .. }));
    assert!(
        error.to_string().contains("apt install protobuf-compiler"),
        "{error}"
    );
}

#[test]
fn a_contradictory_setting() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";\nmessage A {}\n")]);
    let settings = protos
        .settings()
        .extern_path(".b", "::b")
        .extern_path(".b", "::c");
    let error = protos.compile(settings).unwrap_err();
    assert!(
        matches!(&error, Error::Setting { message } if message.contains(".b")),
        "{error}"
    );
}

#[test]
fn a_path_of_bytes_that_matches_no_field() {
    let proto = "syntax = \"proto3\";\npackage a;\nmessage A {\n  bytes data = 1;\n  \
                 map<string, bytes> parts = 2;\n  message B { string name = 1; }\n}\n";
    let protos = Protos::new(&[("a.proto", proto)]);
    let out = TempDir::new().unwrap();
    let compile = |path: &str| {
        let settings = protos.settings().out_dir(out.path());
        protos.compile(settings.bytes(".").bytes(path))
    };
    for path in [
        ".",
        ".a",
        ".a.A",
        ".a.A.data",
        "data",
        "A.data",
        ".a.A.value",
        ".a.A.B",
        "name",
    ] {
        compile(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    for path in [".nonexistent", ".a.A.dat", "ata", ".b", ".a.C"] {
        let error = compile(path).unwrap_err();
        assert!(
            matches!(&error, Error::Setting { message } if message.contains(&format!("`{path}`"))),
            "{error}"
        );
    }
}

#[test]
fn an_incomplete_descriptor_set() {
    let file = prost_types::FileDescriptorProto {
        name: Some("a.proto".to_owned()),
        dependency: vec!["b.proto".to_owned()],
        ..Default::default()
    };
    let dir = TempDir::new().unwrap();
    let set = prost_types::FileDescriptorSet { file: vec![file] };
    let error = configure()
        .out_dir(dir.path())
        .compile_fds(set)
        .unwrap_err();
    assert!(
        matches!(&error, Error::IncompleteDescriptorSet { file, import } if file == "a.proto" && import == "b.proto"),
        "{error}"
    );
}

#[test]
fn without_a_build_script_there_is_no_out_dir() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";\nmessage A {}\n")]);
    let error = protos.compile(configure()).unwrap_err();
    assert!(matches!(error, Error::NoOutDir), "{error}");
}

/// prost takes each type of `google.protobuf` for one of prost-types.
#[test]
fn types_that_prost_types_does_not_have_are_named() {
    let protos = Protos::new(&[
        (
            "a.proto",
            "syntax = \"proto3\";\npackage demo;\nimport \"google/protobuf/struct.proto\";\n\
             import \"b.proto\";\nmessage A {\n  google.protobuf.Struct here = 1;\n  \
             oneof kind {\n    google.protobuf.util.Own own = 2;\n  }\n  \
             map<int32, google.protobuf.util.Own> owns = 3;\n}\n\
             service S {\n  rpc M(A) returns (google.protobuf.util.Own);\n}\n",
        ),
        (
            "b.proto",
            "syntax = \"proto3\";\npackage google.protobuf.util;\nmessage Own {}\n",
        ),
    ]);
    let uses = "uses the type `google.protobuf.util.Own`, which the crate prost-types does not have: set \
               `.compile_well_known_types(true)`, which generates all types of `google.protobuf`";
    protos.fails_with(&format!(
        "a.proto:8: field `own` of message `demo.A` {uses}\n\n\
         a.proto:10: field `owns` of message `demo.A` {uses}\n\n\
         a.proto:13: method `M` of service `S` {uses}"
    ));
    let settings = protos.settings().compile_well_known_types(true);
    protos.compile(settings).unwrap();
    let own = protos
        .settings()
        .extern_path(".google.protobuf.util", "::own");
    protos.compile(own).unwrap();
}
