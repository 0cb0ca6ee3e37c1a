//! Sequences of locks, casts and moves, as a table: the state after every step is written out, `=` where nothing has changed.

use crate::steps::Step::*;
use crate::steps::{Run, run};
use rotile::memory::residency::Home::{Device, Host};
use rotile::memory::residency::Residency;
use rotile::tensor::DType::{self, BF16, F16, F32};

const ALL: &[usize] = &[0, 1, 2, 3, 4];
const A: usize = 0;
const B: usize = 1;
const BIAS: usize = 2;
const Q: usize = 3;
/// All of `A`, under another name.
const TIED: usize = 4;

#[test]
fn a_cast_is_put_back_by_the_last_unlock_only() {
    run(
        Residency::keeping(),
        &[
            (
                Lock(Device, ALL),
                "a - f32#0, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 260]",
            ),
            // Counted bytes stay, real ones do not. The other name of `a` is cast with it.
            (
                Cast(0, A, F16),
                "a - f16#4, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 196]",
            ),
            (Cast(0, TIED, F16), "="),
            (
                Cast(0, BIAS, F32),
                "a - f16#4, b - bf16#1, bias - f32#5, q - q8_0#3, [0, 260] [0, 212]",
            ),
            // Packed weights are never cast, nor is anything cast to them.
            (Fails(&Cast(0, Q, F16), "q8_0 and cannot be cast"), "="),
            (Fails(&Cast(0, A, DType::Q8_0), "cannot be cast to q8_0"), "="),
            (Fails(&Cast(0, 5, F16), "no weight 5: the lock holds 5"), "="),
            // A nested lock brings nothing, sees the casts, may cast too, and its unlock puts nothing back.
            (Lock(Device, &[TIED, B]), "="),
            (
                Cast(1, 1, F32),
                "a - f16#4, b - f32#6, bias - f32#5, q - q8_0#3, [0, 260] [0, 260]",
            ),
            (Unlock(1, &[]), "="),
            (Again(0), "="),
            (Unlock(0, &[]), "="),
            (
                Cast(2, A, BF16),
                "a - bf16#7, b - f32#6, bias - f32#5, q - q8_0#3, [0, 260] [0, 260]",
            ),
            (
                Unlock(2, &[]),
                "a - f32#8, b - bf16#9, bias - f16#10, q - q8_0#3, [0, 260] [0, 260]",
            ),
            // Kept: the next lock brings nothing.
            (Lock(Device, ALL), "="),
            (Drop(3), "="),
            (Release, "a - -, b - -, bias - -, q - -, [0, 0] [0, 0]"),
        ],
    );
}

#[test]
fn weights_are_put_back_wherever_they_sit() {
    run(
        Residency::keeping(),
        &[
            (
                Lock(Device, ALL),
                "a - f32#0, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 260]",
            ),
            (
                Cast(0, A, F16),
                "a - f16#4, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 196]",
            ),
            // A part of the set goes; a cast goes with it.
            (
                Offload(0, &[TIED, BIAS, Q]),
                "a f16#5 -, b - bf16#1, bias f16#6 -, q q8_0#7 -, [212, 48] [148, 48]",
            ),
            (
                Cast(0, BIAS, F32),
                "a f16#5 -, b - bf16#1, bias f32#8 -, q q8_0#7 -, [212, 48] [164, 48]",
            ),
            // What is back leaves a copy on the host, but for a cast one: no type but the loaded one is kept.
            (
                Reload(0, &[Q, BIAS]),
                "a f16#5 -, b - bf16#1, bias - f32#9, q q8_0#7 q8_0#10, [196, 132] [132, 148]",
            ),
            (
                Unlock(0, &[]),
                "a f32#11 -, b - bf16#1, bias - f16#12, q q8_0#7 q8_0#10, [196, 132] [196, 132]",
            ),
        ],
    );
}

