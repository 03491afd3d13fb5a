// The parts of sim_html()'s page that are the same for all runs: style, glossary and script.
// Used by sim_html.cpp only.
//
// The script reads the JSON of #data (a list of workloads, see page_json()) and draws into .charts and .instances. It
// draws again when the window's width or the colour scheme changes. Names reach the page as text nodes only. When it is
// done, <html> has the attributes data-drawn (number of figures) and data-overflow (pixels beyond the window's width), or
// data-error if something went wrong.
#pragma once
#include <string_view>

namespace seer {

inline constexpr std::string_view kSimHtmlStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f5f5f3; --surface: #fdfdfc; --ink: #1b1b1a; --ink2: #62615c; --rule: #e2e1dc; --shade: #efeeea;
  --c0: #2a78d6; --c1: #e0602a; --c2: #17a077; --c3: #c98a00; --c4: #d6558a;
  --c5: #3f8f1f; --c6: #5a49b8; --c7: #d03b3b; --c8: #80603f; --c9: #6a7383;
  --run0: #e9edf2; --run1: #9fc6f2; --run2: #3d88dd; --run3: #1b519b; --run4: #0b2c5e;
  --kv0: #edf0ea; --kv1: #a5dcc0; --kv2: #2fae80; --kv3: #0f6f52; --kv4: #073b2d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #121211; --surface: #1b1b1a; --ink: #f1f0ec; --ink2: #a5a49d; --rule: #353431; --shade: #272624;
    --c0: #4a94ea; --c1: #ee7b48; --c2: #2bb58b; --c3: #d99e23; --c4: #e27aa5;
    --c5: #6fb64f; --c6: #9a8cf0; --c7: #ea6a6a; --c8: #bd9669; --c9: #9aa4b5;
    --run0: #2a2d33; --run1: #1c4176; --run2: #2c6cbb; --run3: #5fa0ea; --run4: #b4d5fa;
    --kv0: #2a2d2b; --kv1: #12503d; --kv2: #1f8764; --kv3: #4cc299; --kv4: #b2ecd6;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1360px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 20px; margin: 0 0 4px; } h3 { font-size: 15px; margin: 0; }
p { margin: 0 0 12px; } small, .note, .made, .about { color: var(--ink2); }
.made { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; overflow-wrap: anywhere; }
.note { font-weight: normal; font-size: 12px; } .about { font-size: 12.5px; margin: 2px 0 8px; }
.workload, .glossary { background: var(--surface); border: 1px solid var(--rule); border-radius: 8px;
  padding: 20px 22px; margin-top: 20px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 7px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
thead th { color: var(--ink2); font-weight: 600; }
th:first-child { text-align: left; } tbody th { font-weight: 600; }
td small { font-size: 11px; } .bound th, .bound td { color: var(--ink2); font-style: italic; }
.hash { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; }
.row { display: grid; gap: 18px 28px; margin-top: 24px; } .row > * { min-width: 0; }
.two { grid-template-columns: 1.35fr 1fr; } .three { grid-template-columns: repeat(3, 1fr); }
.halves { grid-template-columns: 1fr 1fr; margin-top: 4px; }
@media (max-width: 860px) { .two, .three, .halves { grid-template-columns: 1fr; } }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--ink2); font-size: 11.5px; font-variant-numeric: tabular-nums; } svg .ink { fill: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12.5px; margin: 2px 0 6px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; cursor: default; }
.legend svg { width: 20px; height: 10px; flex: none; }
.ramp { width: 120px; height: 10px; border-radius: 2px; display: inline-block; }
.policy { margin-top: 18px; } .policy h4 { font-size: 14px; margin: 0; } .policy h4 small { font-weight: normal; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 7px; }
.map { position: relative; } .map canvas { position: absolute; image-rendering: pixelated; border-radius: 2px; }
.map svg { position: relative; }
#tip { position: fixed; z-index: 2; pointer-events: none; background: var(--surface); border: 1px solid var(--rule);
  border-radius: 6px; padding: 6px 10px; font-size: 12px; box-shadow: 0 3px 12px rgb(0 0 0 / .18);
  font-variant-numeric: tabular-nums; white-space: pre; }
