// Makes tests/gpu/data/text: small tokenizer.json files, and the results of Hugging Face tokenizers (Rust, through its Node addon
// @anush008/tokenizers 0.6.0 = tokenizers 0.22.2) for them. Nothing here shares code with Seer.
//   mkdir /tmp/oracle && cd /tmp/oracle && npm install @anush008/tokenizers@0.6.0
//   node <repo>/tests/oracle/text/make_vectors.mjs /tmp/oracle
import {createRequire} from 'node:module';
import {mkdirSync, writeFileSync} from 'node:fs';
import {dirname, join} from 'node:path';
import {fileURLToPath} from 'node:url';
import {corpus, texts} from './texts.mjs';

const {Tokenizer} = createRequire(join(process.argv[2], 'package.json'))('@anush008/tokenizers');
const out = join(dirname(fileURLToPath(import.meta.url)), '../../gpu/data/text');

// ---- training: the plain algorithm, over words ------------------------------------------------------------------
function train(words, alphabet, merges_wanted) {
  const vocab = new Map(alphabet.map((symbol, id) => [symbol, id]));
  const merges = [];
  const lists = words.map((word) => [...word]);
  while (merges.length < merges_wanted) {
    const counts = new Map();
    for (const list of lists)
      for (let i = 0; i + 1 < list.length; ++i) {
        const pair = list[i] + '\0' + list[i + 1];
        counts.set(pair, (counts.get(pair) ?? 0) + 1);
      }
    let best = null;
    for (const [pair, count] of counts) if (!best || count > best[1]) best = [pair, count];
    if (!best || best[1] < 2) break;
    const [left, right] = best[0].split('\0');
    merges.push([left, right]);
    if (!vocab.has(left + right)) vocab.set(left + right, vocab.size);
    for (const list of lists)
      for (let i = 0; i + 1 < list.length; ++i)
        if (list[i] === left && list[i + 1] === right) list.splice(i, 2, left + right);
  }
  return {vocab, merges};
}
const byteChar = [];
for (let byte = 0, next = 256; byte < 256; ++byte) {
  const keeps = (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
  byteChar.push(String.fromCodePoint(keeps ? byte : next++));
}
const byteWords = (re) => corpus.match(re).map((word) => [...Buffer.from(word)].map((byte) => byteChar[byte]).join(''));
const gpt2Words = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

// ---- files --------------------------------------------------------------------------------------------------------
const kQwen = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const kLlama3 = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const kO200k = "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" +
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" +
  "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const split = (regex, behavior = 'Isolated', invert = false) => ({type: 'Split', pattern: {Regex: regex}, behavior, invert});
const splitString = (text, behavior, invert = false) => ({type: 'Split', pattern: {String: text}, behavior, invert});
const byteLevel = (options = {}) => ({type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false, ...options});
const sequence = (...pretokenizers) => ({type: 'Sequence', pretokenizers});
const added = (id, content, options = {}) =>
  ({id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true, ...options});
const template = (single) => ({type: 'TemplateProcessing', single, pair: [],
  special_tokens: Object.fromEntries(single.filter((p) => p.SpecialToken).map((p) => [p.SpecialToken.id, {id: p.SpecialToken.id, ids: [p.ids], tokens: [p.SpecialToken.id]}]))});
const special = (id, token) => ({SpecialToken: {id: token, type_id: 0}, ids: id});
const text = {Sequence: {id: 'A', type_id: 0}};
const bpe = ({vocab, merges}, options = {}, arrays = false) => ({type: 'BPE', dropout: null, unk_token: null,
  continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: false, ...options,
  vocab: Object.fromEntries(vocab), merges: arrays ? merges : merges.map((pair) => pair.join(' '))});
const file = (fields) => ({version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null, pre_tokenizer: null,
  post_processor: null, decoder: null, ...fields});

function qwenLike() {
  const model = train(byteWords(gpt2Words), byteChar, 420);
  const n = model.vocab.size;
  return file({
    added_tokens: [added(n, '<|begin|>'), added(n + 1, '<|end|>'), added(n + 2, '<mask>', {lstrip: true}),
      added(n + 3, 'word_only', {single_word: true, special: false, normalized: true}),
      added(n + 4, '<norm>é</norm>', {special: false, normalized: true}), added(n + 5, '<|long|>', {special: false}),
      added(n + 6, '<|long|>er', {special: false}), added(n + 7, '<strip>', {rstrip: true, special: false})],
    normalizer: {type: 'NFC'}, pre_tokenizer: sequence(split(kQwen), byteLevel()), post_processor: byteLevel(), decoder: byteLevel(),
    model: bpe(model)});
}
function llama3Like() {
  const model = train(byteWords(/[^\s]+|\s+/gu), byteChar, 300);
  // Tokens that no merge builds, so that ignore_merges shows.
  for (const word of ['Ġrollouts', 'tokenstokens', 'ĠĠĠĠĠĠĠ', '123'])
    if (!model.vocab.has(word)) model.vocab.set(word, model.vocab.size);
  const n = model.vocab.size;
  return file({
    added_tokens: [added(n, '<|begin|>'), added(n + 1, '<|end|>')],
    pre_tokenizer: sequence(split(kLlama3), byteLevel()),
    post_processor: {type: 'Sequence', processors: [byteLevel(), template([special(n, '<|begin|>'), text])]},
    decoder: byteLevel({add_prefix_space: true, use_regex: true}), model: bpe(model, {ignore_merges: true}, true)});
}
function gpt2Like() {
  const made = bpe(train(byteWords(gpt2Words), byteChar, 200));
  delete made.type;
  return file({added_tokens: [added(Object.keys(made.vocab).length, '<|end|>', {normalized: true})],
    pre_tokenizer: byteLevel({add_prefix_space: true, use_regex: true}),
    post_processor: {type: 'RobertaProcessing', sep: ['<|end|>', Object.keys(made.vocab).length], cls: ['!', 0], trim_offsets: true, add_prefix_space: true},
    decoder: byteLevel(), model: made});
}
const kFallback = Array.from({length: 256}, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, '0')}>`);
function charModel(extra, merges) {
  const words = corpus.replaceAll(' ', '▁').split(/(?=▁)|\n/);
  const known = (c) => c === '▁' || /[\p{L}\p{P}\p{Nd}\p{M}]/u.test(c);  // the others are for bytes and the unknown token
  const letters = [...new Set([...words.join('')].filter(known))].sort();
  return train(words.filter((word) => [...word].every(known)), [...extra, ...letters], merges);
}
const llama2Like = () => file({
  added_tokens: [added(0, '<unk>'), added(1, '<s>'), added(2, '</s>')],
  normalizer: {type: 'Sequence', normalizers: [{type: 'Prepend', prepend: '▁'}, {type: 'Replace', pattern: {String: ' '}, content: '▁'}]},
  post_processor: template([special(1, '<s>'), text, special(2, '</s>')]),
  decoder: {type: 'Sequence', decoders: [{type: 'Replace', pattern: {String: '▁'}, content: ' '}, {type: 'ByteFallback'}, {type: 'Fuse'},
    {type: 'Strip', content: ' ', start: 1, stop: 0}]},
  model: bpe(charModel(['<unk>', '<s>', '</s>', ...kFallback], 300), {unk_token: '<unk>', fuse_unk: true, byte_fallback: true})});
const metaspaceLike = (fuse_unk) => file({
  added_tokens: [added(0, '<unk>'), added(1, '<s>'), added(2, '<mask>', {lstrip: true, rstrip: true, normalized: true})],
  normalizer: {type: 'Sequence', normalizers: [{type: 'Strip', strip_left: true, strip_right: false}, {type: 'NFKC'}, {type: 'Lowercase'},
    {type: 'Replace', pattern: {Regex: '[\\r\\n]+'}, content: ' '}]},
  pre_tokenizer: {type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: true},
  decoder: {type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: true},
  model: bpe(charModel(['<unk>', '<s>', '<mask>'], 150), {unk_token: '<unk>', fuse_unk})});

// ---- vectors --------------------------------------------------------------------------------------------------------
async function ids(tokenizer, value, addSpecialTokens) {
  return (await tokenizer.encode(value, null, {addSpecialTokens})).getIds();
}
async function writeTokenizer(name, json) {
  mkdirSync(join(out, name), {recursive: true});
  for (const part of [json.post_processor, ...(json.post_processor?.processors ?? [])]) part?.single?.forEach((p) => delete p.ids);
  writeFileSync(join(out, name, 'tokenizer.json'), JSON.stringify(json) + '\n');
  const tokenizer = Tokenizer.fromString(JSON.stringify(json));
  const vectors = [];
  for (const value of texts) {
    const plain = await ids(tokenizer, value, false);
    const framed = await ids(tokenizer, value, true);
    vectors.push({text: value, ids: plain, decoded: await tokenizer.decode(plain, false), decoded_no_special: await tokenizer.decode(plain, true),
      ...(framed.length === plain.length ? {} : {framed})});
  }
  writeFileSync(join(out, name, 'vectors.json'), '[\n' + vectors.map((v) => JSON.stringify(v)).join(',\n') + '\n]\n');
  return vectors.length;
}
const digits = (individual_digits) => ({type: 'Digits', individual_digits});
const metaspace = (prepend_scheme, doSplit = true) => ({type: 'Metaspace', replacement: '▁', prepend_scheme, split: doSplit});
const behaviors = ['Isolated', 'Removed', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];
const pretokenizers = [
  ...behaviors.flatMap((b) => [split('\\s|e', b), split('\\p{L}+', b, true), splitString(' ', b)]),
  splitString('the', 'Isolated', true), split(kQwen), split(kLlama3), split(kO200k), split("'(?:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\s++$|\\s"),
  split('[a-z]+|[^a-z]'), split('\\w+|\\W'), split('\\d{1,3}+'), split('[\\p{Han}\\p{Hiragana}]+'), split('(?i)THE|\\x{301}|\\u00e9'), split('^.|.$'),
  split('[一-龥\\u3041-\\u3096]+'), split('(?=\\p{Lu})'), split('(?<=e)\\s*|x*?'), split('\\h+|\\v|\\P{L}\\S'), split('[^\\S ]+|\\p{^N}{,2}'),
  byteLevel({use_regex: true}), byteLevel({use_regex: true, add_prefix_space: true}), sequence(byteLevel({use_regex: true}), digits(true), split('[0-9][0-9][0-9]')),
  sequence({type: 'Punctuation', behavior: 'Contiguous'}, byteLevel({add_prefix_space: true})), sequence(split('\\p{N}{1,3}'), split('[\\p{P}\\p{S}]+'), split('\\s+')),
  digits(true), digits(false), {type: 'Whitespace'}, {type: 'WhitespaceSplit'}, {type: 'Punctuation', behavior: 'Isolated'},
  metaspace('always'), metaspace('first'), metaspace('never'), metaspace('always', false), sequence({type: 'WhitespaceSplit'}, metaspace('first')),
];
const replace = (pattern, content) => ({type: 'Replace', pattern, content});
const normalizers = [{type: 'NFC'}, {type: 'NFD'}, {type: 'NFKC'}, {type: 'NFKD'}, {type: 'Lowercase'}, {type: 'Prepend', prepend: '▁'},
  {type: 'Strip', strip_left: true, strip_right: true}, {type: 'Strip', strip_left: false, strip_right: true}, replace({String: 'the'}, 'Ü'),
  replace({Regex: '\\s+'}, ' '), replace({Regex: '(?<=\\p{L})(?=\\d)|e'}, '$1-')];
const host = (fields) => Tokenizer.fromString(JSON.stringify(file({...fields, model: bpe({vocab: new Map([['a', 0]]), merges: []})})));
const partTexts = texts.filter((t) => t.length > 0 && t.length < 45).filter((_, i) => i % 3 === 0);
function writeParts(name, field, parts, run) {
  const vectors = parts.map((part) => {
    const tokenizer = host({[field]: part});
    return {[field]: part, expected: partTexts.map((value) => run(tokenizer, value))};
  });
  writeFileSync(join(out, name), JSON.stringify({texts: partTexts}).slice(0, -1) + ',\n"cases": [\n' +
    vectors.map((v) => JSON.stringify(v)).join(',\n') + '\n]}\n');
}

console.log(await writeTokenizer('qwen_like', qwenLike()), 'texts for each tokenizer');
await writeTokenizer('llama3_like', llama3Like());
await writeTokenizer('gpt2_like', gpt2Like());
await writeTokenizer('llama2_like', llama2Like());
await writeTokenizer('metaspace', metaspaceLike(false));
await writeTokenizer('metaspace_fused', metaspaceLike(true));
writeParts('pretokenizers.json', 'pre_tokenizer', pretokenizers, (t, value) => t.getPreTokenizer().preTokenizeString(value).map(([word]) => word));
writeParts('normalizers.json', 'normalizer', normalizers, (t, value) => t.getNormalizer().normalizeString(value));
