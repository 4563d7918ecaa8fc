use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

use super::*;
use crate::messages::ZeroValue;

/// Returns a file with the message `M`, whose field 1 has the type `type_name`.
fn file(type_name: &str) -> FileDescriptorProto {
    let field = FieldDescriptorProto {
        number: Some(1),
        type_name: Some(type_name.to_owned()),
        ..Default::default()
    };
    let message = DescriptorProto {
        name: Some("M".to_owned()),
        field: vec![field],
        ..Default::default()
    };
    FileDescriptorProto {
        name: Some("p.proto".to_owned()),
        package: Some("p".to_owned()),
        message_type: vec![message],
        ..Default::default()
    }
}

/// Reads the struct `M` with this item and those below it. Field 1 is a message.
fn read(items: &str) -> Result<Vec<Message>, Error> {
    let file = vec![file(".p.M")];
    read_with(&Descriptors::new(&FileDescriptorSet { file }), items)
}

fn read_with(descriptors: &Descriptors, items: &str) -> Result<Vec<Message>, Error> {
    let structs = Structs {
        descriptors,
        externs: &ExternPaths {
            paths: Vec::new(),
            well_known_types: true,
        },
        wanted: &BTreeSet::from([".p.M".to_owned()]),
    };
    let generated = [Generated {
        name: ".p.M".to_owned(),
        nested: Vec::new(),
    }];
    let code = format!("#[derive(prost::Message)]{items}");
    structs.read(&syn::parse_file(&code).unwrap().items, &generated)
}

#[track_caller]
fn fails(items: &str, in_field: Option<&str>, expected: &str) {
    match read(items) {
        Err(Error::NoCodec {
            file,
            message,
            field,
            found,
        }) => {
            assert_eq!((file.as_str(), message.as_str()), ("p.proto", "p.M"));
            assert_eq!((field.as_deref(), found.as_str()), (in_field, expected));
        }
        other => panic!("{items}: {other:?}"),
    }
}

#[test]
fn what_prost_says_counts() {
    let presence = |attribute: &str| {
        let messages = read(&format!("struct M {{ #[prost({attribute})] f: () }}")).unwrap();
        match &messages[0].fields[..] {
            [Member::Field(field)] => (field.presence, field.tag.bytes()),
            other => panic!("{other:?}"),
        }
    };
    let tests = [
        ("int32, repeated, tag = \"2\"", Presence::Packed, 2 << 3 | 2),
        (
            "int32, repeated, packed = \"true\", tag = \"2\"",
            Presence::Packed,
            2 << 3 | 2,
        ),
        (
            "int32, repeated, packed = \"false\", tag = \"2\"",
            Presence::Repeated,
            2 << 3,
        ),
        (
            "enumeration = \"E\", repeated, tag = \"2\"",
            Presence::Packed,
            2 << 3 | 2,
        ),
        (
            "string, repeated, tag = \"2\"",
            Presence::Repeated,
            2 << 3 | 2,
        ),
        (
            "double, optional, tag = \"2\"",
            Presence::Optional,
            2 << 3 | 1,
        ),
        (
            "float, required, tag = \"2\", default = \"1\"",
            Presence::Required,
            2 << 3 | 5,
        ),
        (
            "bool, tag = \"2\"",
            Presence::Implicit(ZeroValue::False),
            2 << 3,
        ),
        (
            "message, required, boxed, tag = \"1\"",
            Presence::Required,
            1 << 3 | 2,
        ),
        ("message, tag = \"1\"", Presence::Optional, 1 << 3 | 2),
        (
            "group, repeated, tag = \"1\"",
            Presence::Repeated,
            1 << 3 | 3,
        ),
        (
            "hash_map = \"int32, message\", tag = \"1\"",
            Presence::Map,
            1 << 3 | 2,
        ),
    ];
    for (attribute, expected, key) in tests {
        assert_eq!(presence(attribute), (expected, vec![key]), "{attribute}");
    }
}

#[test]
fn groups_may_be_of_foreign_types() {
    let descriptors = Descriptors::new(&FileDescriptorSet {
        file: vec![file(".google.protobuf.Timestamp")],
    });
    let messages = read_with(
        &descriptors,
        "struct M { #[prost(group, tag = \"1\")] f: () }",
    );
    let [Member::Field(field)] = &messages.unwrap()[0].fields[..] else {
        panic!("one field is read")
    };
    assert_eq!(field.ty.path, "ExternGroup");
    assert_eq!(field.tag.bytes(), [1 << 3 | 3]);
}