#tip[hidden] { display: none; }
details { margin-top: 22px; } summary { cursor: pointer; font-weight: 600; margin-bottom: 6px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 10px 0 0; font-size: 13px; }
dt { font-weight: 600; } dd { margin: 0; color: var(--ink2); }
)css";

inline constexpr std::string_view kSimHtmlGlossary = R"html(<section class=glossary>
<h3>What the figures mean</h3>
<dl>
<dt>±</dt><dd>half of the 95 % confidence interval over the seeds (Student's t); none for a single seed</dd>
<dt>total, s</dt><dd>seconds from the start of the iteration until its last request is done</dd>
<dt>tail, s</dt><dd>the part of it after 90 % of the requests are done</dd>
<dt>vs verl</dt><dd>tokens/s over those of verl (groups dealt round robin, fixed to an instance) under the same seed;
the mean of these ratios</dd>
<dt>of the bound</dt><dd>lower bound / total: no schedule of the same requests on the same instances is faster than the
lower bound, so 100 % is the best possible</dd>
<dt>idle</dt><dd>share of the instances' time outside steps</dd>
<dt>preemptions</dt><dd>chunks cut short for lack of room, their KV dropped; a chunk is a turn of a request on an instance</dd>
<dt>yields</dt><dd>chunks cut short for lack of room, their KV kept in the pool</dd>
<dt>migrations</dt><dd>chunks that ran on another instance than the request's chunk before</dd>
<dt>prefilled again</dt><dd>tokens whose KV had been computed before, but was dropped</dd>
<dt>estimate off</dt><dd>mean of |estimated length - length| / length</dd>
<dt>not strictly synchronous</dt><dd>the iteration ends before every request is finished, so the trainer gets other
responses, and the lower bound does not hold</dd>
</dl>
</section>
)html";

inline constexpr std::string_view kSimHtmlScript = R"js(
'use strict';
const root = document.documentElement;
window.addEventListener('error', (event) => { root.dataset.error = event.message; });

const workloads = JSON.parse(document.getElementById('data').textContent);
const tip = document.getElementById('tip');
const kTail = 0.9;  // the tail is what is done after this share of the requests
const kColours = 10;  // after these they come again, dashed

// ---- elements, numbers, colours ----
const kSvg = 'http://www.w3.org/2000/svg';
function add(parent, name, attributes = {}, text = '') {
  const isDrawing = name === 'svg' || parent.namespaceURI === kSvg;
  const element = isDrawing ? document.createElementNS(kSvg, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== '') element.textContent = text;
  parent.append(element);
  return element;
}
const known = (value) => value !== null && value !== undefined;
function grouped(value) { return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u2009'); }
function figure(value) {
  if (!known(value)) return '-';
  if (Math.round(Math.abs(value)) >= 1000) return grouped(value);
  if (Number.isInteger(value)) return String(value);
  return value.toFixed(Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);
}
const percent = (share) => known(share) ? (Math.round(1000 * share) / 10 + 0).toFixed(1) + ' %' : '-';
const colour = (policy) => `var(--c${policy.colour % kColours})`;
const dash = (policy) => policy.colour < kColours ? 'none' : '6 3';
// Round numbers from 0 to at most `end`, about `count` of them.
function ticks(end, count) {
  if (!(end > 0)) return [0];
  const raw = end / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  return Array.from({length: Math.floor(end / step * 1.0000001) + 1}, (_, i) => i * step);
}
function tickText(value) { return value >= 1000 ? grouped(value) : String(+value.toPrecision(6)); }

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const isLeft = event.clientX + 16 + tip.offsetWidth > innerWidth;  // the tip goes left of the pointer if there is no room on the right
  tip.style.left = Math.max(4, event.clientX + (isLeft ? -16 - tip.offsetWidth : 16)) + 'px';
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)) + 'px';
}
function hideTip() { tip.hidden = true; }

function panel(parent, title, about) {
  const box = add(parent, 'div');
  add(box, 'h3', {}, title);
  add(box, 'p', {class: 'about'}, about);
  return box;
}
function line(svg, x1, y1, x2, y2, look = {}) {
  return add(svg, 'line', {x1, y1, x2, y2, stroke: 'var(--rule)', ...look});
}
const kBoundLook = {stroke: 'var(--ink)', 'stroke-dasharray': '2 3'};
const kTailLook = {stroke: 'var(--c7)', 'stroke-width': 1.5, 'stroke-dasharray': '4 2'};
// Labels under a time axis at y.
function timeLabels(svg, x, end_s, y) {
  const all = ticks(end_s, 6);
  for (const t of all)
    add(svg, 'text', {x: x(t), y: y + 16, 'text-anchor': 'middle'}, tickText(t) + (t === all.at(-1) ? ' s' : ''));
}

