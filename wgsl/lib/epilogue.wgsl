// What a matmul or convolution does to a finished sum before it stores it.
//
// use act                                   act
// use bias                                  add_bias
// use residual                              add_residual
// use scale                                 scale_sum

// `i` is the index of the element in the output, `j` its output channel.
fn epilogue(sum: f32, i: u32, j: u32) -> f32 { return add_residual(act(add_bias(scale_sum(sum, j), j)), i, j); }
