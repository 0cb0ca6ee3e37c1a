"""Takes from what gen_convrot.py and gen_convrot_fixtures.py make what the tests use: `pick_convrot.py VECTORS REFERENCE`.
Standard library only."""
import json, pathlib, struct, sys

# Of H256 every 15th row is kept, which meets every value of both digits; the rest is in the one-hot rotation and in its formula.
ROWS = range(0, 256, 15)
LEFT = {"rotation": ("bf16",),
        "weight_quant": ("ref64.", "stochastic", "dequant_simple", "dequant_f32.f32.g16", "dequant_f32.f32.g64"),
        "linear": ("bf16", "F_linear_qt.f16"),
        "q8_0": ("in.", "ref64.", "gguf.", "q8.W", "q8.blob", "q8.scale")}

def read(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", None)
    body = data[8 + size:]
    return {n: (t["dtype"], t["shape"], body[slice(*t["data_offsets"])]) for n, t in header.items()}, metadata

def write(path, tensors, metadata):
    header, body = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, data) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)

def main(vectors, reference):
    target = reference / "convrot"
    target.mkdir(exist_ok=True)
    tensors, metadata = read(vectors / "hadamard.safetensors")
    dtype, (rows, cols), data = tensors.pop("ck.H256")
    tensors["ck.H256.rows"] = (dtype, [len(ROWS), cols], b"".join(data[4 * cols * r:4 * cols * (r + 1)] for r in ROWS))
    write(target / "hadamard.safetensors", tensors, metadata)
    for name, left in LEFT.items():
        tensors, metadata = read(vectors / f"{name}.safetensors")
        kept = {n: t for n, t in tensors.items() if not any(part in n for part in left)}
        write(target / f"{name}.safetensors", kept, metadata)
    for kind in ("valid", "malformed"):
        (target / "fixtures" / kind).mkdir(parents=True, exist_ok=True)
        for file in sorted((vectors / "fixtures" / kind).glob("*.safetensors")):
            (target / "fixtures" / kind / file.name).write_bytes(file.read_bytes())
    expected = "fixtures/expected_native_g256.safetensors"
    (target / expected).write_bytes((vectors / expected).read_bytes())

main(*map(pathlib.Path, sys.argv[1:]))