// ---- completions over time ----
function shareDone(policy, time_s) {
  const done = policy.completions;
  let low = 0, high = done.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (done[middle] <= time_s) low = middle + 1; else high = middle;
  }
  return low / done.length;
}

function drawCompletions(parent, workload, end_s) {
  const box = panel(parent, 'Requests done over time',
                    'Share of the requests that are done, over seconds; above, the last 10 %: the tail. ' +
                    'Dots: 90 % done, and all done. One seed of each policy.');
  const policies = workload.policies.filter((policy) => policy.completions.length > 0);
  if (policies.length === 0) return void add(box, 'p', {class: 'note'}, 'Not recorded in these runs.');
  const legend = add(box, 'div', {class: 'legend'});
  const width = box.clientWidth, left = 46, right = width - 16;
  const x = (t) => left + (right - left) * t / end_s;
  const parts = [{top: 6, bottom: 156, from: kTail, to: 1, marks: [0.9, 0.95, 1]},
                 {top: 178, bottom: 338, from: 0, to: 1, marks: [0, 0.25, 0.5, 0.75, 1]}];
  const svg = add(box, 'svg', {height: 362, viewBox: `0 0 ${width} 362`});
  const curves = new Map();
  const bound = workload.bound_shown, hasBound = known(bound) && bound <= end_s;
  for (const part of parts) {
    const y = (share) => part.bottom - (part.bottom - part.top) * (share - part.from) / (part.to - part.from);
    add(svg, 'rect', {x: left, y: y(1), width: right - left, height: y(kTail) - y(1), fill: 'var(--shade)'});
    for (const t of ticks(end_s, 6)) line(svg, x(t), part.top, x(t), part.bottom);
    for (const share of part.marks) {
      line(svg, left, y(share), right, y(share));
      add(svg, 'text', {x: left - 6, y: y(share) + 4, 'text-anchor': 'end'}, Math.round(100 * share) + ' %');
    }
    if (hasBound)
      line(svg, x(bound), part.top, x(bound), part.bottom, kBoundLook);
    for (const policy of policies) {
      const count = policy.completions.length;
      const first = Math.max(0, Math.ceil(part.from * count) - 1);
      let path = part.from > 0 ? '' : `M${x(0)} ${y(0)}`;
      for (let i = first; i < count; ++i)
        path += `${path ? 'L' : 'M'}${x(policy.completions[i]).toFixed(1)} ${y((i + 1) / count).toFixed(1)}`;
      const group = add(svg, 'g', {fill: 'none', stroke: colour(policy), 'stroke-width': 2});
      add(group, 'path', {d: path, 'stroke-dasharray': dash(policy), 'stroke-linejoin': 'round'});
      for (const [t, share] of [[policy.shown.total - policy.shown.tail, kTail], [policy.shown.total, 1]])
        add(group, 'circle', {cx: x(t), cy: y(share), r: 3.2, fill: colour(policy), stroke: 'var(--surface)',
                              'stroke-width': 1});
      curves.set(policy, [...(curves.get(policy) ?? []), group]);
    }
  }
  timeLabels(svg, x, end_s, parts[1].bottom);
  add(svg, 'text', {x: left + 6, y: parts[0].top + 15}, 'the tail: 90 to 100 %');
  if (hasBound)
    add(svg, 'text', {x: x(bound) - 5, y: parts[0].bottom - 6, 'text-anchor': 'end'}, 'lower bound');
  const emphasise = (only) => {
    for (const [policy, groups] of curves)
      for (const group of groups) group.setAttribute('opacity', only === null || policy === only ? 1 : 0.15);
  };
  for (const policy of policies) {
    const entry = add(legend, 'span');
    line(add(entry, 'svg', {viewBox: '0 0 20 10'}), 0, 5, 20, 5,
         {stroke: colour(policy), 'stroke-width': 3, 'stroke-dasharray': dash(policy)});
    add(entry, 'span', {}, policy.name);
    entry.addEventListener('mouseenter', () => emphasise(policy));
    entry.addEventListener('mouseleave', () => emphasise(null));
  }
  const cursor = line(svg, left, parts[0].top, left, parts[1].bottom, {stroke: 'var(--ink2)', visibility: 'hidden'});
  svg.addEventListener('mousemove', (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const time_s = Math.min(Math.max((at - left) / (right - left), 0), 1) * end_s;
    for (const name of ['x1', 'x2']) cursor.setAttribute(name, x(time_s));
    cursor.setAttribute('visibility', 'visible');
    const lines = policies.map((policy) => [shareDone(policy, time_s), policy.name]).sort((a, b) => b[0] - a[0]);
    showTip(event, [`done at ${figure(time_s)} s`,
                    ...lines.map(([share, name]) => `${percent(share).padStart(7, '\u2007')}  ${name}`)].join('\n'));
  });
  svg.addEventListener('mouseleave', () => { cursor.setAttribute('visibility', 'hidden'); hideTip(); });
}

