//! Makes the relative names of a file absolute, as protoc resolves them, and accepts what protoc
//! accepts and prost-reflect does not.
//!
//! protoc looks a relative name up among what the file itself defines and imports. prost-reflect
//! looks it up among all files that it has read before, imported or not, so success would depend on
//! other files. It takes an absolute name as it is.
//!
//! A name that is not found stays relative: prost-reflect then says what is wrong with it, and where.

use std::collections::HashMap;

use prost_types::field_descriptor_proto::Type;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    UninterpretedOption,
};

use crate::paths::qualified;

/// Options that protoc knows and prost-reflect's `descriptor.proto` may not: they tell protoc what to
/// check or to leave out, and mean nothing to generated code.
const OPTIONS_FOR_PROTOC: [&str; 8] = [
    "debug_redact",
    "declaration",
    "edition_defaults",
    "feature_support",
    "retention",
    "targets",
    "unverified_lazy",
    "verification",
];

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Symbol {
    Package,
    Message,
    Enum,
    Service,
    Extension,
    /// A field, a oneof, a method or the value of an enum.
    Member,
}

impl Symbol {
    /// Returns true if names may be below it.
    fn is_parent(self) -> bool {
        matches!(
            self,
            Self::Package | Self::Message | Self::Enum | Self::Service
        )
    }
}

/// What one file defines, by full names without a leading dot.
#[derive(Debug, Default)]
pub(crate) struct Symbols(HashMap<String, Symbol>);

impl Symbols {
    pub(crate) fn of(file: &FileDescriptorProto) -> Self {
        let mut this = Self::default();
        let package = file.package();
        for (end, _) in package.match_indices('.') {
            this.add(package[..end].to_owned(), Symbol::Package);
        }
        this.add(package.to_owned(), Symbol::Package);
        for message in &file.message_type {
            this.message(message, package);
        }
        this.enums(&file.enum_type, package);
        this.extensions(&file.extension, package);
        for service in &file.service {
            let name = qualified(package, service.name());
            for method in &service.method {
                this.add(qualified(&name, method.name()), Symbol::Member);
            }
            this.add(name, Symbol::Service);
        }
        this
    }

    fn add(&mut self, name: String, symbol: Symbol) {
        self.0.insert(name, symbol);
    }

    fn message(&mut self, message: &DescriptorProto, parent: &str) {
        let name = qualified(parent, message.name());
        let fields = message.field.iter().map(FieldDescriptorProto::name);
        for member in fields.chain(message.oneof_decl.iter().map(|oneof| oneof.name())) {
            self.add(qualified(&name, member), Symbol::Member);
        }
        for nested in &message.nested_type {
            self.message(nested, &name);
        }
        self.enums(&message.enum_type, &name);
        self.extensions(&message.extension, &name);
        self.add(name, Symbol::Message);
    }

    fn enums(&mut self, enums: &[EnumDescriptorProto], parent: &str) {
        for found in enums {
            self.add(qualified(parent, found.name()), Symbol::Enum);
            // Values are siblings of their enum.
            for value in &found.value {
                self.add(qualified(parent, value.name()), Symbol::Member);
            }
        }
    }

    fn extensions(&mut self, extensions: &[FieldDescriptorProto], parent: &str) {
        for extension in extensions {
            self.add(qualified(parent, extension.name()), Symbol::Extension);
        }
    }
}

/// Makes the names of `file` absolute that are among `visible`: the symbols of the file and of those
/// that it imports.
pub(crate) fn make_absolute(file: &mut FileDescriptorProto, visible: &[&Symbols]) {
    let names = Names {
        visible,
        is_proto2: file.syntax() != "proto3",
    };
    let package = file.package().to_owned();
    if let Some(options) = &mut file.options {
        names.options(&mut options.uninterpreted_option, &package);
    }
    for message in &mut file.message_type {
        names.message(message, &package);
    }
    for found in &mut file.enum_type {
        names.enumeration(found, &package);
    }
    for extension in &mut file.extension {
        names.field(extension, &package);
    }
    for service in &mut file.service {
        let scope = qualified(&package, service.name());
        if let Some(options) = &mut service.options {
            names.options(&mut options.uninterpreted_option, &package);
        }
        for method in &mut service.method {
            names.make_type_absolute(&mut method.input_type, &scope);
            names.make_type_absolute(&mut method.output_type, &scope);
            if let Some(options) = &mut method.options {
                names.options(&mut options.uninterpreted_option, &scope);
            }
        }
    }
}

