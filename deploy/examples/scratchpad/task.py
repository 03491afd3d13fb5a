"""The scratchpad task: column addition with written working. Plain Python; nothing here needs torch.

A prompt names its terms, zero-padded to the width of the work, and the response works through them:

    prompt     A047 B083 C012 sum\\n
    response   work\\n                                            plan: work | careful | twice
               A047 B\\n                                          first running total, and the next label
               B083 C+047: 3+7+0=10 8+4+1=13 0+0+1=01=130\\n      units first; the third operand is the carry
               C012 sum+130: 2+0+0=02 1+3+0=04 0+1+0=01=142\\n    `sum` in place of a label: no term is left
               ans 142

Each line first copies its stretch of the prompt, up to and including the label that follows. So the next line's
label is always in the line before it, and a response keeps its place without counting.

What makes lengths differ within a group: `careful` works some lines again and `twice` all of them (`check`, the
line once more, then `ok` or `no`), and a wrong column may be noticed (`wait`, then the line starts over).

A second verb, `list`, asks for the copied heads alone. It is a drill for training: a model learns early to find a
term by its label, which sums alone teach it too slowly.
"""
import json
import os
import random
import re

PLANS = ("work", "careful", "twice")
VERBS = ("sum", "list")
WORDS = PLANS + ("wait", "check", "ok", "no", "ans") + VERBS
MAX_TERMS = 20

# How demonstrations behave. Shares are of responses, the other numbers are chances.
SHORT_TERMS = 3                        # a sum of at most this many terms counts as short
PLAN_SHARES_SHORT = (0.80, 0.12, 0.08)  # in the order of PLANS
PLAN_SHARES = (0.45, 0.33, 0.22)
CHECK = {"work": 0.0, "careful": 0.4, "twice": 1.0}  # that a finished line is worked again
SLIP = 0.04                            # that a line holds one wrong column
NOTICE = 0.6                           # that a wrong column is noticed at once


# ---- Prompts ---------------------------------------------------------------------------------------------------

def column_count(terms):
    """Digits that the running total may need: at most 10 terms of d digits fit d + 1 digits, more need d + 2."""
    return len(str(terms[0])) + (1 if len(terms) <= 10 else 2)


def prompt_text(terms, verb="sum"):
    width = column_count(terms)
    return " ".join(f"{chr(65 + i)}{t:0{width}d}" for i, t in enumerate(terms)) + f" {verb}\n"


def make_terms(rng, max_terms=MAX_TERMS):
    """All terms have the same number of digits. Their count is log-uniform, so the work is heavy-tailed."""
    digits = rng.randint(1, 3)
    count = round(2 * (max_terms / 2) ** rng.random())
    return [rng.randint(10 ** (digits - 1), 10 ** digits - 1) for _ in range(count)]


def terms_of(prompt):
    """The terms that a prompt names, or None if it is not a prompt of this task."""
    if not re.fullmatch(r"([A-Z]\d+ )+(sum|list)\n?", prompt):
        return None
    return [int(word[1:]) for word in prompt.split()[:-1]]


# ---- Checking --------------------------------------------------------------------------------------------------

def answer_is_right(response, answer):
    """Only the last line counts, and it has to be exactly `ans N`. The working may be anything."""
    return response.rstrip("\n").split("\n")[-1] == f"ans {answer}"


# ---- Worked demonstrations -------------------------------------------------------------------------------------
# A demonstration is a list of lines and a line a list of (text, learn) pieces. learn is False for a slip alone:
# it is there so that the model learns to notice slips and to go on after one, not to make them.

def heads(terms, verb="sum"):
    """`A047 B`, `B083 C`, `C012 sum`: what each line copies from the prompt."""
    words = prompt_text(terms, verb).split()
    return [f"{word} {following[0] if following != verb else verb}" for word, following in zip(words, words[1:])]


def list_drill(terms):
    return [[(head + "\n", True)] for head in heads(terms, "list")]


def slipped(rng, column_sum):
    near = column_sum + rng.choice((-2, -1, 1, 2))
    return min(19, max(0, near)) if rng.random() < 0.7 else rng.randint(0, 19)


def add_line(rng, head, term, total, width):
    """One addition. Returns (line, result); the result is None where a slip was noticed and the line given up."""
    slip_at = rng.randrange(width) if rng.random() < SLIP else None
    line, text, carry, result = [], f"{head}+{total:0{width}d}:", 0, 0
    for i in range(width):
        a, b = term // 10 ** i % 10, total // 10 ** i % 10
        right = written = a + b + carry
        text += f" {a}+{b}+{carry}="
        if i == slip_at:
            written = slipped(rng, right)
        if written == right:
            text += f"{written:02d}"
        else:
            line += [(text, True), (f"{written:02d}", False)]
            text = ""
            if rng.random() < NOTICE:
                return line + [(" wait\n", True)], None
        carry, result = written // 10, result + written % 10 * 10 ** i
    return line + [(f"{text}={result:0{width}d}\n", True)], result


