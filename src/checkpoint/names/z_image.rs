//! Z-Image's own names: fused `qkv` rows and other words for the same parts.

use super::{TensorInfo, Tensors, thirds};

const QKV: &str = ".attention.qkv.weight";
const WORDS: [(&str, &str); 3] = [
    (".attention.q_norm.", ".attention.norm_q."),
    (".attention.k_norm.", ".attention.norm_k."),
    (".attention.out.", ".attention.to_out.0."),
];
/// Patch size 2, one frame: the only one that is published.
const STEMS: [(&str, &str); 2] = [
    ("x_embedder.", "all_x_embedder.2-1."),
    ("final_layer.", "all_final_layer.2-1."),
];

pub(super) fn detect(tensors: &Tensors) -> bool {
    tensors.contains_key("x_embedder.weight")
        && tensors.contains_key("cap_embedder.1.weight")
        && tensors.keys().any(|name| name.ends_with(QKV))
}

pub(super) fn map(mut info: TensorInfo) -> Vec<TensorInfo> {
    if let Some(block) = info.name.strip_suffix(QKV)
        && info.shape.len() == 2
    {
        let names = ["to_q", "to_k", "to_v"].map(|part| format!("{block}.attention.{part}.weight"));
        return thirds(&info, names).unwrap_or_else(|| vec![info]);
    }
    // Tools of ggml drop outer extents of 1.
    if info.name.ends_with("_pad_token")
        && let [dim] = info.shape[..]
    {
        info.shape = [1, dim].into();
    }
    for (from, to) in STEMS {
        if let Some(rest) = info.name.strip_prefix(from) {
            info.name = format!("{to}{rest}");
        }
    }
    for (from, to) in WORDS {
        info.name = info.name.replace(from, to);
    }
    vec![info]
}