/// The names that a file can see.
struct Names<'a> {
    visible: &'a [&'a Symbols],
    is_proto2: bool,
}

impl Names<'_> {
    fn message(&self, message: &mut DescriptorProto, parent: &str) {
        let scope = qualified(parent, message.name());
        if let Some(options) = &mut message.options {
            self.options(&mut options.uninterpreted_option, parent);
        }
        if self.is_proto2 {
            separate_json_names(&mut message.field);
        }
        for field in message.field.iter_mut().chain(&mut message.extension) {
            self.field(field, &scope);
        }
        for oneof in &mut message.oneof_decl {
            if let Some(options) = &mut oneof.options {
                self.options(&mut options.uninterpreted_option, &scope);
            }
        }
        for range in &mut message.extension_range {
            if let Some(options) = &mut range.options {
                self.options(&mut options.uninterpreted_option, &scope);
            }
        }
        for found in &mut message.enum_type {
            self.enumeration(found, &scope);
        }
        for nested in &mut message.nested_type {
            self.message(nested, &scope);
        }
    }

    fn enumeration(&self, found: &mut EnumDescriptorProto, parent: &str) {
        if let Some(options) = &mut found.options {
            self.options(&mut options.uninterpreted_option, parent);
        }
        let scope = qualified(parent, found.name());
        for value in &mut found.value {
            if let Some(options) = &mut value.options {
                self.options(&mut options.uninterpreted_option, &scope);
            }
        }
    }

    fn field(&self, field: &mut FieldDescriptorProto, scope: &str) {
        let is_named = |ty| matches!(ty, Type::Message | Type::Group | Type::Enum);
        if field.r#type.is_none() || is_named(field.r#type()) {
            self.make_type_absolute(&mut field.type_name, scope);
        }
        self.make_type_absolute(&mut field.extendee, scope);
        if let Some(options) = &mut field.options {
            self.options(&mut options.uninterpreted_option, scope);
        }
    }

    fn make_type_absolute(&self, name: &mut Option<String>, scope: &str) {
        if let Some(name) = name {
            let is_type = |symbol| matches!(symbol, Symbol::Message | Symbol::Enum);
            self.make_absolute(name, scope, is_type, true);
        }
    }

    fn options(&self, options: &mut Vec<UninterpretedOption>, scope: &str) {
        options.retain(|option| {
            let first = option.name.first();
            first.is_none_or(|part| {
                part.is_extension || !OPTIONS_FOR_PROTOC.contains(&part.name_part.as_str())
            })
        });
        for option in options {
            for part in option.name.iter_mut().filter(|part| part.is_extension) {
                let is_extension = |symbol| symbol == Symbol::Extension;
                self.make_absolute(&mut part.name_part, scope, is_extension, false);
            }
            // prost-reflect takes the one for an enum and the other for a number.
            match option.identifier_value.as_deref() {
                Some("inf" | "infinity") => option.double_value = Some(f64::INFINITY),
                Some("nan") => option.double_value = Some(f64::NAN),
                _ => {}
            }
        }
    }

    /// Looks for `name` in `scope`, then in the scopes around it.
    fn make_absolute(
        &self,
        name: &mut String,
        scope: &str,
        is_wanted: fn(Symbol) -> bool,
        skips_others: bool,
    ) {
        if name.starts_with('.') {
            return;
        }
        let first = name.split('.').next().unwrap_or_default();
        let around = std::iter::successors(Some(scope), |scope| {
            let parent = scope.rfind('.').map_or("", |end| &scope[..end]);
            (!scope.is_empty()).then_some(parent)
        });
        for scope in around {
            let found = self.find(&qualified(scope, first));
            let full_name = qualified(scope, name);
            let is_found = match found {
                None => continue,
                // The first part of a name decides where the rest is looked for.
                Some(symbol) if first.len() < name.len() => {
                    if !symbol.is_parent() {
                        continue;
                    }
                    self.find(&full_name).is_some_and(is_wanted)
                }
                Some(symbol) if skips_others && !is_wanted(symbol) => continue,
                Some(symbol) => is_wanted(symbol),
            };
            if is_found {
                *name = format!(".{full_name}");
            }
            return;
        }
    }

    fn find(&self, full_name: &str) -> Option<Symbol> {
        let symbols = self.visible.iter();
        symbols
            .filter_map(|file| file.0.get(full_name))
            .next()
            .copied()
    }
}

