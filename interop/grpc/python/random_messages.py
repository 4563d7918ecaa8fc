"""Messages with random values in their fields, and the comparison of their JSON."""

import random
import string
import struct

from google.protobuf import any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor as Field

LIMITS = {
    Field.TYPE_INT32: (-2**31, 2**31 - 1), Field.TYPE_SINT32: (-2**31, 2**31 - 1), Field.TYPE_SFIXED32: (-2**31, 2**31 - 1),
    Field.TYPE_INT64: (-2**63, 2**63 - 1), Field.TYPE_SINT64: (-2**63, 2**63 - 1), Field.TYPE_SFIXED64: (-2**63, 2**63 - 1),
    Field.TYPE_UINT32: (0, 2**32 - 1), Field.TYPE_FIXED32: (0, 2**32 - 1),
    Field.TYPE_UINT64: (0, 2**64 - 1), Field.TYPE_FIXED64: (0, 2**64 - 1)}
MOST_NANOS = 999_999_999


def random_message(kind, seed):
    message = kind()
    fill(message, random.Random(seed), 3)
    return message


def fill(message, chance, depth):
    """Sets half of the fields, and those of messages down to a depth."""
    name = message.DESCRIPTOR.full_name
    if name in SPECIAL:
        SPECIAL[name](message, chance, depth)
        return
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.5 or depth == 0 and field.message_type:
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            fill_map(getattr(message, field.name), field.message_type.fields_by_name, chance, depth)
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(chance.randrange(4)):
                if field.message_type:
                    fill(values.add(), chance, depth - 1)
                else:
                    values.append(scalar(field, chance))
        elif field.message_type:
            inner = getattr(message, field.name)
            inner.SetInParent()
            fill(inner, chance, depth - 1)
        else:
            setattr(message, field.name, scalar(field, chance))


def fill_map(entries, fields, chance, depth):
    for _ in range(chance.randrange(4)):
        key = scalar(fields["key"], chance)
        if fields["value"].message_type:
            fill(entries[key], chance, depth - 1)
        else:
            entries[key] = scalar(fields["value"], chance)


def scalar(field, chance):
    if field.type in LIMITS:
        low, high = LIMITS[field.type]
        return chance.choice([low, high, 0, min(high, 1), chance.randint(low, high)])
    if field.type == Field.TYPE_BOOL:
        return chance.random() < 0.5
    if field.type == Field.TYPE_STRING:
        return text(chance)
    if field.type == Field.TYPE_BYTES:
        return chance.randbytes(chance.randrange(9))
    if field.type == Field.TYPE_ENUM:
        if field.enum_type.full_name == "google.protobuf.NullValue":
            return 0
        return chance.choice([*field.enum_type.values_by_number, chance.randint(-2**31, 2**31 - 1)])
    if field.type == Field.TYPE_FLOAT:
        return number(chance, "<f")
    assert field.type == Field.TYPE_DOUBLE, field.type
    return number(chance, "<d")


def text(chance):
    characters = string.printable + "äß€😀\0\x1b\x7f\x85\u2028\ufeff\U0010ffff"
    return "".join(chance.choice(characters) for _ in range(chance.randrange(9)))


def number(chance, form):
    """Any bits: but one NaN for all, no zero with a sign, and no single-precision number that Python prints and does
    not read again, because it rounds it up."""
    [value] = struct.unpack(form, chance.randbytes(struct.calcsize(form)))
    value = chance.choice([value, value, float("inf"), float("-inf"), 0.0, 1.5, float(chance.randrange(10**6))])
    if value != value:
        return float("nan")
    if form == "<f" and 3.4e38 < abs(value) < float("inf"):
        return 1.0
    return value


def fill_any(message, chance, depth):
    kinds = [duration_pb2.Duration, field_mask_pb2.FieldMask, struct_pb2.Struct, struct_pb2.Value, timestamp_pb2.Timestamp]
    inner = chance.choice(kinds)()
    fill(inner, chance, depth - 1)
    if chance.random() < 0.8:
        message.Pack(inner)


def fill_timestamp(message, chance, _):
    message.seconds = chance.choice([0, -62135596800, 253402300799, chance.randint(-62135596800, 253402300799)])
    message.nanos = nanos(chance)


def fill_duration(message, chance, _):
    sign = chance.choice([-1, 1])
    message.seconds = sign * chance.choice([0, 1, 315576000000 - 1, chance.randrange(315576000000)])
    message.nanos = sign * nanos(chance)


def nanos(chance):
    return chance.choice([0, 1, 1000, 500_000_000, MOST_NANOS, chance.randint(0, MOST_NANOS)])


def fill_mask(message, chance, _):
    """Paths that are the same again after their way through JSON's names."""
    names = ["a", "a_string", "inner.name", "some_long_name.of.a_field"]
    message.paths.extend(chance.sample(names, chance.randrange(3)))


def fill_struct(message, chance, depth):
    for _ in range(chance.randrange(3)):
        fill_value(message.fields[text(chance)], chance, depth - 1)


def fill_list(message, chance, depth):
    for _ in range(chance.randrange(3)):
        fill_value(message.values.add(), chance, depth - 1)


def fill_value(message, chance, depth):
    kind = chance.randrange(6 if depth > 0 else 4)
    if kind == 0:
        message.null_value = 0
    elif kind == 1:
        message.number_value = chance.choice([0.0, 1.0, -1.5, 1e300, 0.1])
    elif kind == 2:
        message.string_value = text(chance)
    elif kind == 3:
        message.bool_value = chance.random() < 0.5
    elif kind == 4:
        message.struct_value.SetInParent()
        fill_struct(message.struct_value, chance, depth)
    else:
        message.list_value.SetInParent()
        fill_list(message.list_value, chance, depth)


SPECIAL = {
    any_pb2.Any.DESCRIPTOR.full_name: fill_any,
    timestamp_pb2.Timestamp.DESCRIPTOR.full_name: fill_timestamp,
    duration_pb2.Duration.DESCRIPTOR.full_name: fill_duration,
    field_mask_pb2.FieldMask.DESCRIPTOR.full_name: fill_mask,
    struct_pb2.Struct.DESCRIPTOR.full_name: fill_struct,
    struct_pb2.Value.DESCRIPTOR.full_name: fill_value,
    struct_pb2.ListValue.DESCRIPTOR.full_name: fill_list,
}


def same(one, other):
    """Compares JSON. A number of single precision has several texts, of which Python takes one with eight digits, so
    numbers are compared with that precision. Who needs more reads the texts again."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and abs(one) < 3.5e38:
        return one == other or struct.pack("<f", one) == struct.pack("<f", other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)
