//! Sets of named bits that keep bits unknown to this layer.

/// Defines a set of flags: an enum with one variant per bit, and a set type that keeps all bits.
macro_rules! flags {
    (
        $(#[$set_doc:meta])* $set:ident($bits:ty);
        $(#[$one_doc:meta])* $one:ident;
        $($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*
    ) => {
        $(#[$one_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $one {
            $($(#[$doc])* $name = $bit,)*
        }

        impl $one {
            /// All flags that have a name, in the order of their bits.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the name in the specification.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns the number of the flag's bit.
            pub const fn bit(self) -> u32 {
                self as u32
            }
        }

        impl std::fmt::Display for $one {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        $(#[$set_doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $set($bits);

        impl $set {
            /// Wraps the bits that a device reports. Bits without a name are kept.
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// Returns the bits.
            pub const fn bits(self) -> $bits {
                self.0
            }

            /// Returns true if the flag is set.
            pub const fn contains(self, flag: $one) -> bool {
                self.0 & (1 << flag as u32) != 0
            }

            /// Returns the flags that have a name, in the order of their bits.
            pub fn iter(self) -> impl Iterator<Item = $one> {
                $one::ALL.iter().copied().filter(move |flag| self.contains(*flag))
            }

            /// Returns the numbers of the set bits that have no name.
            pub fn unknown(self) -> impl Iterator<Item = u32> {
                let known = $one::ALL.iter().fold(0, |bits, flag| bits | 1 << *flag as u32);
                let rest = self.0 & !known;
                (0..<$bits>::BITS).filter(move |bit| rest & (1 << bit) != 0)
            }
        }

        /// Writes the names, then the numbers of the unnamed bits.
        impl std::fmt::Display for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let names = self.iter().map(|flag| flag.name().to_owned());
                let numbers = self.unknown().map(|bit| format!("bit {bit}"));
                let all: Vec<_> = names.chain(numbers).collect();
                match all.is_empty() {
                    true => f.write_str("none"),
                    false => f.write_str(&all.join(", ")),
                }
            }
        }

        impl std::fmt::Debug for $set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({self})", stringify!($set))
            }
        }
    };
}

pub(crate) use flags;

#[cfg(test)]
// The macro defines public items, which are unreachable in this test module.
#[allow(unreachable_pub)]
mod tests {
    flags! {
        /// A set of flags.
        Some8(u8);
        /// One flag.
        One;
        /// The lowest bit.
        Low = 0, "LOW";
        /// The highest bit.
        High = 7, "HIGH";
    }

    #[test]
    fn bits_have_names_and_those_without_keep_their_numbers() {
        assert_eq!(Some8::from_bits(0).to_string(), "none");
        let all = Some8::from_bits(0b1001_0001);
        assert_eq!(all.to_string(), "LOW, HIGH, bit 4");
        assert_eq!(format!("{all:?}"), "Some8(LOW, HIGH, bit 4)");
        assert!(all.contains(One::High) && !Some8::from_bits(2).contains(One::Low));
        assert_eq!(all.unknown().collect::<Vec<_>>(), [4]);
        assert_eq!((all.bits(), One::High.bit()), (0b1001_0001, 7));
        assert_eq!(One::Low.to_string(), "LOW");
    }
}
