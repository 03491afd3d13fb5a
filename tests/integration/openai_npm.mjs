// Tests `seer serve` with OpenAI's client. Arguments: the folder with node_modules/openai, the program, the model folder.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cpSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const [packages, program, model] = process.argv.slice(2);
const { OpenAI } = createRequire(resolve(packages, "x.js"))("openai");

const folder = mkdtempSync(join(tmpdir(), "seer-openai-"));
const served = join(folder, "scratchpad");
cpSync(model, served, { recursive: true });
writeFileSync(join(served, "chat_template.jinja"), "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ");
writeFileSync(join(folder, "token"), "a-token-of-24-characters\n");
const server = spawn(program, ["serve", "--model", served, "--listen", "127.0.0.1:0", "--instances", "1", "--kv-bytes", "16MiB",
                               "--dram-bytes", "64MiB", "--token-file", join(folder, "token")], { stdio: ["ignore", "pipe", "inherit"] });
process.on("exit", () => { server.kill("SIGKILL"); rmSync(folder, { recursive: true }); });
const ready = await new Promise((done) => createInterface({ input: server.stdout }).once("line", done));
const baseURL = ready.split(" at ")[1] + "/v1";
const client = new OpenAI({ baseURL, apiKey: "a-token-of-24-characters", maxRetries: 0 });

const models = await client.models.list();
assert.deepEqual(models.data.map((m) => m.id), ["scratchpad"]);

const asked = { model: "scratchpad", prompt: "2+3", max_tokens: 40, seed: 4, temperature: 0.8, n: 2, logprobs: 1 };
const whole = await client.completions.create(asked);
assert.equal(whole.choices.length, 2);
assert.equal(whole.choices[0].logprobs.tokens.length + whole.choices[1].logprobs.tokens.length, whole.usage.completion_tokens);

const texts = ["", ""];
for await (const part of await client.completions.create({ ...asked, stream: true }))
  for (const choice of part.choices) texts[choice.index] += choice.text;
assert.deepEqual(texts, whole.choices.map((c) => c.text));

const messages = [{ role: "user", content: "2+3" }];
const talk = { model: "scratchpad", messages, max_completion_tokens: 30, seed: 9, logprobs: true };
const chat = await client.chat.completions.create(talk);
assert.equal(chat.choices[0].message.role, "assistant");
assert.equal(chat.choices[0].logprobs.content.length, chat.usage.completion_tokens);

let text = "", usage;
for await (const part of await client.chat.completions.create({ ...talk, stream: true, stream_options: { include_usage: true } })) {
  text += part.choices[0]?.delta.content ?? "";
  usage = part.usage ?? usage;
}
assert.equal(text, chat.choices[0].message.content);
const { prompt_tokens_details: cached, ...counted } = usage, { prompt_tokens_details: cachedBefore, ...countedBefore } = chat.usage;
assert.deepEqual(counted, countedBefore);
assert.ok(cached.cached_tokens >= cachedBefore.cached_tokens && cached.cached_tokens <= usage.prompt_tokens);

// The client's own helper for streams, which checks what it gets.
const final = await client.chat.completions.stream(talk).finalChatCompletion();
assert.equal(final.choices[0].message.content, text);

const refused = (promise, kind, sentence) => assert.rejects(promise, (error) => error instanceof kind && error.message.includes(sentence));
await refused(client.completions.create({ ...asked, model: "gpt-9" }), OpenAI.NotFoundError, "gpt-9");
await refused(client.completions.create({ ...asked, temperature: -1 }), OpenAI.BadRequestError, "temperature is -1");
await refused(client.completions.create({ ...asked, frequency_penalty: 0.5 }), OpenAI.BadRequestError, "frequency_penalty is 0.5");
await refused(new OpenAI({ baseURL, apiKey: "another-token-entirely", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError, "401");

// A client that ends a stream early ends its request.
const endless = await client.completions.create({ ...asked, n: 1, max_tokens: 1500, ignore_eos: true, stream: true });
for await (const part of endless) { assert.ok(part); break; }
for (let left = 200; ; --left) {
  const answer = await fetch(baseURL + "/loads", { headers: { Authorization: "Bearer a-token-of-24-characters" } });
  const [load] = (await answer.json()).loads;
  if (load.num_reqs === 0) break;
  assert.ok(left > 0, "the request goes on");
}
server.kill("SIGTERM");
const code = await new Promise((done) => server.once("exit", done));
assert.equal(code, 0);
console.log("openai_npm: passed");
