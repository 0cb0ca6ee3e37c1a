// The f16 in the lower half of a word, without the f16 feature. Devices may flush subnormals when they unpack them; the scales of
// small weights are subnormal.
fn half(bits: u32) -> f32 {
    let small = f32(bits & 0x3ffu) * 5.9604644775390625e-8;
    let signed = select(small, -small, (bits & 0x8000u) != 0u);
    return select(unpack2x16float(bits).x, signed, (bits & 0x7c00u) == 0u);
}
