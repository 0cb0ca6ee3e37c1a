use super::{Place, Plan};
use crate::graph::{Graph, Value};

impl Plan {
    /// Finds out which block each live node belongs to, and which weights it reads.
    pub(super) fn find_blocks(&mut self, graph: &Graph) {
        let (mut block, mut last) = (0, None);
        for &index in &self.nodes {
            let node = &graph.nodes()[index];
            let name = block_of(&node.path);
            if last.is_some_and(|last| last != name) {
                block += 1;
            }
            last = Some(name);
            self.blocks.push(block);
            let weight = |value: &Value| match self.place(graph, *value) {
                Some(Place::Weight(weight, _)) => Some(weight),
                _ => None,
            };
            self.node_weights.push(node.inputs.iter().filter_map(weight).collect());
        }
    }
}

/// The block that a path lies in: up to its first number, as `layers.3` of `layers.3.attention`, else its first name.
fn block_of(path: &str) -> &str {
    let mut end = 0;
    for piece in path.split('.') {
        end += piece.len();
        if piece.parse::<u32>().is_ok() {
            return &path[..end];
        }
        end += 1;
    }
    path.split('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::block_of;

    #[test]
    fn a_block_ends_at_its_number() {
        let table = [
            ("layers.3.attention.to_q", "layers.3"),
            ("decoder.up_blocks.0.resnets.1.conv1", "decoder.up_blocks.0"),
            ("cap_embedder.1", "cap_embedder.1"),
            ("all_x_embedder.2-1", "all_x_embedder"),
            ("t_embedder.mlp.0", "t_embedder.mlp.0"),
            ("norm", "norm"),
            ("", ""),
        ];
        for (path, block) in table {
            assert_eq!(block_of(path), block);
        }
    }
}
