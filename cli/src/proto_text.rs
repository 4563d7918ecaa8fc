//! The text of a `.proto` file for one symbol, with its comments if the descriptors have them.

use prost_reflect::{
    Cardinality, DynamicMessage, EnumDescriptor, ExtensionDescriptor, FieldDescriptor,
    FileDescriptor, Kind, MessageDescriptor, MethodDescriptor, ServiceDescriptor, Syntax, Value,
};
use verbline::message::prost_types::FieldDescriptorProto;
use verbline::message::prost_types::source_code_info::Location;

use crate::schema::Symbol;

/// Returns the text: a comment that names the symbol and its file, then its definition.
pub(crate) fn of(symbol: &Symbol) -> String {
    match symbol {
        Symbol::Service(service) => begin(service.full_name(), &service.parent_file(), |text| {
            text.service(service);
        }),
        Symbol::Method(method) => begin(method.full_name(), &method.parent_file(), |text| {
            text.method(method);
        }),
        Symbol::Message(message) => begin(message.full_name(), &message.parent_file(), |text| {
            text.message(message);
        }),
        Symbol::Field(field) => begin(field.full_name(), &field.parent_file(), |text| {
            text.field(&Field::of(field));
        }),
        Symbol::Enum(found) => begin(found.full_name(), &found.parent_file(), |text| {
            text.enumeration(found);
        }),
        Symbol::Extension(extension) => {
            begin(extension.full_name(), &extension.parent_file(), |text| {
                text.extension(extension);
            })
        }
    }
}

fn begin(name: &str, file: &FileDescriptor, write: impl FnOnce(&mut Text<'_>)) -> String {
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let mut text = Text {
        text: format!("// {name}, in {}\n\n", file.name()),
        depth: 0,
        locations: info.map_or(&[], |info| &info.location),
        syntax: file.syntax(),
    };
    write(&mut text);
    text.text
}

/// The text so far.
struct Text<'a> {
    text: String,
    depth: usize,
    /// Where comments stand.
    locations: &'a [Location],
    syntax: Syntax,
}

/// What fields and extensions have in common.
struct Field<'a> {
    proto: &'a FieldDescriptorProto,
    path: &'a [i32],
    kind: Kind,
    cardinality: Cardinality,
    is_map: bool,
    is_group: bool,
    options: DynamicMessage,
}

impl<'a> Field<'a> {
    fn of(field: &'a FieldDescriptor) -> Self {
        Self {
            proto: field.field_descriptor_proto(),
            path: field.path(),
            kind: field.kind(),
            cardinality: field.cardinality(),
            is_map: field.is_map(),
            is_group: field.is_group(),
            options: field.options(),
        }
    }

    fn of_extension(field: &'a ExtensionDescriptor) -> Self {
        Self {
            proto: field.field_descriptor_proto(),
            path: field.path(),
            kind: field.kind(),
            cardinality: field.cardinality(),
            is_map: false,
            is_group: field.is_group(),
            options: field.options(),
        }
    }

    fn label(&self, syntax: Syntax) -> &'static str {
        match self.cardinality {
            _ if self.is_map => "",
            Cardinality::Repeated => "repeated ",
            Cardinality::Required => "required ",
            Cardinality::Optional if self.proto.proto3_optional() => "optional ",
            Cardinality::Optional => match syntax {
                Syntax::Proto2 if self.proto.oneof_index.is_none() => "optional ",
                _ => "",
            },
        }
    }

    /// Returns what stands in brackets behind the number.
    fn bracket(&self) -> String {
        let mut all = Vec::new();
        if let Some(default) = &self.proto.default_value {
            all.push(match self.kind {
                // Those of bytes are escaped already.
                Kind::Bytes => format!("default = \"{default}\""),
                Kind::String => format!("default = {default:?}"),
                _ => format!("default = {default}"),
            });
        }
        let json_name = self.proto.json_name();
        if !json_name.is_empty() && json_name != camel_case(self.proto.name()) {
            all.push(format!("json_name = {json_name:?}"));
        }
        all.extend(options_of(&self.options));
        bracket(&all)
    }
}