#[test]
fn a_copy_on_the_host_is_what_a_weight_goes_back_to() {
    let mut run = Run::new(Residency::keeping());
    let steps = [
        (
            Lock(Host, ALL),
            "a f32#0 -, b bf16#1 -, bias f16#2 -, q q8_0#3 -, [260, 0] [260, 0]",
            0,
        ),
        (
            Unlock(0, &[]),
            "a f32#0 -, b bf16#1 -, bias f16#2 -, q q8_0#3 -, [260, 0] [260, 0]",
            0,
        ),
        // Nothing is read again from the file.
        (
            Lock(Device, &[A, B]),
            "a f32#0 f32#4, b bf16#1 bf16#5, bias f16#2 -, q q8_0#3 -, [260, 176] [260, 176]",
            2,
        ),
        (
            Cast(1, 0, F16),
            "a f32#0 f16#6, b bf16#1 bf16#5, bias f16#2 -, q q8_0#3 -, [260, 176] [260, 112]",
            3,
        ),
        // There is a copy already: that it is from now on.
        (
            Offload(1, &[1]),
            "a f32#0 f16#6, b bf16#1 -, bias f16#2 -, q q8_0#3 -, [260, 128] [260, 64]",
            3,
        ),
        (
            Reload(1, &[1]),
            "a f32#0 f16#6, b bf16#1 bf16#7, bias f16#2 -, q q8_0#3 -, [260, 176] [260, 112]",
            4,
        ),
        // The cast stays behind.
        (
            Offload(1, &[0]),
            "a f32#0 -, b bf16#1 bf16#7, bias f16#2 -, q q8_0#3 -, [260, 48] [260, 48]",
            4,
        ),
        (
            Reload(1, &[0]),
            "a f32#0 f32#8, b bf16#1 bf16#7, bias f16#2 -, q q8_0#3 -, [260, 176] [260, 176]",
            5,
        ),
        (
            Cast(1, 0, BF16),
            "a f32#0 bf16#9, b bf16#1 bf16#7, bias f16#2 -, q q8_0#3 -, [260, 176] [260, 112]",
            6,
        ),
        (
            Unlock(1, &[]),
            "a f32#0 f32#10, b bf16#1 bf16#7, bias f16#2 -, q q8_0#3 -, [260, 176] [260, 176]",
            7,
        ),
    ];
    for (step, want, from_host) in steps {
        run.step(&step).expect("nothing fails");
        assert_eq!(run.state(), want, "{step:?}");
        assert_eq!(*run.world.from_host.lock().expect("no panic"), from_host, "{step:?}");
    }
}

#[test]
fn what_cannot_be_put_back_is_dropped_and_brought_again() {
    run(
        Residency::keeping(),
        &[
            (
                Lock(Device, ALL),
                "a - f32#0, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 260]",
            ),
            (
                Cast(0, A, F16),
                "a - f16#4, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 196]",
            ),
            (
                Cast(0, B, F16),
                "a - f16#4, b - f16#5, bias - f16#2, q - q8_0#3, [0, 260] [0, 196]",
            ),
            (Break(A, Device), "="),
            // A cast that fails leaves the copy there.
            (Fails(&Cast(0, TIED, BF16), "no `a`"), "="),
            (
                Unlock(0, &["a"]),
                "a - -, b - bf16#6, bias - f16#2, q - q8_0#3, [0, 132] [0, 132]",
            ),
            // All or nothing: `b` alone would be there.
            (Release, "a - -, b - -, bias - -, q - -, [0, 0] [0, 0]"),
            (Fails(&Lock(Device, &[B, TIED]), "no `a[0:0..4]`"), "="),
            (Mend, "="),
            (
                Lock(Device, &[TIED, A]),
                "a - f32#8, b - -, bias - -, q - -, [0, 128] [0, 128]",
            ),
            (Unlock(1, &[]), "="),
        ],
    );
}

