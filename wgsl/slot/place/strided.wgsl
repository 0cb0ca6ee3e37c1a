// place = strided: an index is taken apart into AXES coordinates; stride 0 repeats
override AXES: u32 = 6;

fn place(i: u32) -> vec3<u32> {
    var rest = i;
    var at = vec3(0u);
    if AXES > 1u {
        at += rest % params.n0 * vec3(params.a0, params.b0, params.c0);
        rest /= params.n0;
    } else { return rest * vec3(params.a0, params.b0, params.c0); }
    if AXES > 2u {
        at += rest % params.n1 * vec3(params.a1, params.b1, params.c1);
        rest /= params.n1;
    } else { return at + rest * vec3(params.a1, params.b1, params.c1); }
    if AXES > 3u {
        at += rest % params.n2 * vec3(params.a2, params.b2, params.c2);
        rest /= params.n2;
    } else { return at + rest * vec3(params.a2, params.b2, params.c2); }
    if AXES > 4u {
        at += rest % params.n3 * vec3(params.a3, params.b3, params.c3);
        rest /= params.n3;
    } else { return at + rest * vec3(params.a3, params.b3, params.c3); }
    if AXES > 5u {
        at += rest % params.n4 * vec3(params.a4, params.b4, params.c4);
        rest /= params.n4;
    } else { return at + rest * vec3(params.a4, params.b4, params.c4); }
    return at + rest * vec3(params.a5, params.b5, params.c5);
}