// ---- bars: one per policy, with the interval as a whisker ----
// chart: {title, about, key, text: policy -> what is written, tail?: key of a part to set apart, mark?: {at, name}}
function drawBars(parent, workload, chart) {
  const box = panel(parent, chart.title, chart.about);
  const policies = workload.policies;
  const reach = ([mean, ci]) => known(mean) ? mean + (ci ?? 0) : 0;
  const end = Math.max(...policies.map((policy) => reach(policy[chart.key])), chart.mark?.at ?? 0);
  if (!policies.some((policy) => known(policy[chart.key][0])))
    return void add(box, 'p', {class: 'note'}, 'Not known in these runs.');
  const width = box.clientWidth, pitch = 24, top = chart.mark ? 16 : 2, height = top + pitch * policies.length + 4;
  const svg = add(box, 'svg', {height, viewBox: `0 0 ${width} ${height}`});
  const labels = policies.map((policy, i) =>
      add(svg, 'text', {class: 'ink', y: top + pitch * i + 15}, policy.name + (policy.synchronous ? '' : ' *')));
  const values = policies.map((policy, i) =>
      add(svg, 'text', {class: 'ink', y: top + pitch * i + 15}, chart.text(policy)));
  const widest = (texts) => Math.max(...texts.map((text) => text.getComputedTextLength()));
  const left = Math.min(widest(labels) + 8, width * 0.42), right = Math.max(width - widest(values) - 12, left + 40);
  const x = (value) => end > 0 ? left + (right - left) * value / end : left;
  line(svg, left, top, left, height - 4, {stroke: 'var(--ink2)'});
  policies.forEach((policy, i) => {
    const [mean, ci] = policy[chart.key], y = top + pitch * i;
    values[i].setAttribute('x', (known(mean) ? x(reach(policy[chart.key])) : left) + 7);
    if (!known(mean)) return;
    const tail = chart.tail ? Math.min(policy[chart.tail][0] ?? 0, mean) : 0;
    const bar = (from, to, opacity) =>
        add(svg, 'rect', {x: x(from), y: y + 3, width: Math.max(x(to) - x(from), 0), height: pitch - 8,
                          fill: colour(policy), opacity});
    bar(0, mean - tail, chart.tail ? 0.4 : 0.85);
    if (chart.tail) bar(mean - tail, mean, 1);
    if (ci > 0) {
      const middle = y + pitch / 2 - 1, low = x(Math.max(mean - ci, 0)), high = x(mean + ci);
      add(svg, 'path', {d: `M${low} ${middle}H${high}M${low} ${middle - 4}v8M${high} ${middle - 4}v8`,
                        stroke: 'var(--ink)', fill: 'none'});
    }
  });
  if (chart.mark) {
    const at = x(chart.mark.at);
    line(svg, at, top, at, height - 4, kBoundLook);
    add(svg, 'text', {x: at, y: 10, 'text-anchor': at > (left + right) / 2 ? 'end' : 'start'}, chart.mark.name);
  }
}

// ---- instances over time ----
const kDigits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
const digitOf = new Map([...kDigits].map((digit, i) => [digit, i]));
const level = (row, column) => (digitOf.get(row[2 * column]) * 64 + digitOf.get(row[2 * column + 1])) / 4095;

