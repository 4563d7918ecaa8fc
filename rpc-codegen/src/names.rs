//! The Rust names of items.
//!
//! The rules are those by which prost names messages (heck's casing, raw identifiers for keywords),
//! so that a reader of the `.proto` can predict the names of services. prost does not offer its rules to
//! others. They stand here once more, and a test compares them with the names in prost's code.

use heck::{ToSnakeCase, ToUpperCamelCase};
use prost_types::{DescriptorProto, EnumDescriptorProto, OneofDescriptorProto};

/// The names that one service needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceNames {
    /// The trait that servers implement: `Greeter`.
    pub(crate) server_trait: String,
    /// The same trait without `Send`, in the server module: `LocalGreeter`.
    pub(crate) local_trait: String,
    /// The value that is added to a `Server`: `GreeterServer`.
    pub(crate) server: String,
    /// The client: `GreeterClient`.
    pub(crate) client: String,
    /// The module of the client: `greeter_client`.
    pub(crate) client_module: String,
    /// The module of the traits and the server: `greeter_server`.
    pub(crate) server_module: String,
    /// The module of the method constants: `greeter_methods`.
    pub(crate) methods: String,
}

impl ServiceNames {
    /// Names for the service called `proto_name` in its `.proto`.
    pub(crate) fn new(proto_name: &str) -> ServiceNames {
        let base = identifier(proto_name.to_upper_camel_case());
        let module = identifier(proto_name.to_snake_case());
        ServiceNames {
            // `Self` is the only keyword in upper camel case, and it cannot be a raw identifier.
            server_trait: if base == "Self" {
                "Self_".to_owned()
            } else {
                base.clone()
            },
            local_trait: format!("Local{}", base.trim_start_matches('_')),
            server: format!("{base}Server"),
            client: format!("{base}Client"),
            client_module: format!("{module}_client"),
            server_module: format!("{module}_server"),
            methods: format!("{module}_methods"),
        }
    }

    /// Returns the modules in that of the package. No other item can have one of these names.
    pub(crate) fn modules(&self) -> [&str; 3] {
        [&self.client_module, &self.server_module, &self.methods]
    }

    /// Returns the items that the module of the package re-exports unless others have their names.
    pub(crate) fn reexported(&self) -> [&str; 3] {
        [&self.server_trait, &self.client, &self.server]
    }
}

/// Prepends an underscore if `cased` doesn't begin with a letter: the casing removes that of
/// `_1st`.
fn identifier(mut cased: String) -> String {
    if !cased.starts_with(|first: char| first.is_ascii_alphabetic()) {
        cased.insert(0, '_');
    }
    cased
}

/// Returns the Rust name of a method that prost calls `rust_name` (snake case, `r#` before
/// keywords).
///
/// Four names get an underscore, in the client and in the traits. `new` is the client's
/// constructor, and `clone` must remain that of `Clone`. `into` and `try_into` in the prelude take
/// `self` by value, so method resolution would find those first.
pub(crate) fn method(rust_name: &str) -> String {
    match rust_name {
        "new" | "clone" | "into" | "try_into" => format!("{rust_name}_"),
        _ => rust_name.to_owned(),
    }
}

/// Returns the name of the method's constant: `SAY_HELLO` for `say_hello`, `TYPE` for `r#type`.
pub(crate) fn method_constant(rust_name: &str) -> String {
    rust_name.trim_start_matches("r#").to_ascii_uppercase()
}

/// Returns the Rust name of the method `proto_name`, for checks that run before prost.
pub(crate) fn method_from_proto(proto_name: &str) -> String {
    method(&snake(proto_name))
}

/// Words that prost makes raw identifiers.
const RAW: [&str; 47] = [
    "as", "break", "const", "continue", "else", "enum", "false", "fn", "for", "if", "impl", "in",
    "let", "loop", "match", "mod", "move", "mut", "pub", "ref", "return", "static", "struct",
    "trait", "true", "type", "unsafe", "use", "where", "while", "dyn", "abstract", "become", "box",
    "do", "final", "macro", "override", "priv", "typeof", "unsized", "virtual", "yield", "async",
    "await", "try", "gen",
];

/// Returns the Rust field, module or variable `proto_name`, as prost does. The name is empty if
/// `proto_name` consists of underscores, which the casing removes.
pub(crate) fn snake(proto_name: &str) -> String {
    not_a_keyword(proto_name.to_snake_case())
}

/// Returns the Rust type or variant `proto_name`, as prost does. The name may be empty, too.
pub(crate) fn upper_camel(proto_name: &str) -> String {
    not_a_keyword(proto_name.to_upper_camel_case())
}

fn not_a_keyword(cased: String) -> String {
    match cased.as_str() {
        "_" | "super" | "self" | "Self" | "extern" | "crate" => format!("{cased}_"),
        word if RAW.contains(&word) => format!("r#{cased}"),
        word if word.starts_with(char::is_numeric) => format!("_{cased}"),
        _ => cased,
    }
}

/// Returns the Rust variant of the enum value `proto_name`, as prost does. `stripped` is the Rust name
/// of the enum if prost removes that from the names of its values.
pub(crate) fn variant(proto_name: &str, stripped: Option<&str>) -> String {
    let name = upper_camel(proto_name);
    let rest = stripped.and_then(|prefix| name.strip_prefix(prefix));
    match rest {
        Some(rest) if rest.starts_with(char::is_uppercase) => not_a_keyword(rest.to_owned()),
        _ => name,
    }
}

/// Returns the Rust type of a oneof, to which prost adds a suffix if a nested type has its name.
pub(crate) fn oneof_type(message: &DescriptorProto, oneof: &OneofDescriptorProto) -> String {
    let name = upper_camel(oneof.name());
    // Here prost counts the entries of maps as types, although it generates none for them.
    let messages = message.nested_type.iter().map(DescriptorProto::name);
    let mut types = messages.chain(message.enum_type.iter().map(EnumDescriptorProto::name));
    if types.any(|nested| upper_camel(nested) == name) {
        format!("{name}OneOf")
    } else {
        name
    }
}

#[cfg(test)]
mod compared;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_names() {
        let names = ServiceNames::new("Greeter");
        assert_eq!(
            names.reexported(),
            ["Greeter", "GreeterClient", "GreeterServer"]
        );
        assert_eq!(
            names.modules(),
            ["greeter_client", "greeter_server", "greeter_methods"]
        );
        assert_eq!(names.local_trait, "LocalGreeter");
    }

    #[test]
    fn names_that_rust_keeps_for_itself() {
        assert_eq!(ServiceNames::new("Self").server_trait, "Self_");
        assert_eq!(ServiceNames::new("Self").client, "SelfClient");
        assert_eq!(ServiceNames::new("type").server_trait, "Type");
        assert_eq!(
            ServiceNames::new("_1st").reexported(),
            ["_1st", "_1stClient", "_1stServer"]
        );
        assert_eq!(
            ServiceNames::new("_1st").modules(),
            ["_1st_client", "_1st_server", "_1st_methods"]
        );
        assert_eq!(ServiceNames::new("_1st").local_trait, "Local1st");
        assert_eq!(method("r#type"), "r#type");
        assert_eq!(method("new"), "new_");
        assert_eq!(method_constant("r#type"), "TYPE");
        assert_eq!(method_constant("say_hello"), "SAY_HELLO");
    }
}
