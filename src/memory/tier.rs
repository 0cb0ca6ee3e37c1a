//! Tiers: how much of a model is on the device at once, from everything to one block of one part.

use std::fmt;

/// Which tier is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The quickest tier that fits comfortably.
    #[default]
    Auto,
    /// Everything on the device if it fits at all, else as [`Mode::Auto`].
    Fast,
    /// The transformer's blocks take turns, whatever fits.
    Balanced,
    /// One part on the device at a time.
    LowVram,
}

impl Mode {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 4] = [
        ("auto", Self::Auto),
        ("fast", Self::Fast),
        ("balanced", Self::Balanced),
        ("low-vram", Self::LowVram),
    ];
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        let names = Self::ALL.map(|(name, _)| name);
        found
            .map(|(_, mode)| *mode)
            .ok_or_else(|| format!("wanted one of {}", names.join(", ")))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(_, mode)| mode == self);
        f.write_str(name.map_or("auto", |(name, _)| name))
    }
}

/// How a pipeline is held, the quickest first. All of them compute the same bits; only the autoencoder's tiles, which the last two may need,
/// round otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Every weight and every session is on the device.
    Resident,
    /// As [`Tier::Resident`], but the blocks of the transformer take turns.
    Streamed,
    /// As [`Tier::Streamed`], and the text encoder is released after use.
    StreamedText,
    /// One part is on the device at a time, whole.
    Parts,
    /// One part at a time, its blocks taking turns where it does not fit whole.
    PartsStreamed,
}

impl Tier {
    /// All of them, the quickest first.
    pub const ALL: [Self; 5] = [
        Self::Resident,
        Self::Streamed,
        Self::StreamedText,
        Self::Parts,
        Self::PartsStreamed,
    ];

    /// Words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Streamed => "streamed",
            Self::StreamedText => "streamed, text encoder released",
            Self::Parts => "one part at a time",
            Self::PartsStreamed => "one part at a time, streamed",
        }
    }

    /// Whether parts leave the device before others come.
    pub fn takes_turns(self) -> bool {
        self >= Self::Parts
    }
}

/// Bytes that may be taken on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes.
    pub bytes: u64,
    /// Whether someone said so; otherwise so much is free now, which may change.
    pub cap: bool,
}

/// Percent of free memory that [`Mode::Auto`] fills before it streams, as Unsloth Studio does.
const COMFORT: u64 = 85;

/// The first tier from `from` on whose need fits. `needs` are the least bytes of each of [`Tier::ALL`]. What is free is unknown on most GPUs: then
/// the tier that is asked for is tried, and the device says whether it has the room.
///
/// This is the table of Unsloth Studio's memory policy with two differences: bytes are exact here, so that a cap may be filled to the last one; and
/// weights come from mapped files, so that letting go of them frees memory where GPU and CPU share it, too.
///
/// # Errors
/// With the least bytes that any tier needs, if none fits.
pub fn decide(mode: Mode, budget: Option<Budget>, needs: [u64; 5], from: Tier) -> Result<Tier, u64> {
    let first = match mode {
        Mode::Auto | Mode::Fast => Tier::Resident,
        Mode::Balanced => Tier::Streamed,
        Mode::LowVram => Tier::Parts,
    };
    let first = first.max(from);
    let fits = |tier: Tier, need: u64| match budget {
        None => true,
        Some(Budget { bytes, cap }) if tier == Tier::Resident && mode == Mode::Auto && !cap => {
            need <= bytes / 100 * COMFORT
        }
        Some(Budget { bytes, .. }) => need <= bytes,
    };
    let mut tiers = Tier::ALL.into_iter().zip(needs);
    tiers
        .find(|(tier, need)| *tier >= first && fits(*tier, *need))
        .map(|(tier, _)| tier)
        .ok_or_else(|| needs.into_iter().min().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::Mode::{Auto, Balanced, Fast, LowVram};
    use super::Tier::{Parts, PartsStreamed, Resident, Streamed, StreamedText};
    use super::*;

    const NEEDS: [u64; 5] = [1000, 600, 500, 400, 100];

    #[test]
    fn the_decision_table() {
        let cap = |bytes| Some(Budget { bytes, cap: true });
        let free = |bytes| Some(Budget { bytes, cap: false });
        let table = [
            // Unknown: as asked for.
            (Auto, None, Ok(Resident)),
            (Fast, None, Ok(Resident)),
            (Balanced, None, Ok(Streamed)),
            (LowVram, None, Ok(Parts)),
            // A cap may be filled to the last byte.
            (Auto, cap(1000), Ok(Resident)),
            (Auto, cap(999), Ok(Streamed)),
            (Fast, cap(999), Ok(Streamed)),
            (Auto, cap(600), Ok(Streamed)),
            (Auto, cap(599), Ok(StreamedText)),
            (Auto, cap(499), Ok(Parts)),
            (Auto, cap(399), Ok(PartsStreamed)),
            (Auto, cap(100), Ok(PartsStreamed)),
            (Auto, cap(99), Err(100)),
            // Free memory is not.
            (Auto, free(1000), Ok(Streamed)),
            (Fast, free(1000), Ok(Resident)),
            (Auto, free(1177), Ok(Streamed)),
            (Auto, free(1200), Ok(Resident)),
            // Slower than it must be, as asked for; and what does not fit falls to the next.
            (Balanced, cap(5000), Ok(Streamed)),
            (Balanced, cap(550), Ok(StreamedText)),
            (LowVram, cap(5000), Ok(Parts)),
            (LowVram, cap(399), Ok(PartsStreamed)),
            (LowVram, cap(0), Err(100)),
            (Auto, free(u64::MAX), Ok(Resident)),
        ];
        for (mode, budget, wanted) in table {
            assert_eq!(decide(mode, budget, NEEDS, Resident), wanted, "{mode} {budget:?}");
        }
    }

    #[test]
    fn a_tier_that_failed_is_not_tried_again() {
        assert_eq!(decide(Auto, None, NEEDS, Streamed), Ok(Streamed));
        assert_eq!(decide(Balanced, None, NEEDS, Parts), Ok(Parts));
        assert_eq!(decide(LowVram, None, NEEDS, Streamed), Ok(Parts));
    }

    #[test]
    fn names_are_read_back() {
        for (name, mode) in Mode::ALL {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        assert!("slow".parse::<Mode>().is_err());
    }
}
