//! Whether the machine has room.

use crate::error::{Error, Result};

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
    fn a_little_fits_and_an_absurdity_does_not() {
        check(1 << 20).expect("a mebibyte");
        for wanted in [1 << 50, u64::MAX] {
            let error = check(wanted).expect_err("no machine has that");
            assert!(error.to_string().contains(&wanted.to_string()), "{error}");
        }
    }
}
