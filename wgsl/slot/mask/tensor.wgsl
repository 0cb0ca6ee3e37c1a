// mask = tensor: added to the scores; `Params` has its strides, zero along axes of one element
@group(0) @binding(5) var<storage, read> mask: array<f32>;

fn mask_at(b: u32, h: u32, i: u32, j: u32) -> f32 {
    return mask[b * params.mask_b + h * params.mask_h + i * params.mask_i + j];
}
