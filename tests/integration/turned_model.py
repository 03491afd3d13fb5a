"""Other weights of the same shape, for tests of weight updates."""
import json, os, shutil

from served import MODEL


def turned_model(folder):
    """A copy of the shipped model in `folder`, under the same name, with the signs of one matrix turned. Returns its path."""
    copy = os.path.join(folder, os.path.basename(os.path.realpath(MODEL)))
    shutil.copytree(MODEL, copy)
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
