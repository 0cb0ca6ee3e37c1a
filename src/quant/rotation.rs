//! temporary
pub fn rotate(row: &mut [f32], group: usize) {
    for block in row.chunks_exact_mut(group) {
        let mut s = 1;
        while s < group {
            for b in (0..group).step_by(4 * s) {
                for i in b..b + s {
                    let [a, bb, c, d] = [block[i], block[i + s], block[i + 2 * s], block[i + 3 * s]];
                    block[i] = (((a + bb) + c) - d) * 0.5;
                    block[i + s] = (((a + bb) - c) + d) * 0.5;
                    block[i + 2 * s] = (((a - bb) + c) + d) * 0.5;
                    block[i + 3 * s] = (((bb - a) + c) + d) * 0.5;
                }
            }
            s *= 4;
        }
    }
}
pub fn quantize_row(row: &[f32]) -> (Vec<i8>, f32) {
    let s = (row.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0).max(1e-30);
    (
        row.iter()
            .map(|v| (v / s).round_ties_even().clamp(-127.0, 127.0) as i8)
            .collect(),
        s,
    )
}