#[test]
fn what_is_not_understood_is_an_error() {
    let in_field = [
        "int32 , tag = \"2\" , sparse",
        "int32 , tag = \"2\" , sparse = \"true\"",
        "int32 , tag = \"2\" , default = \"7\"",
        "int32 , repeated , optional , tag = \"2\"",
        "int32 , int64 , tag = \"2\"",
        "int32 , repeated , packed = \"maybe\" , tag = \"2\"",
        "int128 , tag = \"2\"",
        "bytes = \"rope\" , tag = \"2\"",
        "map = \"int32, group\" , tag = \"2\"",
        "map = \"int32, int32\" , repeated , tag = \"2\"",
        "tag = \"2\"",
        "int32",
        "int32 , tag = \"2, 3\"",
    ];
    for attribute in in_field {
        let attribute = format!("#[prost({attribute})]");
        fails(
            &format!("struct M {{ {attribute} f: () }}"),
            Some("f"),
            &attribute,
        );
    }
    for (items, expected) in [
        ("struct M { f: () }", "no `#[prost(…)]`"),
        (
            "struct M { #[cfg_attr (a , prost (int32))] f: () }",
            "#[cfg_attr(a , prost (int32))]",
        ),
        (
            "struct M { #[prost(message, tag = \"2\")] f: () }",
            "a message in field 2, which has none",
        ),
        (
            "struct M { #[prost(oneof = \"m::O\", tags = \"2\")] f: () } mod m { struct O; }",
            "no enum `m::O`",
        ),
        (
            "struct M { #[prost(oneof = \"O\", tags = \"2, 4\")] f: () } \
             enum O { #[prost(int32, tag = \"2\")] A(i32) }",
            "variants with the numbers [2] instead of [2, 4]",
        ),
        (
            "struct M { #[prost(oneof = \"O\", tags = \"2\")] f: () } \
             enum O { #[prost(int32, tag = \"2\")] A { a: i32 } }",
            "a variant `A` without one value",
        ),
        (
            "struct M { #[prost(oneof = \"O\", tags = \"2\")] f: () } \
             enum O { #[prost(int32 , optional , tag = \"2\")] A(i32) }",
            "#[prost(int32 , optional , tag = \"2\")]",
        ),
    ] {
        fails(items, Some("f"), expected);
    }
    fails("struct M(i32);", None, "a struct without named fields");
}

#[test]
fn the_order_tells_of_which_message_a_struct_is() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let generated = |name: &str, nested| Generated {
        name: name.to_owned(),
        nested,
    };
    let wanted: BTreeSet<String> = names(&[".p.A.B", ".p.C"]);
    let structs = Structs {
        descriptors: &Descriptors::new(&FileDescriptorSet { file: Vec::new() }),
        externs: &ExternPaths {
            paths: Vec::new(),
            well_known_types: true,
        },
        wanted: &wanted,
    };
    let expected = [
        generated(".p.A", vec![generated(".p.A.B", Vec::new())]),
        generated(".p.C", Vec::new()),
    ];
    let read = |code: &str| {
        let code = code.replace('@', "#[derive(Clone, prost::Message)]");
        let messages = structs.read(&syn::parse_file(&code).unwrap().items, &expected);
        messages.map(|messages| {
            let path = |message: Message| (message.name, message.path);
            messages.into_iter().map(path).collect::<Vec<_>>()
        })
    };
    // Modules of oneofs and of services have no messages, and other structs are none.
    let code =
        "@struct A {} mod a { @struct B {} } struct Other; @struct C {} mod c { @struct D {} }";
    let expected_paths = [(".p.A.B", "a::B"), (".p.C", "C")];
    let expected_paths = expected_paths.map(|(name, path)| (name.to_owned(), path.to_owned()));
    assert_eq!(read(code).unwrap(), expected_paths);
    for (code, found) in [
        ("@struct A {} mod a { @struct B {} }", "no struct"),
        ("@struct A {} mod a {} @struct C {}", "no struct"),
        (
            "@struct A {} mod a { @struct B {} } @struct C {} @struct D {}",
            "a struct `D` of no message",
        ),
    ] {
        let Err(Error::NoCodec { found: said, .. }) = read(code) else {
            panic!("{code}")
        };
        assert_eq!(said, found);
    }
}
