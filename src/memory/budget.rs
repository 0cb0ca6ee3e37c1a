//! Whether the machine has room.

use crate::error::{Error, Result};
use crate::gpu::Caps;
use crate::memory::faults::Faults;
use std::fmt;
use std::str::FromStr;

/// How much of a device's memory may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxMemory {
    /// So many bytes.
    Most(u64),
    /// All but so many of the bytes that are free.
    LeaveFree(u64),
}

impl MaxMemory {
    /// Bytes that may be taken, on a GPU with `caps` or on the CPU.
    ///
    /// # Errors
    /// If bytes are to stay free where it is unknown how many are.
    pub fn bytes(self, caps: Option<&Caps>) -> Result<u64> {
        match (self, free(caps)) {
            (Self::Most(bytes), _) => Ok(bytes),
            (Self::LeaveFree(bytes), Some(free)) => Ok(free.saturating_sub(bytes)),
            (Self::LeaveFree(_), None) => Err(Error::Request(format!(
                "--max-memory {self}: {} does not say how much of its memory is free; say how much may be taken",
                caps.map_or("this system".into(), Caps::to_string)
            ))),
        }
    }
}

impl FromStr for MaxMemory {
    type Err = String;

    /// A number of GiB, or of what is said with it; below zero so much stays free.
    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str = "wanted a number of GiB such as 6 or 1.5, or 800MiB; -1 leaves 1 GiB free";
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let scale = match unit.trim().to_ascii_lowercase().as_str() {
            "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "" | "g" | "gib" => 30,
            _ => return Err(WANTED.into()),
        };
        let number: f64 = number.parse().map_err(|_| WANTED)?;
        let bytes = (number * f64::from(1u32 << scale)).round();
        // A float has whole numbers of bytes up to here, and no machine has more.
        if !(1.0..=9.0e15).contains(&bytes) {
            return Err(WANTED.into());
        }
        Ok(match negative {
            true => Self::LeaveFree(bytes as u64),
            false => Self::Most(bytes as u64),
        })
    }
}

impl fmt::Display for MaxMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Most(bytes) => write!(f, "{bytes}B"),
            Self::LeaveFree(bytes) => write!(f, "-{bytes}B"),
        }
    }
}

/// Bytes that are free on a GPU with `caps`, or for the CPU. WebGPU does not tell; an adapter that computes on the CPU has what the system has.
pub fn free(caps: Option<&Caps>) -> Option<u64> {
    match caps {
        Some(caps) if !caps.software => None,
        _ => available(),
    }
}

/// Finds out whether the machine could give `wanted` bytes, since running out of memory ends a program without a word.
///
/// # Errors
/// If it could not.
pub fn check(wanted: u64) -> Result<()> {
    let available = available();
    if available.is_some_and(|bytes| wanted > bytes) || !reservable(wanted) {
        return Err(Error::OutOfMemory { wanted, available });
    }
    Ok(())
}

/// An empty vector with room for `len` elements.
///
/// # Errors
/// If the allocator does not give that much, with the bytes.
pub(crate) fn room<T>(len: usize, faults: &Faults) -> Result<Vec<T>> {
    let mut values = Vec::new();
    if faults.allocation() || values.try_reserve_exact(len).is_err() {
        return Err(Error::OutOfMemory {
            wanted: (len as u64).saturating_mul(size_of::<T>() as u64),
            available: available(),
        });
    }
    Ok(values)
}

/// A vector of zeros.
///
/// # Errors
/// As [`room`].
pub(crate) fn vec(len: usize, faults: &Faults) -> Result<Vec<f32>> {
    let mut values = room(len, faults)?;
    values.resize(len, 0.0);
    Ok(values)
}

/// Whether the allocator would give that much. Systems that promise more than they have say yes too often.
fn reservable(bytes: u64) -> bool {
    usize::try_from(bytes).is_ok_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok())
}

/// Bytes that are free or can be freed, as the system says; `None` where it does not tell.
#[cfg(all(target_os = "linux", feature = "native"))]
pub fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some((kib("MemAvailable")? + kib("SwapFree").unwrap_or(0)) << 10)
}

/// Bytes that are free or can be freed, as the system says; `None` where it does not tell.
#[cfg(not(all(target_os = "linux", feature = "native")))]
pub fn available() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_taken_is_read_as_people_say_it() {
        let table = [
            ("2", Some(MaxMemory::Most(2 << 30))),
            ("1.5", Some(MaxMemory::Most(3 << 29))),
            ("800MiB", Some(MaxMemory::Most(800 << 20))),
            ("64 kib", Some(MaxMemory::Most(64 << 10))),
            ("1000b", Some(MaxMemory::Most(1000))),
            ("-1", Some(MaxMemory::LeaveFree(1 << 30))),
            ("-512MiB", Some(MaxMemory::LeaveFree(512 << 20))),
        ];
        for (text, wanted) in table {
            assert_eq!(text.parse().ok(), wanted, "{text}");
        }
        for bad in [
            "",
            "-",
            "0",
            "1.2.3",
            "2 TiB",
            "inf",
            "NaN",
            "1e3",
            "--1",
            "99999999999999999999",
        ] {
            assert!(bad.parse::<MaxMemory>().is_err(), "{bad}");
        }
        let unknown = MaxMemory::LeaveFree(1).bytes(Some(&Caps::baseline()));
        let error = unknown.expect_err("a GPU does not tell");
        assert!(error.to_string().contains("WebGPU defaults"), "{error}");
    }

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        let faults = Faults::default();
        assert_eq!(vec(3, &faults).expect("a few bytes"), [0.0; 3]);
        let error = vec(usize::MAX / 8, &faults).expect_err("no machine has that");
        let Error::OutOfMemory { wanted, .. } = error else {
            panic!("{error}")
        };
        assert_eq!(wanted, (usize::MAX / 8) as u64 * 4);
        faults.fail_at(1);
        let error = room::<u8>(5, &faults).expect_err("as asked for");
        assert!(matches!(error, Error::OutOfMemory { wanted: 5, .. }), "{error}");
        assert_eq!(faults.allocations(), 3);
    }

    #[test]
    fn a_little_fits_and_an_absurdity_does_not() {
        check(1 << 20).expect("a mebibyte");
        for wanted in [1 << 50, u64::MAX] {
            let error = check(wanted).expect_err("no machine has that");
            assert!(error.to_string().contains(&wanted.to_string()), "{error}");
        }
    }
}
