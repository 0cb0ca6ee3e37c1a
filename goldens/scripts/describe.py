"""Name, dtype and shape of every tensor of a safetensors file, without values: describe.py FILE.safetensors > NAME.json"""
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
header.pop("__metadata__", None)
json.dump({"tensors": {k: [v["dtype"], v["shape"]] for k, v in sorted(header.items())}}, sys.stdout, separators=(",", ":"))
