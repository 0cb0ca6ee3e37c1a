// The kernel of everything that goes element by element: invocations make PER elements each, WG apart.
// The caller has `count` in its `Params` and declares
//   fn make(i: u32), which makes element i.
//
// use lib/index                             flat_group

override WG: u32 = 64;
override PER: u32 = 4;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = flat_group(group, groups) * (WG * PER) + lane;
    for (var k = 0u; k < PER; k++) {
        let i = start + k * WG;
        if i >= params.count { return; }
        make(i);
    }
}
