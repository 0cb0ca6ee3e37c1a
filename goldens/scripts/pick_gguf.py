"""Takes from the fixtures of gen_gguf.py what the tests use: `pick_gguf.py FIXTURES REFERENCE`. Standard library only."""
import pathlib, shutil, sys

from pick_vae import read, write

TYPES = {"Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}

def main(fixtures, reference):
    source, target = fixtures / "gguf", reference / "gguf"
    target.mkdir(exist_ok=True)
    for file in ("zimage_tiny.gguf", "zimage_tiny_io.safetensors"):
        shutil.copyfile(source / file, target / file)
    blocks, metadata = read(source / "blocks.safetensors")
    write(target / "blocks.safetensors", {n: t for n, t in blocks.items() if n.split(".")[0] in TYPES | {"source_f32"}}, metadata)

if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