// 256 colours between the five of `--NAME0` to `--NAME4`.
function ramp(name) {
  const style = getComputedStyle(root);
  const stops = [0, 1, 2, 3, 4].map((i) => {
    const hex = style.getPropertyValue(`--${name}${i}`).trim();
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  });
  return Array.from({length: 256}, (_, i) => {
    const at = i / 255 * 4, low = Math.min(Math.floor(at), 3);
    return [0, 1, 2].map((c) => Math.round(stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (at - low)));
  });
}

// series: {rows, most, full: the value of the darkest colour, colours, text: value -> what the tip says}
function drawMap(parent, policy, end_s, series) {
  const count = series.rows.length, columns = series.rows[0].length / 2;
  const pitch = Math.max(2, Math.min(20, Math.floor(200 / count)));
  const width = parent.clientWidth, left = 34, right = width - 14, top = 4, bottom = top + pitch * count;
  const x = (t) => left + (right - left) * t / end_s;
  const box = add(parent, 'div', {class: 'map'});
  const canvas = add(box, 'canvas', {width: columns, height: count});
  const context = canvas.getContext('2d');
  const image = context.createImageData(columns, count);
  series.rows.forEach((row, i) => {
    for (let column = 0; column < columns; ++column) {
      const value = level(row, column) * series.most / series.full;
      // Only 0 has the lightest colour; small values start a step darker.
      const shade = value > 0 ? Math.min(255, 24 + Math.round(231 * value)) : 0;
      image.data.set([...series.colours[shade], 255], 4 * (i * columns + column));
    }
  });
  context.putImageData(image, 0, 0);
  const tailFrom = x(policy.shown.total - policy.shown.tail), done = x(policy.shown.total);
  Object.assign(canvas.style,
                {left: left + 'px', top: top + 'px', width: done - left + 'px', height: bottom - top + 'px'});
  const svg = add(box, 'svg', {height: bottom + 22, viewBox: `0 0 ${width} ${bottom + 22}`});
  if (pitch >= 8)
    for (let i = 1; i < count; ++i) line(svg, left, top + pitch * i, done, top + pitch * i, {stroke: 'var(--surface)'});
  line(svg, tailFrom, top - 3, tailFrom, bottom + 3, kTailLook);
  line(svg, left, bottom + 0.5, right, bottom + 0.5);
  if (right - done > 110)
    add(svg, 'text', {x: done + 8, y: (top + bottom) / 2 + 4}, `done at ${figure(policy.shown.total)} s`);
  timeLabels(svg, x, end_s, bottom);
  const labelled = count > 1 ? [0, count - 1] : [0];
  for (const i of labelled)
    add(svg, 'text', {x: left - 6, y: top + pitch * (i + 0.5) + 4, 'text-anchor': 'end'}, String(i));
  svg.addEventListener('mousemove', (event) => {
    const area = svg.getBoundingClientRect();
    const instance = Math.floor((event.clientY - area.top - top) / pitch);
    const column = Math.floor((event.clientX - area.left - left) / (done - left) * columns);
    if (instance < 0 || instance >= count || column < 0 || column >= columns) return hideTip();
    const value = level(series.rows[instance], column) * series.most;
    const time_s = (column + 0.5) / columns * policy.shown.total;
    showTip(event, `${policy.name}, instance ${instance}, ${figure(time_s)} s\n${series.text(value)}`);
  });
  svg.addEventListener('mouseleave', hideTip);
}

