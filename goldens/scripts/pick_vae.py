"""Takes from the fixtures of gen_vae.py what the tests use: `pick_vae.py FIXTURES REFERENCE`. Standard library only.

The weights are kept once, in diffusers' layout. `original.json` says how the original files are made of the same bytes: for each
tensor the name in the original file, the name in diffusers' and the shape in the original file. Tensors are matched by their
bytes, not by any key map.
"""
import json, pathlib, shutil, struct, sys

NAMES = ["vae_sd15", "vae_sdxl", "vae_cogview4", "vae_flux2", "vae_taesd", "vae_taef1", "vae_qwenimage"]
KEPT = {"decode.latents", "decode.latents_packed", "decode.latents_normalized", "decode.image", "decode1.image",
        "encode.latents", "encode.latents_packed", "encode.image", "encode1.image", "encode1.mean"}

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

def main(fixtures, reference):
    for name in NAMES:
        source, target = fixtures / name, reference / name
        target.mkdir(exist_ok=True)
        for file in ("config.json", "diffusion_pytorch_model.safetensors"):
            shutil.copyfile(source / file, target / file)
        io, metadata = read(source / "io.safetensors")
        write(target / "io.safetensors", {n: t for n, t in io.items() if n in KEPT}, metadata)
        weights, _ = read(source / "diffusion_pytorch_model.safetensors")
        files = {}
        for file in sorted(source.glob("original*.safetensors")):
            left = dict(weights)
            made = {}
            for key, (dtype, shape, data) in read(file)[0].items():
                squeezed = [n for n in shape if n != 1]
                made_of = [n for n, t in left.items() if t[0] == dtype and t[2] == data and [e for e in t[1] if e != 1] == squeezed]
                left.pop(made_of[0])
                made[key] = [made_of[0], shape]
            files[file.name] = made
        (target / "original.json").write_text(json.dumps(files, separators=(",", ":"), sort_keys=True).replace("],", "],\n") + "\n")

if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
