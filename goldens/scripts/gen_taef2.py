"""A small random autoencoder with the layers of TAEF2, and what it computes: `gen_taef2.py REFERENCE`. Standard library only, in f64.

Written from the description of its layers, not from anybody's code:
  block(x): with `pool`: x += conv1x1(relu(group_norm(4 groups, eps 1e-5)(conv1x1(x)))), no biases;
            then relu(conv3(relu(conv3(relu(conv3(x))))) + x)
  encoder 0..14: conv3; block; [conv3 stride 2 without bias; three blocks] x3, the last three with pool; conv3
  decoder 0..19: tanh(z / 3) * 3; conv3; relu; [three blocks, the first three with pool; nearest x2; conv3 without bias] x3; block; conv3
"""
import json, math, pathlib, random, struct, sys

C, WIDE, LATENT, SIZE = 8, 16, 4, (24, 32)
SEED = 240
rng = random.Random(SEED)
weights = {}

def half(v):
    return struct.unpack("<e", struct.pack("<e", v))[0]

def weight(name, *shape):
    count, fan = math.prod(shape), math.prod(shape[1:])
    scale = 1.2 / math.sqrt(fan) if len(shape) > 1 else 0.1
    values = [half(rng.gauss(0, 1) * scale) for _ in range(count)]
    if name.endswith("pool.1.weight"): values = [half(1 + v) for v in values]
    weights[name] = (shape, values)

def conv_weights(name, out, inp, k, bias):
    weight(f"{name}.weight", out, inp, k, k)
    if bias: weight(f"{name}.bias", out)

def block_weights(name, pool):
    for i in (0, 2, 4): conv_weights(f"{name}.conv.{i}", C, C, 3, True)
    if pool:
        conv_weights(f"{name}.pool.0", WIDE, C, 1, False)
        weight(f"{name}.pool.1.weight", WIDE); weight(f"{name}.pool.1.bias", WIDE)
        conv_weights(f"{name}.pool.3", C, WIDE, 1, False)

# A picture is a list of channels, each a list of rows.
def conv(name, x, stride=1):
    (out, inp, k, _), w = weights[f"{name}.weight"]
    bias = weights.get(f"{name}.bias", (None, [0.0] * out))[1]
    h, wide, p = len(x[0]), len(x[0][0]), k // 2
    zero = [0.0] * (wide + 2 * p)
    padded = [[zero] * p + [[0.0] * p + row + [0.0] * p for row in c] + [zero] * p for c in x]
    y = []
    for o in range(out):
        plane = []
        for r in range(0, h, stride):
            row = [bias[o]] * (wide // stride)
            for i in range(inp):
                for a in range(k):
                    line = padded[i][r + a]
                    for b in range(k):
                        f = w[((o * inp + i) * k + a) * k + b]
                        row = [v + f * line[c * stride + b] for c, v in enumerate(row)]
            plane.append(row)
        y.append(plane)
    return y

def each(f, *xs):
    return [[[f(*v) for v in zip(*rows)] for rows in zip(*planes)] for planes in zip(*xs)]

def relu(x):
    return each(lambda v: max(v, 0.0), x)

def group_norm(name, x):
    gain, offset = weights[f"{name}.weight"][1], weights[f"{name}.bias"][1]
    n, y = len(x) // 4, []
    for g in range(4):
        values = [v for c in x[g * n:(g + 1) * n] for row in c for v in row]
        mean = sum(values) / len(values)
        scale = 1 / math.sqrt(sum((v - mean) ** 2 for v in values) / len(values) + 1e-5)
        for c in range(g * n, (g + 1) * n):
            y.append([[(v - mean) * scale * gain[c] + offset[c] for v in row] for row in x[c]])
    return y

def block(name, x):
    if f"{name}.pool.0.weight" in weights:
        h = relu(group_norm(f"{name}.pool.1", conv(f"{name}.pool.0", x)))
        x = each(lambda a, b: a + b, x, conv(f"{name}.pool.3", h))
    h = relu(conv(f"{name}.conv.0", x))
    h = relu(conv(f"{name}.conv.2", h))
    return relu(each(lambda a, b: a + b, conv(f"{name}.conv.4", h), x))

def double(x):
    return [[[v for v in row for _ in (0, 1)] for row in c for _ in (0, 1)] for c in x]

def make():
    conv_weights("encoder.0", C, 3, 3, True); block_weights("encoder.1", False)
    for s in range(3):
        conv_weights(f"encoder.{2 + 4 * s}", C, C, 3, False)
        for i in range(3): block_weights(f"encoder.{3 + 4 * s + i}", s == 2)
    conv_weights("encoder.14", LATENT, C, 3, True)
    conv_weights("decoder.1", C, LATENT, 3, True)
    for s in range(3):
        for i in range(3): block_weights(f"decoder.{3 + 5 * s + i}", s == 0)
        conv_weights(f"decoder.{7 + 5 * s}", C, C, 3, False)
    block_weights("decoder.18", False); conv_weights("decoder.19", 3, C, 3, True)

def encode(x):
    x = block("encoder.1", conv("encoder.0", x))
    for s in range(3):
        x = conv(f"encoder.{2 + 4 * s}", x, 2)
        for i in range(3): x = block(f"encoder.{3 + 4 * s + i}", x)
    return conv("encoder.14", x)

def decode(z):
    x = relu(conv("decoder.1", each(lambda v: math.tanh(v / 3) * 3, z)))
    for s in range(3):
        for i in range(3): x = block(f"decoder.{3 + 5 * s + i}", x)
        x = conv(f"decoder.{7 + 5 * s}", double(x))
    return conv("decoder.19", block("decoder.18", x))

def write(path, tensors, code, dtype, metadata):
    header, body = {"__metadata__": metadata}, b""
    for name, (shape, values) in sorted(tensors.items()):
        data = struct.pack(f"<{len(values)}{code}", *values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)

def main(reference):
    target = reference / "vae_taef2"
    target.mkdir(exist_ok=True)
    make()
    single = lambda v: struct.unpack("<f", struct.pack("<f", v))[0]
    noise = lambda f, c, h, w: [[[single(f()) for _ in range(w)] for _ in range(h)] for _ in range(c)]
    image = noise(lambda: rng.uniform(0, 1), 3, *SIZE)
    latent = noise(lambda: rng.gauss(0, 1.5), LATENT, SIZE[0] // 8, SIZE[1] // 8)
    flat = lambda x: ((1, len(x), len(x[0]), len(x[0][0])), [v for c in x for row in c for v in row])
    signed = lambda x: each(lambda v: 2 * v - 1, x)
    io = {"encode.image": flat(signed(image)), "encode.latents": flat(encode(image)),
          "decode.latents": flat(latent), "decode.image": flat(signed(decode(latent)))}
    note = {"note": "pictures in -1..1, as in the fixtures of diffusers; computed in f64", "seed": str(SEED)}
    write(target / "io.safetensors", io, "f", "F32", note)
    write(target / "original.safetensors", weights, "e", "F16", {"seed": str(SEED)})

main(pathlib.Path(sys.argv[1]))
