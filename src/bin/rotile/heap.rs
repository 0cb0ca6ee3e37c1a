//! The C library's heap, which buffers of a software adapter and tensors of the CPU come from.

/// Larger pieces of memory come from the system one by one, and go back to it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: i32 = 1 << 20;

/// Has large pieces given back to the system as soon as they are free. Without this, glibc takes the first of up to 32 MiB that is
/// freed as a sign that more of that size are to come from the heap, where they stay: a decode in tiles then held up to 70 MiB more.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "a function of the C library")]
    // SAFETY: it sets a number, and no other thread runs yet.
    unsafe {
        // A refusal changes nothing.
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
