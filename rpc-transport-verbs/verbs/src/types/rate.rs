//! Link rates: a number of lanes of equal speed.

use std::fmt;

/// Width of a link in lanes (`active_width`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkWidth {
    /// One lane.
    X1,
    /// Two lanes.
    X2,
    /// Four lanes.
    X4,
    /// Eight lanes.
    X8,
    /// Twelve lanes.
    X12,
    /// A width unknown to this layer, by its code.
    Unknown(u8),
}

impl LinkWidth {
    /// Returns the width with this code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::X1,
            2 => Self::X4,
            4 => Self::X8,
            8 => Self::X12,
            16 => Self::X2,
            other => Self::Unknown(other),
        }
    }

    /// Returns the number of lanes; `None` if the code is unknown.
    pub const fn lanes(self) -> Option<u32> {
        match self {
            Self::X1 => Some(1),
            Self::X2 => Some(2),
            Self::X4 => Some(4),
            Self::X8 => Some(8),
            Self::X12 => Some(12),
            Self::Unknown(_) => None,
        }
    }
}

/// Speed of one lane (`active_speed`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkSpeed {
    /// Single data rate: 2.5 Gb/s.
    Sdr,
    /// Double data rate: 5 Gb/s.
    Ddr,
    /// Quad data rate: 10 Gb/s.
    Qdr,
    /// FDR10, a variant of fourteen data rate: 10.3125 Gb/s.
    Fdr10,
    /// Fourteen data rate: 14.0625 Gb/s.
    Fdr,
    /// Enhanced data rate: 25.78125 Gb/s.
    Edr,
    /// High data rate: 50 Gb/s.
    Hdr,
    /// Next data rate: 100 Gb/s.
    Ndr,
    /// Extreme data rate: 200 Gb/s.
    Xdr,
    /// A speed unknown to this layer, by its code.
    Unknown(u16),
}

impl LinkSpeed {
    /// All speeds that have a name, slowest first.
    pub const NAMED: [Self; 9] = [
        Self::Sdr,
        Self::Ddr,
        Self::Qdr,
        Self::Fdr10,
        Self::Fdr,
        Self::Edr,
        Self::Hdr,
        Self::Ndr,
        Self::Xdr,
    ];

    /// Returns the speed with this code.
    pub const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Sdr,
            2 => Self::Ddr,
            4 => Self::Qdr,
            8 => Self::Fdr10,
            16 => Self::Fdr,
            32 => Self::Edr,
            64 => Self::Hdr,
            128 => Self::Ndr,
            256 => Self::Xdr,
            other => Self::Unknown(other),
        }
    }

    /// Returns the bits per second of one lane; `None` if the code is unknown.
    pub const fn bits_per_second(self) -> Option<u64> {
        Some(match self {
            Self::Sdr => 2_500_000_000,
            Self::Ddr => 5_000_000_000,
            Self::Qdr => 10_000_000_000,
            Self::Fdr10 => 10_312_500_000,
            Self::Fdr => 14_062_500_000,
            Self::Edr => 25_781_250_000,
            Self::Hdr => 50_000_000_000,
            Self::Ndr => 100_000_000_000,
            Self::Xdr => 200_000_000_000,
            Self::Unknown(_) => return None,
        })
    }

    /// Returns the nominal speed of one lane: bits per second, rounded down to whole gigabits (25
    /// Gb/s for EDR), except for SDR with its 2.5 Gb/s.
    fn nominal(self) -> Option<u64> {
        const GIGABIT: u64 = 1_000_000_000;
        match (self, self.bits_per_second()?) {
            (Self::Sdr, exact) => Some(exact),
            (_, exact) => Some(exact / GIGABIT * GIGABIT),
        }
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sdr => "SDR",
            Self::Ddr => "DDR",
            Self::Qdr => "QDR",
            Self::Fdr10 => "FDR10",
            Self::Fdr => "FDR",
            Self::Edr => "EDR",
            Self::Hdr => "HDR",
            Self::Ndr => "NDR",
            Self::Xdr => "XDR",
            Self::Unknown(code) => return write!(f, "speed {code}"),
        })
    }
}

impl fmt::Display for LinkWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(code) => write!(f, "width {code}"),
            known => write!(f, "{}X", known.lanes().unwrap_or_default()),
        }
    }
}