def demonstrate(rng, terms, plan=None):
    """A worked response as a list of lines. It may end wrong, like the samples of the model that learns from it."""
    shares = PLAN_SHARES_SHORT if len(terms) <= SHORT_TERMS else PLAN_SHARES
    plan = plan or rng.choices(PLANS, shares)[0]
    width, head_of = column_count(terms), heads(terms)
    lines, total = [[(plan + "\n", True)], [(head_of[0] + "\n", True)]], terms[0]

    def say(word):
        lines.append([(word + "\n", True)])

    def work(i):
        result = None
        while result is None:
            line, result = add_line(rng, head_of[i], terms[i], total, width)
            lines.append(line)
        return result

    for i in range(1, len(terms)):
        result = work(i)
        while rng.random() < CHECK[plan]:
            say("check")
            agrees = work(i) == result
            say("ok" if agrees else "no")
            if agrees:
                break
            result = work(i)
        total = result
    return lines + [[(f"ans {total}", True)]]


def text_of(lines):
    return "".join(text for line in lines for text, _ in line)


# ---- Tokenizer -------------------------------------------------------------------------------------------------

class Tokenizer:
    """GPT-2 style byte-level BPE whose merges spell exactly WORDS; every other byte is a token of its own."""

    def __init__(self):
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        char_of = {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(others)}}
        self.vocab = {char_of[b]: b for b in range(256)}
        self.merges = []
        for word in WORDS:
            for i in range(1, len(word)):
                if (word[:i], word[i]) not in self.merges:
                    self.merges.append((word[:i], word[i]))
                    self.vocab[word[:i + 1]] = len(self.vocab)
        self.eos = len(self.vocab)
        self.pad = self.eos + 1
        self.size = -(-(self.pad + 1) // 64) * 64  # the embedding has whole blocks of 64 rows
        byte_of = {c: b for b, c in char_of.items()}
        self.bytes_of = {i: bytes(byte_of[c] for c in piece) for piece, i in self.vocab.items()}

    def encode(self, text):
        ids = []
        for run in re.findall(r"[a-z]+|[^a-z]", text):
            if run in WORDS:
                ids.append(self.vocab[run])
            elif "a" <= run[0] <= "z":
                ids += self._merged(run)
            else:
                ids += run.encode()
        return ids

    def _merged(self, run):
        parts = list(run)
        for a, b in self.merges:  # in order of rank
            i = 0
            while i + 1 < len(parts):
                if parts[i] == a and parts[i + 1] == b:
                    parts[i:i + 2] = [a + b]
                i += 1
        return [self.vocab[p] for p in parts]

    def decode(self, ids):
        return b"".join(self.bytes_of.get(i, b"") for i in ids).decode("utf-8", "replace")

    def write(self, folder, context_tokens):
        """Writes tokenizer.json and tokenizer_config.json as Hugging Face tokenizers reads them."""
        def special(token, text):
            return dict(id=token, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False,
                        special=True)

        byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=False, use_regex=False)
        split = dict(type="Split", pattern=dict(Regex="[a-z]+|[^a-z]"), behavior="Isolated", invert=False)
        model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
                     fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab=self.vocab,
                     merges=[" ".join(m) for m in self.merges])
        write_json(folder, "tokenizer.json", dict(
            version="1.0", truncation=None, padding=None,
            added_tokens=[special(self.eos, "<|endoftext|>"), special(self.pad, "<|pad|>")], normalizer=None,
            pre_tokenizer=dict(type="Sequence", pretokenizers=[split, byte_level]), post_processor=None,
            decoder=byte_level, model=model))
        write_json(folder, "tokenizer_config.json", dict(
            tokenizer_class="PreTrainedTokenizerFast", eos_token="<|endoftext|>", pad_token="<|pad|>",
            clean_up_tokenization_spaces=False, model_max_length=context_tokens))


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)
        f.write("\n")


# ---- Prompt file -----------------------------------------------------------------------------------------------

def read_prompts(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def main():
    """Prints the lines of prompts.jsonl: python3 task.py > prompts.jsonl"""
    rng, seen = random.Random(7), set()
    while len(seen) < 200:
        terms = make_terms(rng)
        prompt = prompt_text(terms)
        if prompt not in seen:
            print(json.dumps(dict(id=f"sum-{len(seen):03d}", prompt=prompt, answer=sum(terms), terms=len(terms))))
            seen.add(prompt)


if __name__ == "__main__":
    main()