impl Text<'_> {
    fn service(&mut self, service: &ServiceDescriptor) {
        self.block(
            service.path(),
            &format!("service {}", service.name()),
            |text| {
                text.options(&service.options());
                for method in service.methods() {
                    text.method(&method);
                }
            },
        );
    }

    fn method(&mut self, method: &MethodDescriptor) {
        let stream = |streams| if streams { "stream " } else { "" };
        let head = format!(
            "rpc {}({}{}) returns ({}{})",
            method.name(),
            stream(method.is_client_streaming()),
            method.input().full_name(),
            stream(method.is_server_streaming()),
            method.output().full_name(),
        );
        let options = method.options();
        match options_of(&options).is_empty() {
            true => self.statement(method.path(), &head),
            false => self.block(method.path(), &head, |text| text.options(&options)),
        }
    }

    fn message(&mut self, message: &MessageDescriptor) {
        self.block(
            message.path(),
            &format!("message {}", message.name()),
            |text| {
                text.body(message);
            },
        );
    }

    /// Writes what stands in the braces of a message: its types, then its fields as they are in the file.
    fn body(&mut self, message: &MessageDescriptor) {
        self.options(&message.options());
        for found in message.child_enums() {
            self.enumeration(&found);
        }
        let groups: Vec<MessageDescriptor> = message
            .fields()
            .filter(FieldDescriptor::is_group)
            .filter_map(|field| field.kind().as_message().cloned())
            .collect();
        for child in message.child_messages() {
            if !child.is_map_entry() && !groups.contains(&child) {
                self.message(&child);
            }
        }
        let mut fields: Vec<FieldDescriptor> = message.fields().collect();
        fields.sort_by_key(|field| field.path().last().copied());
        let mut written = Vec::new();
        for field in &fields {
            match field
                .containing_oneof()
                .filter(|oneof| !oneof.is_synthetic())
            {
                None => self.field(&Field::of(field)),
                Some(oneof) if written.contains(&oneof) => {}
                Some(oneof) => {
                    self.block(oneof.path(), &format!("oneof {}", oneof.name()), |text| {
                        text.options(&oneof.options());
                        let members = fields
                            .iter()
                            .filter(|field| field.containing_oneof().is_some_and(|of| of == oneof));
                        for member in members {
                            text.field(&Field::of(member));
                        }
                    });
                    written.push(oneof);
                }
            }
        }
        for extension in message.child_extensions() {
            self.extension(&extension);
        }
        let ranges = message
            .extension_ranges()
            .map(|range| (range.start, range.end - 1));
        self.ranges("extensions", ranges, FIELD_MAX);
        let ranges = message
            .reserved_ranges()
            .map(|range| (range.start, range.end - 1));
        self.ranges("reserved", ranges, FIELD_MAX);
        self.names(message.reserved_names());
    }

    fn field(&mut self, field: &Field<'_>) {
        let Field { proto, kind, .. } = field;
        let label = field.label(self.syntax);
        let number = proto.number();
        let bracket = field.bracket();
        match kind {
            Kind::Message(entry) if field.is_map => {
                let key = type_name(&entry.map_entry_key_field().kind());
                let value = type_name(&entry.map_entry_value_field().kind());
                let name = proto.name();
                let line = format!("map<{key}, {value}> {name} = {number}{bracket}");
                self.statement(field.path, &line);
            }
            Kind::Message(group) if field.is_group => {
                let head = format!("{label}group {} = {number}{bracket}", group.name());
                // Its comment may be that of its message.
                self.comment_before(group.path());
                self.block(field.path, &head, |text| text.body(group));
            }
            kind => {
                let line = format!(
                    "{label}{} {} = {number}{bracket}",
                    type_name(kind),
                    proto.name()
                );
                self.statement(field.path, &line);
            }
        }
    }

    fn extension(&mut self, extension: &ExtensionDescriptor) {
        let head = format!("extend {}", extension.containing_message().full_name());
        self.line(&format!("{head} {{"));
        self.depth += 1;
        self.field(&Field::of_extension(extension));
        self.depth -= 1;
        self.line("}");
    }

    fn enumeration(&mut self, found: &EnumDescriptor) {
        self.block(found.path(), &format!("enum {}", found.name()), |text| {
            text.options(&found.options());
            let mut values: Vec<_> = found.values().collect();
            values.sort_by_key(|value| value.path().last().copied());
            for value in values {
                let bracket = bracket(&options_of(&value.options()));
                let line = format!("{} = {}{bracket}", value.name(), value.number());
                text.statement(value.path(), &line);
            }
            let ranges = found.reserved_ranges().map(|range| range.into_inner());
            text.ranges("reserved", ranges, i32::MAX);
            text.names(found.reserved_names());
        });
    }

    fn options(&mut self, options: &DynamicMessage) {
        for option in options_of(options) {
            self.line(&format!("option {option};"));
        }
    }

    fn ranges<N: Copy + Ord + std::fmt::Display>(
        &mut self,
        word: &str,
        ranges: impl Iterator<Item = (N, N)>,
        max: N,
    ) {
        let ranges: Vec<String> = ranges
            .map(|(first, last)| match (first == last, last >= max) {
                (true, _) => first.to_string(),
                (false, true) => format!("{first} to max"),
                (false, false) => format!("{first} to {last}"),
            })
            .collect();
        if !ranges.is_empty() {
            self.line(&format!("{word} {};", ranges.join(", ")));
        }
    }

    fn names<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        let names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
        if !names.is_empty() {
            self.line(&format!("reserved {};", names.join(", ")));
        }
    }

    /// Writes a head and braces with what `write` writes.
    fn block(&mut self, path: &[i32], head: &str, write: impl FnOnce(&mut Self)) {
        self.comment_before(path);
        self.line(&format!("{head} {{"));
        let before = self.text.len();
        self.depth += 1;
        write(self);
        self.depth -= 1;
        if self.text.len() == before {
            // Nothing is in it.
            self.text.truncate(before - 1);
            self.text.push_str("}\n");
        } else {
            self.line("}");
        }
    }

    fn statement(&mut self, path: &[i32], statement: &str) {
        self.comment_before(path);
        self.line(&format!("{statement};"));
    }

    /// Writes the comments that stand before an item and behind it, all of them before it.
    fn comment_before(&mut self, path: &[i32]) {
        let location = self.locations.iter().find(|location| location.path == path);
        let Some(location) = location else { return };
        let comments = [&location.leading_comments, &location.trailing_comments];
        for line in comments.into_iter().flatten().flat_map(|text| text.lines()) {
            let line = line.trim();
            self.line(format!("// {line}").trim_end());
        }
    }

    fn line(&mut self, line: &str) {
        for _ in 0..self.depth {
            self.text.push_str("  ");
        }
        self.text.push_str(line);
        self.text.push('\n');
    }
}