#[test]
fn a_move_that_fails_moves_nothing() {
    run(
        Residency::keeping(),
        &[
            (
                Lock(Device, ALL),
                "a - f32#0, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 260]",
            ),
            (Break(BIAS, Host), "="),
            (Fails(&Offload(0, ALL), "no `bias`"), "="),
            (
                Offload(0, &[A, B]),
                "a f32#6 -, b bf16#7 -, bias - f16#2, q - q8_0#3, [176, 84] [176, 84]",
            ),
            (Break(B, Device), "="),
            (Fails(&Reload(0, ALL), "no `b`"), "="),
            // A lock on the other home holds too.
            (Lock(Host, &[A]), "="),
            (Unlock(0, &[]), "="),
            (Fails(&Reassign(&[Q, TIED], Host), "`a` is in use"), "="),
            (Fails(&Reassign(&[Q, BIAS, B], Host), "no `bias`"), "="),
            (
                Reassign(&[Q, B], Host),
                "a f32#6 -, b bf16#7 -, bias - f16#2, q q8_0#10 -, [244, 16] [244, 16]",
            ),
            (Mend, "="),
            (Unlock(1, &[]), "="),
            (
                Reassign(ALL, Device),
                "a - f32#11, b - bf16#12, bias - f16#2, q - q8_0#13, [0, 260] [0, 260]",
            ),
        ],
    );
}

#[test]
fn the_smallest_goes_first_and_no_more_than_needed() {
    run(
        Residency::keeping(),
        &[
            (
                Lock(Device, ALL),
                "a - f32#0, b - bf16#1, bias - f16#2, q - q8_0#3, [0, 260] [0, 260]",
            ),
            (Evict(Device, 300), "="),
            (Lock(Device, &[B]), "="),
            (Unlock(0, &[]), "="),
            (Evict(Device, 40), "="),
            (
                Evict(Device, 56),
                "a - f32#0, b - bf16#1, bias - -, q - q8_0#3, [0, 244] [0, 244]",
            ),
            (Evict(Host, 300), "="),
            (
                Evict(Device, 57),
                "a - f32#0, b - bf16#1, bias - -, q - -, [0, 176] [0, 176]",
            ),
            (
                Evict(Device, 300),
                "a - -, b - bf16#1, bias - -, q - -, [0, 48] [0, 48]",
            ),
            // What a holder has moved away is not idle.
            (Offload(1, &[0]), "a - -, b bf16#4 -, bias - -, q - -, [48, 0] [48, 0]"),
            (Evict(Host, 300), "="),
            (Discard(1), "a - -, b - -, bias - -, q - -, [0, 0] [0, 0]"),
        ],
    );
}

#[test]
fn without_keeping_a_copy_goes_with_its_last_lock() {
    run(
        Residency::new(),
        &[
            (
                Lock(Device, &[A, B]),
                "a - f32#0, b - bf16#1, bias - -, q - -, [0, 176] [0, 176]",
            ),
            (Lock(Device, &[TIED]), "="),
            (
                Lock(Host, &[A]),
                "a f32#2 f32#0, b - bf16#1, bias - -, q - -, [128, 176] [128, 176]",
            ),
            (
                Cast(1, 0, F16),
                "a f32#2 f16#3, b - bf16#1, bias - -, q - -, [128, 176] [128, 112]",
            ),
            (Drop(0), "a f32#2 f16#3, b - -, bias - -, q - -, [128, 128] [128, 64]"),
            // No second lock: it may be moved, and stays when the lock on the other home goes.
            (Offload(1, &[0]), "a f32#2 -, b - -, bias - -, q - -, [128, 0] [128, 0]"),
            (Drop(2), "="),
            (Reload(1, &[0]), "a - f32#4, b - -, bias - -, q - -, [0, 128] [0, 128]"),
            (Lock(Device, &[A]), "="),
            (Fails(&Offload(1, &[0]), "`a` is in use"), "="),
            (Drop(1), "="),
            (Unlock(3, &[]), "a - -, b - -, bias - -, q - -, [0, 0] [0, 0]"),
            // What has been assigned waits for its lock.
            (
                Reassign(&[B], Host),
                "a - -, b bf16#5 -, bias - -, q - -, [48, 0] [48, 0]",
            ),
            (Lock(Host, &[B]), "="),
            (Unlock(4, &[]), "a - -, b - -, bias - -, q - -, [0, 0] [0, 0]"),
        ],
    );
}
