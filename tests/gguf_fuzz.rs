//! Broken GGUF files: whatever the bytes say, there is no panic, and no memory is taken for what is not in the file.

#![expect(
    unsafe_code,
    reason = "an allocator that counts is unsafe to write; it only hands on to the system's"
)]

#[path = "support/gguf.rs"]
mod written;

use proptest::prelude::*;
use rotile::checkpoint::Checkpoint;
use rotile::models::Model;
use rotile::tensor::DType;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use written::{File, list, text};

thread_local! {
    /// Bytes that this thread holds, and the most since it was last asked.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(bytes: isize) {
    // Threads that end still free memory.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + bytes, most.max(now + bytes)));
    });
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most bytes held while `f` ran, above those before.
fn peak<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(|held| {
        let (now, _) = held.get();
        held.set((now, now));
        now
    });
    let result = f();
    let most = HELD.with(|held| held.get().1);
    (result, (most - before) as usize)
}

/// Memory for a file of `bytes`: a described tensor takes 24 bytes or more in the file, and in memory an entry twice over, in its
/// list and in the map of names, and in lists that grow by doubling. Beside it there are messages.
fn allowed(bytes: usize) -> usize {
    32 * bytes + 8192
}

/// Opens a file, and loads what it says it has.
fn open(bytes: &[u8]) {
    let shared: Arc<[u8]> = bytes.into();
    let (opened, most) = peak(|| Checkpoint::from_bytes("a.gguf", shared));
    assert!(
        most <= allowed(bytes.len()),
        "{most} bytes for a file of {}",
        bytes.len()
    );
    let Ok(checkpoint) = opened else { return };
    for info in checkpoint.tensors() {
        let (_, most) = peak(|| checkpoint.load(&info.name, DType::F32));
        // The densest type, Q2_K, has 12 bytes of f32 for each of its own; two copies are alive at a time.
        assert!(
            most <= 32 * info.byte_len() + 8192,
            "{most} bytes for {}",
            info.byte_len()
        );
    }
    if let Some(metadata) = checkpoint.metadata() {
        for (_, value) in metadata.iter() {
            let _ = value.to_string();
        }
    }
    let _ = Model::read(&checkpoint);
}

/// A file with every kind of metadata and several types of tensors, under names of a model.
fn sample() -> Vec<u8> {
    let words = [text("ab"), text(""), text("word")].concat();
    let nested = [list(0, 2, &[5, 6]), list(8, 3, &words)].concat();
    File::new()
        .with_text("general.architecture", "qwen3")
        .with("general.alignment", 4, 32u32.to_le_bytes())
        .with("qwen3.block_count", 4, 1u32.to_le_bytes())
        .with("qwen3.rope.freq_base", 6, 1e6f32.to_le_bytes())
        .with("comfy.gguf.orig_shape.q", 9, list(5, 2, &[8, 0, 0, 0, 8, 0, 0, 0]))
        .with("flag", 7, [1])
        .with("nested", 9, list(9, 2, &nested))
        .with("words", 9, list(8, 3, &words))
        .with("f64", 12, 0.1f64.to_le_bytes())
        .values("token_embd.weight", DType::Q8_0, &[2, 32], &[0.25; 64])
        .values("blk.0.attn_q.weight", DType::Q4_0, &[2, 32], &[0.5; 64])
        .values("blk.0.attn_norm.weight", DType::F32, &[2], &[1.0; 2])
        .values("q", DType::Q5_1, &[2, 32], &[0.5; 64])
        .values("k", DType::Q2K, &[1, 256], &[0.5; 256])
        .tensor("unknown", 99, &[3], vec![1; 5])
        .bytes()
}

#[test]
fn the_counter_counts() {
    let ((), most) = peak(|| drop(std::hint::black_box(vec![0u8; 100_000])));
    assert!((100_000..110_000).contains(&most), "{most}");
}

#[test]
fn the_sample_is_valid() {
    let checkpoint = Checkpoint::from_bytes("a.gguf", sample().into()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(checkpoint.tensors().len(), 6);
}

#[test]
fn every_cut_is_survived() {
    let whole = sample();
    for length in 0..whole.len() {
        open(&whole[..length]);
    }
}

/// Every eight bytes in turn become a number that a careless reader would believe.
#[test]
fn absurd_numbers_are_survived_everywhere() {
    let whole = sample();
    for at in 0..whole.len() - 8 {
        for absurd in [
            0,
            1,
            1u64 << 20,
            1 << 31,
            1 << 32,
            1 << 40,
            (1 << 63) + 1,
            u64::MAX - 31,
            u64::MAX,
        ] {
            let mut bytes = whole.clone();
            bytes[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
            open(&bytes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    #[test]
    fn mutated_files_are_survived(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = sample();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        open(&bytes);
    }

    #[test]
    fn pieces_in_other_places_are_survived(
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        length in 1usize..80,
    ) {
        let mut bytes = sample();
        let (from, to) = (from.index(bytes.len() - length), to.index(bytes.len() - length));
        bytes.copy_within(from..from + length, to);
        open(&bytes);
    }

    #[test]
    fn random_headers_are_survived(
        version in 1u32..5,
        counts in (0u64..6, 0u64..6),
        rest in prop::collection::vec(prop_oneof![4 => Just(0u8), 2 => 0u8..16, 1 => any::<u8>()], 0..400),
    ) {
        let counts = [counts.0.to_le_bytes(), counts.1.to_le_bytes()].concat();
        open(&[&b"GGUF"[..], &version.to_le_bytes(), &counts, &rest].concat());
    }
}