/// A link's width and speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Number of lanes.
    pub width: LinkWidth,
    /// Speed of each lane.
    pub speed: LinkSpeed,
}

impl Rate {
    /// Converts the codes of `ibv_port_attr`; `None` if the port reports neither.
    pub const fn from_codes(width: u8, speed: u16) -> Option<Self> {
        if width == 0 && speed == 0 {
            return None;
        }
        Some(Self {
            width: LinkWidth::from_code(width),
            speed: LinkSpeed::from_code(speed),
        })
    }

    /// Returns the bits per second of all lanes together; `None` if a code is unknown.
    pub fn bits_per_second(self) -> Option<u64> {
        Some(self.speed.bits_per_second()? * u64::from(self.width.lanes()?))
    }

    /// Returns the nominal rate in bits per second: 100 Gb/s for four lanes of EDR, whose signaling
    /// rate is 103.125 Gb/s. The kernel reports this number in `rate`.
    pub fn nominal(self) -> Option<u64> {
        Some(self.speed.nominal()? * u64::from(self.width.lanes()?))
    }
}

impl fmt::Display for Rate {
    /// Writes, for example, `100 Gb/s (4 × 25, EDR)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, speed } = self;
        let (Some(total), Some(lanes), Some(lane)) =
            (self.nominal(), width.lanes(), speed.nominal())
        else {
            return write!(f, "unknown ({width}, {speed})");
        };
        let (total, lane) = (Giga(total), Giga(lane));
        write!(f, "{total} Gb/s ({lanes} × {lane}, {speed})")
    }
}

/// A number in billions, displayed with one decimal unless that is zero.
struct Giga(u64);

impl fmt::Display for Giga {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0 / 100_000_000;
        match tenths % 10 {
            0 => write!(f, "{}", tenths / 10),
            tenth => write!(f, "{}.{tenth}", tenths / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_called_by_the_numbers_that_everybody_uses() {
        let text = |width, speed| Rate::from_codes(width, speed).unwrap().to_string();
        assert_eq!(text(1, 1), "2.5 Gb/s (1 × 2.5, SDR)");
        assert_eq!(text(2, 4), "40 Gb/s (4 × 10, QDR)");
        assert_eq!(text(2, 8), "40 Gb/s (4 × 10, FDR10)");
        assert_eq!(text(2, 16), "56 Gb/s (4 × 14, FDR)");
        assert_eq!(text(2, 32), "100 Gb/s (4 × 25, EDR)");
        assert_eq!(text(2, 64), "200 Gb/s (4 × 50, HDR)");
        assert_eq!(text(16, 64), "100 Gb/s (2 × 50, HDR)");
        assert_eq!(text(2, 128), "400 Gb/s (4 × 100, NDR)");
        assert_eq!(text(4, 256), "1600 Gb/s (8 × 200, XDR)");
        assert_eq!(text(8, 2), "60 Gb/s (12 × 5, DDR)");
        assert_eq!(Rate::from_codes(0, 0), None);
    }

    #[test]
    fn the_exact_rate_is_lanes_times_speed() {
        let edr = Rate::from_codes(2, 32).unwrap();
        assert_eq!(edr.bits_per_second(), Some(103_125_000_000));
        assert_eq!(edr.nominal(), Some(100_000_000_000));
    }

    #[test]
    fn every_code_is_something_and_unknown_ones_keep_their_number() {
        for code in 0..=u8::MAX {
            let width = LinkWidth::from_code(code);
            assert_eq!(width.lanes().is_none(), width == LinkWidth::Unknown(code));
            let rate = Rate::from_codes(code, 32);
            assert!(rate.is_some(), "{code}");
        }
        for code in 0..=u16::MAX {
            let speed = LinkSpeed::from_code(code);
            let is_known = LinkSpeed::NAMED.contains(&speed);
            assert_eq!(speed.bits_per_second().is_some(), is_known, "{code}");
            assert!(is_known || speed == LinkSpeed::Unknown(code));
        }
        let odd = Rate::from_codes(3, 77).unwrap();
        assert_eq!(odd.to_string(), "unknown (width 3, speed 77)");
        assert_eq!(odd.bits_per_second(), None);
    }
}