/// Has no two fields of a message of proto2 share a name in JSON, which protoc only warns of. Of
/// those that do, each gets its own name.
fn separate_json_names(fields: &mut [FieldDescriptorProto]) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let json_name = |field: &FieldDescriptorProto| {
        let words = field.name().split('_');
        let capitalized = |word: &str| match word.get(..1) {
            Some(first) => first.to_ascii_uppercase() + &word[1..],
            None => String::new(),
        };
        let mut name = String::new();
        for (index, word) in words.enumerate() {
            name.push_str(&if index == 0 {
                word.to_owned()
            } else {
                capitalized(word)
            });
        }
        name
    };
    for field in fields.iter().filter(|field| field.json_name.is_none()) {
        *counts.entry(json_name(field)).or_default() += 1;
    }
    for field in fields.iter_mut().filter(|field| field.json_name.is_none()) {
        if counts[&json_name(field)] > 1 {
            field.json_name = Some(field.name().to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the type of the only field of message `M` of `file`, which sees the other files.
    fn type_in(file: &str, others: &[&str]) -> String {
        let parse = |text: &str| protox_parse::parse("a.proto", text).unwrap();
        let mut file = parse(&format!("syntax = \"proto3\"; {file}"));
        let others: Vec<_> = others
            .iter()
            .map(|text| Symbols::of(&parse(&format!("syntax = \"proto3\"; {text}"))))
            .collect();
        let own = Symbols::of(&file);
        let visible: Vec<_> = std::iter::once(&own).chain(&others).collect();
        make_absolute(&mut file, &visible);
        let message = file
            .message_type
            .iter()
            .find(|it| it.name() == "M")
            .unwrap();
        message.field[0].type_name().to_owned()
    }

    #[test]
    fn names_are_looked_for_from_the_innermost_scope_on() {
        let file = "package a.b; message M { N n = 1; message N {} } message N {}";
        assert_eq!(type_in(file, &[]), ".a.b.M.N");
        assert_eq!(
            type_in(
                "package a.b; message M { N n = 1; }",
                &["package a; message N {}"]
            ),
            ".a.N"
        );
        assert_eq!(
            type_in("message M { N N = 1; } enum N { Z = 0; }", &[]),
            ".N"
        );
        assert_eq!(type_in("message M { .x.N n = 1; }", &[]), ".x.N");
        assert_eq!(
            type_in(
                "package a; message M { N n = 1; }",
                &["package b; message N {}"]
            ),
            "N"
        );
    }

    #[test]
    fn the_first_part_of_a_name_decides_where_the_rest_is() {
        let file = "package a.b; message M { c.N n = 1; }";
        assert_eq!(type_in(file, &["package a.c; message N {}"]), ".a.c.N");
        // `a.b.c` is found first, and has no `N`.
        assert_eq!(
            type_in(file, &["package a.c; message N {}", "package a.b.c;"]),
            "c.N"
        );
        // A field is no scope.
        let file = "package a; message M { c.N c = 1; }";
        assert_eq!(type_in(file, &["package c; message N {}"]), ".c.N");
    }
}
