// place = same: all operands have the shape of the output
fn place(i: u32) -> vec3<u32> { return vec3(i); }
