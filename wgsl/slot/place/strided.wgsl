// place = strided: an index is taken apart into AXES coordinates; stride 0 repeats.
// A remainder is computed from its quotient, since divisions are slow.
override AXES: u32 = 6;

fn place(i: u32) -> vec3<u32> {
    var rest = i;
    var at = vec3(0u);
    var next = 0u;
    if AXES == 1u { return rest * vec3(params.a0, params.b0, params.c0); }
    next = rest / params.n0;
    at += (rest - next * params.n0) * vec3(params.a0, params.b0, params.c0);
    rest = next;
    if AXES == 2u { return at + rest * vec3(params.a1, params.b1, params.c1); }
    next = rest / params.n1;
    at += (rest - next * params.n1) * vec3(params.a1, params.b1, params.c1);
    rest = next;
    if AXES == 3u { return at + rest * vec3(params.a2, params.b2, params.c2); }
    next = rest / params.n2;
    at += (rest - next * params.n2) * vec3(params.a2, params.b2, params.c2);
    rest = next;
    if AXES == 4u { return at + rest * vec3(params.a3, params.b3, params.c3); }
    next = rest / params.n3;
    at += (rest - next * params.n3) * vec3(params.a3, params.b3, params.c3);
    rest = next;
    if AXES == 5u { return at + rest * vec3(params.a4, params.b4, params.c4); }
    next = rest / params.n4;
    at += (rest - next * params.n4) * vec3(params.a4, params.b4, params.c4);
    return at + next * vec3(params.a5, params.b5, params.c5);
}