/// The highest number of a field.
const FIELD_MAX: u32 = (1 << 29) - 1;

fn type_name(kind: &Kind) -> String {
    match kind {
        Kind::Double => "double".to_owned(),
        Kind::Float => "float".to_owned(),
        Kind::Int32 => "int32".to_owned(),
        Kind::Int64 => "int64".to_owned(),
        Kind::Uint32 => "uint32".to_owned(),
        Kind::Uint64 => "uint64".to_owned(),
        Kind::Sint32 => "sint32".to_owned(),
        Kind::Sint64 => "sint64".to_owned(),
        Kind::Fixed32 => "fixed32".to_owned(),
        Kind::Fixed64 => "fixed64".to_owned(),
        Kind::Sfixed32 => "sfixed32".to_owned(),
        Kind::Sfixed64 => "sfixed64".to_owned(),
        Kind::Bool => "bool".to_owned(),
        Kind::String => "string".to_owned(),
        Kind::Bytes => "bytes".to_owned(),
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(found) => found.full_name().to_owned(),
    }
}

fn bracket(options: &[String]) -> String {
    match options {
        [] => String::new(),
        options => format!(" [{}]", options.join(", ")),
    }
}

/// Returns the options as `name = value`, custom ones in parentheses.
fn options_of(options: &DynamicMessage) -> Vec<String> {
    let fields = options
        .fields()
        .map(|(field, value)| (field.name().to_owned(), field.kind(), value));
    let extensions = options
        .extensions()
        .map(|(field, value)| (format!("({})", field.full_name()), field.kind(), value));
    fields
        .chain(extensions)
        .flat_map(|(name, kind, value)| {
            let values = match value {
                Value::List(values) => values.iter().collect(),
                value => vec![value],
            };
            let lines = values.into_iter().map(move |value| match (value, &kind) {
                (Value::EnumNumber(number), Kind::Enum(found)) => match found.get_value(*number) {
                    Some(value) => format!("{name} = {}", value.name()),
                    None => format!("{name} = {number}"),
                },
                (Value::Message(message), _) => format!("{name} = {{ {message} }}"),
                (value, _) => format!("{name} = {value}"),
            });
            lines.collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the JSON name that a field has if the `.proto` file says none.
fn camel_case(name: &str) -> String {
    let mut parts = name.split('_');
    let mut camel = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let mut chars = part.chars();
        camel.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(chars.as_str());
    }
    camel
}