function drawInstances(parent, workload, end_s) {
  const policies = workload.policies.filter((policy) => policy.running.rows.length > 0);
  if (policies.length === 0) return;
  const box = add(parent, 'div', {class: 'row'});
  const head = panel(box, 'Instances over time',
                     'A line per instance, over seconds on one axis for all policies. One seed of each.');
  const most = Math.max(...policies.map((policy) => policy.running.most), 1);
  const scales = [{name: 'run', title: 'requests running', low: '0', high: figure(Math.round(10 * most) / 10)},
                  {name: 'kv', title: 'KV blocks in use', low: '0', high: '100 %'}];
  const legend = add(head, 'div', {class: 'legend'});
  for (const scale of scales) {
    scale.colours = ramp(scale.name);
    const entry = add(legend, 'span', {}, `${scale.title}: ${scale.low}`);
    const bar = add(entry, 'span', {class: 'ramp'});
    const stops = [0, 24, 82, 139, 197, 255].map((i) => `rgb(${scale.colours[i].join(' ')})`);
    bar.style.background = `linear-gradient(90deg, ${stops.join(', ')})`;
    add(entry, 'span', {}, scale.high);
  }
  const entry = add(legend, 'span');
  line(add(entry, 'svg', {viewBox: '0 0 20 10'}), 10, 0, 10, 10, kTailLook);
  add(entry, 'span', {}, '90 % of the requests are done; the tail begins');
  for (const policy of policies) {
    const part = add(head, 'div', {class: 'policy'});
    const title = add(part, 'h4');
    add(title, 'span', {class: 'dot'}).style.background = colour(policy);
    add(title, 'span', {}, policy.name + ' ');
    const {total, tail, seed} = policy.shown;
    add(title, 'small', {}, `total ${figure(total)} s, tail ${figure(tail)} s, seed ${seed}` +
                            (policy.synchronous ? '' : ', not strictly synchronous'));
    const pair = add(part, 'div', {class: 'row halves'});
    const sides = scales.map((scale) => {
      const side = add(pair, 'div');
      add(side, 'small', {}, `${scale.title}, per instance`);
      return side;
    });
    drawMap(sides[0], policy, end_s, {...policy.running, full: most, colours: scales[0].colours,
                                      text: (value) => `${figure(Math.round(value * 10) / 10)} requests running`});
    drawMap(sides[1], policy, end_s, {...policy.kv, full: 1, colours: scales[1].colours,
                                      text: (value) => `${percent(value)} of its KV blocks in use`});
  }
}

// ---- the whole ----
const factor = (value) => known(value) ? value.toFixed(2) + 'x' : '-';
const bars = [
  {title: 'Speed against verl', about: 'tokens/s over those of verl, same seed', key: 'speedup', write: factor},
  {title: 'Idle instances', about: 'share of the instances\' time outside steps', key: 'idle', write: percent},
  {title: 'Error of length estimates', about: 'mean of |estimate - length| / length', key: 'estimate', write: percent},
  {title: 'Preemptions', about: 'chunks cut short, their KV dropped', key: 'preemptions', write: figure},
  {title: 'Prefilled again', about: 'tokens whose KV was computed again', key: 'reprefill', write: figure},
  {title: 'Migrations', about: 'chunks on another instance than the one before', key: 'migrations', write: figure},
].map(({write, ...chart}) => ({...chart, text: (policy) => write(policy[chart.key][0])}));

function drawWorkload(section, workload) {
  const charts = section.querySelector('.charts'), instances = section.querySelector('.instances');
  charts.replaceChildren();
  instances.replaceChildren();
  const end_s = Math.max(...workload.policies.map((policy) => policy.shown.total), 1e-9);
  const first = add(charts, 'div', {class: 'row two'});
  drawCompletions(first, workload, end_s);
  drawBars(first, workload, {
    title: 'Time, and how much of it is tail', key: 'total', tail: 'tail',
    about: 'Seconds, mean over seeds; in full colour the tail, after 90 % of the requests are done.',
    text: (policy) => `${figure(policy.total[0])} s, tail ${figure(policy.tail[0])}`,
    mark: known(workload.bound) ? {at: workload.bound, name: `lower bound ${figure(workload.bound)} s`} : undefined});
  const rest = add(charts, 'div', {class: 'row three'});
  const isShown = (chart) => workload.policies.some((policy) => known(policy[chart.key][0]) && policy[chart.key][0] !== 0);
  for (const chart of bars.filter(isShown)) drawBars(rest, workload, chart);
  drawInstances(instances, workload, end_s);
}

let drawnWidth = 0;
function drawAll() {
  drawnWidth = root.clientWidth;
  hideTip();
  document.querySelectorAll('.workload').forEach((section, i) => drawWorkload(section, workloads[i]));
  root.dataset.overflow = root.scrollWidth - root.clientWidth;
  root.dataset.drawn = document.querySelectorAll('.charts svg:not(.legend svg), .instances canvas').length;
}
drawAll();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
window.addEventListener('resize', () => { if (root.clientWidth !== drawnWidth) requestAnimationFrame(drawAll); });
)js";

}  // namespace seer
