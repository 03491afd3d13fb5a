"""Makes tests/gpu/data/text/sentencepiece: a small tokenizer.model and the results of Debian's python3-sentencepiece for it.

    /usr/bin/python3 tests/oracle/text/make_sentencepiece.py      (after make_vectors.mjs, whose texts it takes)
"""
import io
import json
import pathlib
import re

import sentencepiece

out = pathlib.Path(__file__).resolve().parents[2] / "gpu/data/text"
texts = [v["text"] for v in json.loads((out / "qwen_like/vectors.json").read_text())]
texts = [t for t in texts if "\0" not in t]  # Python's binding ends a text there

model = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([line for t in texts for line in t.split("\n") if line.strip()]),
    model_writer=model, model_type="bpe", vocab_size=600, byte_fallback=True, character_coverage=0.98,
    normalization_rule_name="identity", user_defined_symbols=["<mask>"], num_threads=1, minloglevel=2)
folder = out / "sentencepiece"
folder.mkdir(exist_ok=True)
(folder / "tokenizer.model").write_bytes(model.getvalue())
(folder / "tokenizer_config.json").write_text('{"add_bos_token": true, "add_eos_token": false}\n')

processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
lines = []
for text in texts:
    ids, decoded = [], ""
    for part in re.split("(</?s>)", text):  # as LlamaTokenizer: a control symbol is its id, and each part between is a text
        if re.fullmatch("</?s>", part):
            ids.append(processor.piece_to_id(part))
            decoded += part
            continue
        part_ids = processor.encode(part)
        spaced = part_ids and processor.id_to_piece(part_ids[0]).startswith("\u2581")
        decoded += " " * bool(spaced and decoded) + processor.decode(part_ids)  # decode() drops the first space
        ids += part_ids
    lines.append(json.dumps({"text": text, "ids": ids, "decoded": decoded}, ensure_ascii=False))
(folder / "vectors.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
print(len(lines), "texts,", processor.get_piece_size(), "pieces")
