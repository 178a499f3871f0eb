// The data as the page holds it: `head` at once, one part for each site when it is first asked for.

const head = JSON.parse(document.getElementById("head").textContent);

const float16 = (() => {
  const one = (bits) => {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 0x1f;
    const fraction = bits & 0x3ff;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  };
  return (halves) => Float32Array.from(halves, one);
})();

/** The array behind `packing.packed`; bytes come back as numbers in [0, 1]. */
function unpack(packed) {
  if (!packed) return null;
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const read = {
    f: () => new Float32Array(bytes.buffer),
    i: () => new Int32Array(bytes.buffer),
    h: () => float16(new Uint16Array(bytes.buffer)),
    b: () => Float32Array.from(bytes, (byte) => byte / 255),
  };
  const values = read[packed.as]();
  values.shape = packed.shape;
  return values;
}

/** Row `index` of an array of two or more dimensions, flat. */
function row(array, index) {
  const size = array.length / array.shape[0];
  return array.subarray(index * size, (index + 1) * size);
}

const starts = [];
for (const [site, count] of head.counts.entries()) starts[site] = site ? starts[site - 1] + head.counts[site - 1] : 0;
const total = head.counts.reduce((sum, count) => sum + count, 0);
const density = unpack(head.density);
const mean = unpack(head.mean);
const norm = unpack(head.norm);
const alive = unpack(head.alive);

const siteOf = new Int32Array(total);
for (const [site, start] of starts.entries()) siteOf.fill(site, start, start + head.counts[site]);

const placeOf = (site, index) => starts[site] + index;
const nameOf = (place) => `${head.names[siteOf[place]]}:${place - starts[siteOf[place]]}`;
const linkTo = (place) => `#/component/${encodeURIComponent(head.names[siteOf[place]])}/${place - starts[siteOf[place]]}`;
const linkToSite = (site) => `#/site/${encodeURIComponent(head.names[site])}`;

/** What is said of a component: a label, or what it answers to, or nothing. */
function gistOf(place) {
  const label = head.labels[place];
  if (label) return { text: label[0], score: label[1], author: label[2], isLabel: true };
  const gist = head.gists[place];
  return gist ? { text: gist, isLabel: false } : null;
}

const wordOf = (token) => head.vocabulary[token] ?? String(token);

const parts = new Map();

/** The arrays of one site's components, unpacked where they are used. */
function partOf(site) {
  if (!parts.has(site)) {
    const element = document.getElementById(`part-${site}`);
    parts.set(site, JSON.parse(element.textContent));
    element.textContent = "";
  }
  return parts.get(site);
}

const unpacked = new WeakMap();

/** `unpack`, once for each packed array. */
function opened(packed) {
  if (!packed) return null;
  if (!unpacked.has(packed)) unpacked.set(packed, unpack(packed));
  return unpacked.get(packed);
}
