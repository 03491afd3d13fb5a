"""Copies of the shipped model with other weights, or weights of another type."""
import json, os, shutil, struct

from served import MODEL


def converted_model(folder, dtype):
    """A copy of the shipped model, which is of BF16, as F32 or F16, in `folder`. Returns its path."""
    shutil.copytree(MODEL, folder)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        data = file.read()
    head = int.from_bytes(data[:8], "little")
    table, stored = json.loads(data[8:8 + head]), data[8 + head:]
    floats = bytearray(2 * len(stored))  # the same numbers as f32: two more bytes of 0 before each
    floats[2::4], floats[3::4] = stored[::2], stored[1::2]
    if dtype == "F16":
        floats = struct.pack(f"<{len(stored) // 2}e", *struct.unpack(f"<{len(stored) // 2}f", floats))
    for name, tensor in table.items():
        if name != "__metadata__":
            tensor.update(dtype=dtype, data_offsets=[at * len(floats) // len(stored) for at in tensor["data_offsets"]])
    text = json.dumps(table).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + floats)
    return folder


def turned_model(folder, model=MODEL):
    """A copy of the model in `folder`, under the same name, with the signs of one matrix turned. Returns its path."""
    copy = os.path.join(folder, os.path.basename(os.path.realpath(model)))
    shutil.copytree(model, copy)
    path = os.path.join(copy, "model.safetensors")
    with open(path, "rb") as file:
        data = bytearray(file.read())
    head = int.from_bytes(data[:8], "little")
    table = json.loads(data[8:8 + head])
    name = next(n for n in sorted(table) if n.endswith("down_proj.weight"))
    begin, end = (8 + head + at for at in table[name]["data_offsets"])
    for at in range(begin + 1, end, 2):  # the byte of a bf16 number that has its sign
        data[at] ^= 0x80
    with open(path, "wb") as file:
        file.write(data)
    return copy
