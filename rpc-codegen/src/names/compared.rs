//! Compares the names with those in the code that prost generates.

use std::sync::mpsc::{Sender, channel};

use proptest::prelude::*;
use prost_build::{Config, Module, Service, ServiceGenerator};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, MethodDescriptorProto, OneofDescriptorProto, ServiceDescriptorProto,
};

use super::*;

/// Names of every form that the conversion treats in some way.
const FORMS: &str = "a A aB Ab AB ABc aBC a_b A_B a__b _a a_ _1 __1a a1 a1b a_1 a1_b A1B a_1b fooBar FooBar FOO_BAR \
     foo_Bar HTTPServer gRPC i18n XMLHttp2Request x509 v1beta1 V1_BETA1 _1st self_ Self SELF TYPE Type _type type_ \
     raw union auto default safe macro_rules yeet";

#[test]
fn as_in_the_code_of_prost() {
    let keywords = RAW.iter().copied();
    let others = ["super", "self", "extern", "crate", "static"].into_iter();
    for name in keywords.chain(others).chain(FORMS.split_whitespace()) {
        for name in [name.to_owned(), name.to_uppercase(), format!("get_{name}")] {
            compare(&name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_name(name in "[a-zA-Z_][a-zA-Z0-9_]{0,11}") {
        prop_assume!(name.contains(|c| c != '_'));
        compare(&name);
    }
}

/// Generates code in which everything has the same name, and compares all names in it.
#[track_caller]
fn compare(name: &str) {
    for strips in [true, false] {
        let (sender, methods) = channel();
        let mut config = Config::new();
        config.service_generator(Box::new(Methods(sender)));
        if !strips {
            config.retain_enum_prefix();
        }
        let module = Module::from_protobuf_package_name(&format!("p.{name}"));
        assert_eq!(module.parts().nth(1), Some(snake(name).as_str()));
        let mut code = config.generate(vec![(module.clone(), file(name))]).unwrap();
        let file = syn::parse_file(&code.remove(&module).unwrap()).unwrap();
        let mut found = Vec::new();
        collect(&file.items, &mut found);
        assert_eq!(found, expected(name, strips), "{name}");
        let service = (ServiceNames::new(name).server_trait, snake(name));
        assert_eq!(methods.try_iter().collect::<Vec<_>>(), [service], "{name}");
    }
}

/// Sends the name of each service with that of its method.
struct Methods(Sender<(String, String)>);

impl ServiceGenerator for Methods {
    fn generate(&mut self, service: Service, _: &mut String) {
        let method = service.methods[0].name.clone();
        self.0.send((service.name, method)).unwrap();
    }
}

/// The names of values of an enum called `name`, each for an enum of its own.
fn values(name: &str) -> Vec<String> {
    let upper = name.to_uppercase();
    ["", "_ONE", "_1", "S", "_self", "_type"]
        .map(|rest| format!("{upper}{rest}"))
        .into_iter()
        .chain([
            name.to_owned(),
            format!("{name}Value"),
            format!("other_{name}"),
        ])
        .collect()
}

/// Returns a message with a field, a oneof with a variant, nested enums, and a nested message with a
/// module.
fn file(name: &str) -> FileDescriptorProto {
    let some_name = || Some(name.to_owned());
    let field = |number, oneof_index| FieldDescriptorProto {
        name: some_name(),
        number: Some(number),
        r#type: Some(5),
        label: Some(1),
        oneof_index,
        ..FieldDescriptorProto::default()
    };
    let r#enum = |value: String| EnumDescriptorProto {
        name: some_name(),
        value: vec![EnumValueDescriptorProto {
            name: Some(value),
            number: Some(0),
            ..EnumValueDescriptorProto::default()
        }],
        ..EnumDescriptorProto::default()
    };
    let nested = DescriptorProto {
        name: some_name(),
        enum_type: values(name).into_iter().map(r#enum).collect(),
        ..DescriptorProto::default()
    };
    let oneof = OneofDescriptorProto {
        name: some_name(),
        ..OneofDescriptorProto::default()
    };
    let message = DescriptorProto {
        name: Some("M".to_owned()),
        field: vec![field(1, None), field(2, Some(0))],
        nested_type: vec![nested],
        oneof_decl: vec![oneof.clone()],
        ..DescriptorProto::default()
    };
    let without_nested = DescriptorProto {
        name: Some("N".to_owned()),
        field: vec![field(2, Some(0))],
        oneof_decl: vec![oneof],
        ..DescriptorProto::default()
    };
    let service = ServiceDescriptorProto {
        name: some_name(),
        method: vec![MethodDescriptorProto {
            name: some_name(),
            input_type: Some(".p.M".to_owned()),
            output_type: Some(".p.M".to_owned()),
            ..MethodDescriptorProto::default()
        }],
        ..ServiceDescriptorProto::default()
    };
    FileDescriptorProto {
        name: Some("p.proto".to_owned()),
        package: Some("p".to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![message, without_nested],
        service: vec![service],
        ..FileDescriptorProto::default()
    }
}

/// The names in the code for [`file`].
fn expected(name: &str, strips: bool) -> Vec<String> {
    let (field, ty) = (snake(name), upper_camel(name));
    let stripped = strips.then_some(ty.as_str());
    let file = file(name);
    let [m, n] = file.message_type.as_slice() else {
        panic!("{file:?}");
    };
    let mut names = vec!["M".to_owned(), field.clone(), field.clone(), "m".to_owned()];
    names.extend([ty.clone(), field.clone()]);
    for value in values(name) {
        names.extend([ty.clone(), variant(&value, stripped)]);
    }
    names.extend([oneof_type(m, &m.oneof_decl[0]), ty.clone()]);
    names.extend(["N".to_owned(), field, "n".to_owned()]);
    names.extend([oneof_type(n, &n.oneof_decl[0]), ty]);
    names
}

/// Adds the names of types, fields, variants and modules.
fn collect(items: &[syn::Item], found: &mut Vec<String>) {
    for item in items {
        match item {
            syn::Item::Struct(item) => {
                found.push(item.ident.to_string());
                let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
                found.extend(fields.map(ToString::to_string));
            }
            syn::Item::Enum(item) => {
                found.push(item.ident.to_string());
                found.extend(item.variants.iter().map(|it| it.ident.to_string()));
            }
            syn::Item::Mod(item) => {
                found.push(item.ident.to_string());
                collect(&item.content.as_ref().unwrap().1, found);
            }
            _ => {}
        }
    }
}
