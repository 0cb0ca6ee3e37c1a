// Grids over the workgroup limit wrap from x into y; this undoes it.
fn flat_group(group: vec3<u32>, groups: vec3<u32>) -> u32 { return group.y * groups.x + group.x; }
