// Texts for the vectors: hand-written ones for known hard cases, then seeded random ones.
export const corpus = [
  'the rollout of a group is long and the tail of the rollout is longer than the rest of it',
  'tokens and prompts, prompts and tokens: the tokenizer turns the one into the other and back again',
  "it's what they'll say, we've seen it, I'd think you're right, I'm sure",
  'Der Überblick über die größten Städte; là où le cœur était déjà; señor, mañana, niño',
  'съешь ещё этих мягких французских булок да выпей чаю, ещё и ещё',
  '模型 模型 训练 模型 生成 训练 词元, こんにちは 日本語 日本語, 한국어 한국어 토큰',
  'مرحبا بالعالم مرحبا, नमस्ते दुनिया नमस्ते, สวัสดี สวัสดี',
  'for (int i = 0; i < n; ++i) {\n    sum += x[i];\n    sum += y[i];\n}\n\n\n        return sum;\n',
  '0 1 2 10 11 12 100 101 123 1234 2024 3.14159 1,000,000',
  '😀😀 👍👍 🎉 ... --- === !!! ??? ((())) """',
].join('\n');

const hard = [
  '', ' ', '  ', '\n', '\t', '\r\n', 'a', ' a', 'a ', '  a  b   c    ', 'Hello, World!', "I'LL don't WE'VE 's 'S 'ſ ’s",
  'the tokens of the rollout', 'tokenstokens the  tokens', '1', '12', '123', '1234', '1234567890', '3.14e-10', '１２３ ٣٤ ½²Ⅳ',
  'a1b2c3', 'x=1;y=2', '\n\n\n', 'a\n\n\nb', 'a \n \n b', '   \n   x', 'x   \n', ' \t \t ', 'end   ', '\r\r\n\n',
  'a'.repeat(300), ' '.repeat(200) + 'x', '\n'.repeat(90), '=-'.repeat(60), '模型'.repeat(40), 'ab '.repeat(50), '7'.repeat(100),
  'é e\u0301 \u212b ﬁ ǆ ẛ̣ a\u0323\u0307 a\u0307\u0323', 'क्षि \u0958 \u0915\u093c', '\u1112\u1161\u11ab 한 ᄒ', 'か\u3099 が ｶﾞ',
  '模型训练 token 词元', 'こんにちは、日本語！', '한국어 토큰', 'مرحبا بالعالم ١٢٣', 'नमस्ते दुनिया १२३', 'สวัสดีชาวโลก ๑๒', 'съешь ещё чаю',
  '😀', '👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇭', '✈️ ❤️‍🔥', '𝒳𝓎𝓏 𐍈 𠮷', '\u200b\u200d\ufeff\u2060 \u00ad', 'a\u00a0b\u2009c\u3000d\u0085e\u2028f\u180eg\u202fh',
  '\u0001\u0002\u001b[0m\u007f\u0080', 'a\u0000b', '\ufffd\uffff\ue000', 'İstanbul ISPARTA ıi ΣΑΣ ß ẞ', 'ÀÉÎ àéî', '____ a_b __init__',
  '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~', '«quoted» “quoted” 、。！', 'http://a.b/c?d=e&f=%20', '▁the ▁ ▁▁', '<0x41> <0x0A> Ġ Ċ',
  '<|begin|>the<|end|>', '<|begin|> the <|end|>', ' <|begin|><|begin|>\n', '<|begin', '<|end|', 'x<|begin|>y<|end|>z', '<s>the</s> <s>',
  'a <mask> b', 'a  <mask>  b', '<mask><mask>', 'the word_only here', 'the word_onlyhere', 'word_only', 'éword_only word_only!', 'two words two  words',
  'CAPS caps Caps', 'ａＣＡＰＳ caps', '<|long|><|long|>er|>', 'quelqu’un <norm>é</norm> e\u0301', 'tail spaces<strip>   \n x', 'x <strip> <strip> y',
];

let state = 7;
const random = () => {  // mulberry32
  state = (state + 0x6d2b79f5) | 0;
  let x = Math.imul(state ^ (state >>> 15), 1 | state);
  x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x;
  return ((x ^ (x >>> 14)) >>> 0) / 4294967296;
};
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];
// Without characters younger than Unicode 13, which libraries class differently by their age.
const blocks = [[0x01, 0x7f], [0xa0, 0x24f], [0x300, 0x36f], [0x391, 0x3a1], [0x410, 0x44f], [0x620, 0x64a], [0x904, 0x939],
  [0x1100, 0x1112], [0x1161, 0x1175], [0x2000, 0x200f], [0x3041, 0x3096], [0x4e00, 0x4eff], [0xac00, 0xacff], [0x1f600, 0x1f64f]];
const marks = ['<|begin|>', '<|end|>', '<mask>', '<s>', 'word_only', ' ', '  ', '\n', '12', '345', "'s", 'the', ' tokens', 'é', '▁'];
const pieces = corpus.split(/(?<=\s)/);
const random_text = () => {
  let text = '';
  for (let n = 1 + below(14); n > 0; --n) {
    const kind = below(4);
    const [first, last] = pick(blocks);
    text += kind === 0 ? String.fromCodePoint(first + below(last - first + 1)) : kind === 1 ? pick(marks) : pick(pieces);
  }
  return text;
};
export const texts = [...hard, ...Array.from({length: 60}, random_text)];
