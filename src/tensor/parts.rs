use super::{Shape, TensorType};

/// Rows of a tensor along its first axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the first row.
    pub first: usize,
    /// Type of these rows alone.
    pub ty: TensorType,
}

impl TensorType {
    /// The tensor in as few parts along its first axis as keep each within `limit` bytes: equal but for the last, which may be
    /// smaller. Every part begins at a whole word. One part where it fits as a whole, and where not even a row fits.
    pub fn parts(&self, limit: u64) -> Vec<Part> {
        let whole = || {
            vec![Part {
                first: 0,
                ty: self.clone(),
            }]
        };
        let Some((&rows, row)) = self.shape.split_first() else {
            return whole();
        };
        if self.byte_len() as u64 <= limit || self.count() == 0 {
            return whole();
        }
        let bytes = self.dtype.bytes(Shape::from(row).count());
        // Rows of bytes or half words begin at a whole word in fours or pairs only.
        let unit = match bytes % 4 {
            0 => 1,
            2 => 2,
            _ => 4,
        };
        let most = usize::try_from(limit).unwrap_or(usize::MAX) / bytes / unit * unit;
        if most == 0 {
            return whole();
        }
        let step = rows.div_ceil(rows.div_ceil(most)).next_multiple_of(unit);
        let part = |first: usize| {
            let mut shape = self.shape.to_vec();
            shape[0] = step.min(rows - first);
            Part {
                first,
                ty: Self::new(self.dtype, shape),
            }
        };
        (0..rows).step_by(step).map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn rows(dtype: DType, shape: &[usize], limit: u64) -> Vec<usize> {
        let parts = TensorType::new(dtype, shape).parts(limit);
        parts.iter().map(|p| p.ty.shape[0]).collect()
    }

    #[test]
    fn parts_are_equal_and_begin_at_words() {
        assert_eq!(rows(DType::F32, &[10, 3], 120), [10]);
        assert_eq!(rows(DType::F32, &[10, 3], 119), [5, 5]);
        assert_eq!(rows(DType::F32, &[10, 3], 59), [4, 4, 2]);
        assert_eq!(rows(DType::F32, &[10, 3], 12), [1; 10]);
        // Rows of six bytes: pairs of them only.
        assert_eq!(rows(DType::BF16, &[7, 3], 29), [4, 3]);
        assert_eq!(rows(DType::BF16, &[7, 3], 12), [2, 2, 2, 1]);
        assert_eq!(rows(DType::F16, &[5], 4), [2, 2, 1]);
    }

    #[test]
    fn what_cannot_be_cut_stays_whole() {
        assert_eq!(rows(DType::F32, &[10, 3], 11), [10]);
        assert_eq!(rows(DType::BF16, &[7, 3], 11), [7]);
        assert_eq!(rows(DType::F32, &[0, 3], 1), [0]);
        assert_eq!(TensorType::new(DType::F32, []).parts(1).len(), 1);
    }

    #[test]
    fn bytes_are_those_of_the_whole() {
        for (dtype, shape) in [(DType::F16, [9, 3]), (DType::F32, [9, 3]), (DType::BF16, [8, 5])] {
            let ty = TensorType::new(dtype, shape);
            for limit in 12..ty.byte_len() as u64 {
                let parts = ty.parts(limit);
                assert_eq!(parts.iter().map(|p| p.ty.byte_len()).sum::<usize>(), ty.byte_len());
                let firsts: Vec<_> = parts
                    .iter()
                    .scan(0, |at, p| Some(std::mem::replace(at, *at + p.ty.shape[0])))
                    .collect();
                assert_eq!(parts.iter().map(|p| p.first).collect::<Vec<_>>(), firsts);
            }
        }
    }
}
