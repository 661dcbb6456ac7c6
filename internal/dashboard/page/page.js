// The page shows what the dashboard has collected, and how old each part is. A notice comes at
// each look (/api/live); what it says has changed is fetched. All texts are put in as text.
// Ages go on when no notice comes: then everything turns gray.

const $ = (selector, within = document) => within.querySelector(selector);
const rowHeight = 26, inSight = 15, slack = 5, shownEvents = 200, keptEvents = 1000, timeline = 600_000, muchBehind = 1000;

let notice = null, received = 0; // and when it was, by performance.now
let refusal = ""; // why no notice will come
let events = [], chosen = "";

// now is the dashboard's time, in ms.
const now = () => notice ? Date.parse(notice.now) + performance.now() - received : 0;

function el(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) if (v !== null && v !== undefined) e.setAttribute(k, v);
  e.append(...children.map((c) => c ?? ""));
  return e;
}

// aged is a cell that shows how old something is; the tick keeps it so.
const aged = (name, at) => el(name, { class: "age", "data-at": at ?? "" });

function ageText(ms) {
  if (ms < 60_000) return `${Math.max(0, ms / 1000).toFixed(1)} s`;
  return ms < 3_600_000 ? `${Math.floor(ms / 60_000)} min` : `${Math.floor(ms / 3_600_000)} h`;
}

// late is from when on counters are old: they are read at each second look, and fetched once a second.
const fetching = 1000, late = () => notice ? notice.stale_ms + fetching : null;

// born says of when a tile's content is; null: of never.
const born = (tile, at) => { $(".age", $(tile)).dataset.at = at ?? ""; };

// tick makes all ages those of now, and what is too old gray.
function tick() {
  if (!notice) {
    if (refusal) $("#connection").textContent = refusal;
    return;
  }
  for (const e of document.querySelectorAll(".age[data-at]")) {
    const at = e.dataset.at, ms = now() - Date.parse(at);
    e.textContent = at ? ageText(ms) : "never";
    const part = e.closest("tr, .row, li") ?? e.closest(".tile");
    part.classList.toggle("stale", !at || ms > Number(part.dataset.limit || notice.stale_ms) || part.dataset.gray === "true");
  }
  const silent = performance.now() - received;
  const lost = silent > notice.stale_ms;
  const answer = notice.agents.filter((a) => !a.gray).length, all = notice.agents.length;
  const status = lost ? `the dashboard is silent for ${ageText(silent)}: all of this is old. ${refusal}` : `live: ${answer} of ${all} agents answer`;
  const line = $("#connection");
  if (line.textContent !== status) line.textContent = status;
  line.classList.toggle("bad", lost || answer < all);
  document.body.classList.toggle("stale", lost);
}

async function get(path) {
  const r = await fetch(path);
  if (!r.ok) throw new Error(await r.text());
  return r.json();
}

// loader makes a function that fetches and shows one part. While it is at work, further calls
// make it run once more.
function loader(path, show) {
  let busy = false, again = false;
  return async function load() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      do {
        again = false;
        const from = path();
        if (from) show(await get(from), from);
      } while (again);
    } catch (e) { // what is shown grows old, which its age says
      console.warn(String(e));
    } finally {
      busy = false;
    }
    tick();
  };
}

// drawing shows an SVG of the dashboard's; its style is in tree.css.
function drawing(into, svg) {
  const plain = svg.replace(/<style>[^]*?<\/style>/, "");
  into.replaceChildren(document.importNode(new DOMParser().parseFromString(plain, "image/svg+xml").documentElement, true));
}

const bytes = (n) => {
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (n < 1000 || unit === "TB") return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1000;
  }
};
const rate = (n) => n === null ? "-" : `${bytes(n)}/s`;
const shown = (v) => v === null || v === undefined ? "-" : String(v);
const count = (n) => n === null || n === undefined ? "-" : n.toLocaleString("en");
const clock = (at) => new Date(at).toLocaleTimeString("en-GB"); // of the reader's zone, 24 hours
const td = (...children) => el("td", {}, ...children);
const num = (text, bad) => el("td", { class: bad ? "n bad" : "n" }, text);

const fabric = loader(() => "api/fabric", (v) => {
  drawing($("#fabric .drawing"), v.svg);
});

const agents = loader(() => "api/status", (list) => {
  const rows = list.map((a) => {
    const s = a.answer, ports = (s?.ports ?? []).filter((p) => p.neighbor && p.state !== "-"), bgp = s?.bgp ?? [];
    let state = "settled", bad = false;
    if (!s) [state, bad] = ["not known", true];
    else if (!s.p4runtime.connected) [state, bad] = ["switch lost", true];
    else if (!s.p4runtime.primary) [state, bad] = ["not primary", true];
    else if (!s.settled) [state, bad] = ["learning", true];
    if (a.error) state = `silent; was ${state}`;
    return el("tr", { "data-switch": a.switch, "data-gray": a.gray, title: a.error },
      td(a.switch), el("td", { class: bad || a.error ? "bad" : "ok" }, state),
      num(`${ports.filter((p) => p.state === "up").length} of ${ports.length}`, ports.some((p) => p.state !== "up")),
      num(bgp.length ? `${bgp.filter((n) => n.state === "Established").length} of ${bgp.length}` : "-", bgp.some((n) => n.state !== "Established")),
      num(shown(s?.groups)), num(shown(s?.steps)), aged("td", a.at));
  });
  $("#agents tbody").replaceChildren(...rows);
});

const suspicions = loader(() => "api/suspicions", (v) => {
  const items = v.list.map((x) => el("li", { "data-gray": x.gray }, el("strong", { class: "bad" }, x.what), `: ${x.why} `,
    el("small", {}, `says ${x.by}${x.since ? `, since ${clock(x.since)}` : ""}, `, aged("span", x.at), " ago")));
  const n = v.list.length + v.more;
  $("#alarm").textContent = n ? (n === 1 ? "1 suspicion" : `${n} suspicions`) : "no suspicions";
  $("#alarm").classList.toggle("bad", n > 0);
  if (v.more) items.push(el("li", {}, `and ${v.more} more`));
  if (!items.length) items.push(el("li", {}, "none"));
  $("#suspicions ul").replaceChildren(...items);
});

const traffic = loader(() => "api/traffic", ({ verdicts, senders }) => {
  $("#verdicts tbody").replaceChildren(...verdicts.slice(0, 30).map((v) => el("tr", { "data-gray": v.gray, class: v.gray ? "stale" : "" },
    td(v.switch), td(v.cell), num(count(v.packets)),
    num(v.packets_per_second === null ? "-" : v.packets_per_second.toFixed(1), !v.usual && v.packets_per_second > 0), td(v.meaning))));
  $("#verdicts").dataset.limit = late();
  const heard = verdicts.filter((v) => !v.gray); // the other rows say themselves that they are old
  born("#verdicts", verdicts.length ? (heard.length ? heard : verdicts).map((v) => v.at).sort()[0] : notice.now);
  const line = (name, a, b) => el("tr", {}, td(name), num(a), num(b));
  $("#senders").dataset.limit = senders.round_ms; // groups are measured in turn
  born("#senders", senders.groups ? senders.oldest : notice.now);
  $("#senders tbody").replaceChildren(
    line("groups measured", `${senders.measured} of ${senders.groups}`, ""),
    line("by multicast", bytes(senders.bytes), rate(senders.bytes_per_second)),
    line("unicast would be", bytes(senders.unicast_bytes), rate(senders.unicast_bytes_per_second)),
    line("ratio", senders.bytes ? (senders.unicast_bytes / senders.bytes).toFixed(2) : "-", ""));
});

// The list holds only those rows that are in sight.
const list = $("#groups .list"), rows = $("#groups .rows");
const groups = loader(() => {
  const from = Math.max(0, Math.floor(list.scrollTop / rowHeight) - slack), count = inSight + 2 * slack;
  return "api/groups?" + new URLSearchParams({ from, count, find: $("#find").value.trim(), bad: $("#bad").checked ? "1" : "" });
}, (v, path) => {
  const from = Number(new URLSearchParams(path.split("?")[1]).get("from"));
  $("#total").textContent = (v.total === v.all ? "" : `${v.total} of `) + (v.all === 1 ? "1 group" : `${v.all} groups`) + (v.lost ? "; one agent has more than are kept" : "");
  rows.style.height = `${v.total * rowHeight}px`;
  const old = new Map(Array.from(rows.children, (r) => [r.dataset.id, r])), next = v.rows.map((g, i) => {
    const behind = (g.group.members ?? []).map((m) => m.behind_packets).filter((n) => n !== null && n !== undefined);
    const row = old.get(g.id) ?? el("button", { type: "button", class: "row", "data-id": g.id });
    row.dataset.gray = g.gray;
    row.dataset.limit = late() ?? "";
    row.setAttribute("aria-current", g.id === chosen);
    row.replaceChildren(
      el("span", {}, g.name), el("span", {}, g.id.split("/")[1]), el("span", {}, g.group.switch), el("span", { class: "n" }, String(g.group.group.receivers.length)), el("span", { class: "n" }, rate(g.bytes_per_second)),
      el("span", { class: Math.max(...behind) >= muchBehind ? "n bad" : "n" }, behind.length ? `${count(Math.max(...behind))} packets` : "not known"), aged("span", g.measured),
      el("span", { class: "bad", title: g.group.problems.join("\n") }, g.group.problems.join("; ")));
    row.style.top = `${(from + i) * rowHeight}px`;
    return row;
  });
  // A row stays the same element: it may have the focus, or be pressed and not yet released.
  for (const r of old.values()) if (!next.includes(r)) r.remove();
  next.forEach((r, i) => { if (rows.children[i] !== r) rows.insertBefore(r, rows.children[i] ?? null); });
});

const group = loader(() => chosen && "api/group?" + new URLSearchParams({ name: chosen }), (v) => {
  if (v.id !== chosen && v.name !== chosen) return;
  $("#group").dataset.limit = late();
  born("#group", v.at);
  $("#h-group").textContent = `Group ${v.name}, MC_ID ${v.id.split("/")[1]}`;
  const problems = v.tree?.ok === false ? "Something is wrong with it: see the drawing." : "";
  $("#group .note").textContent = v.error ? `The tree is not of now: ${v.error}` : problems;
  if (v.svg) drawing($("#group .drawing"), v.svg); else $("#group .drawing").replaceChildren();
  $("#group .receivers tbody").replaceChildren(...(v.receivers ?? []).map((r) => el("tr", { "data-address": r.address },
    td(r.address), num(shown(r.acked_psn)), num(count(r.behind_packets), r.behind_packets >= muchBehind),
    num(r.behind_ms === null ? "-" : `${r.or_more ? "≥ " : ""}${r.behind_ms.toFixed(0)}`), el("td", { class: r.daemon && r.daemon !== "ok" ? "bad" : "" }, r.daemon || "-"))));
  $("#group .links tbody").replaceChildren(...(v.links ?? []).map((l) => el("tr", {},
    td(`${l.from} → ${l.to}${l.ports?.length ? ` (port ${l.ports.join("/")})` : ""}`), num(bytes(l.bytes)), num(bytes(l.unicast_bytes)))));
});

const happened = loader(() => `api/events?after=${events.at(-1)?.id ?? 0}`, (fresh) => {
  events = events.concat(fresh).slice(-keptEvents);
  $("#events ol").replaceChildren(...events.slice(-shownEvents).reverse().map((e) => el("li", { class: e.bad ? "bad" : "", "data-kind": e.kind },
    el("time", { datetime: e.at, title: e.at }, clock(e.at)), ` ${e.switch}: ${e.text}`)));
  if (!events.length) $("#events ol").append(el("li", {}, "none yet"));
});

function drawTimeline() {
  const svg = $(".timeline");
  svg.replaceChildren(...events.filter((e) => now() - Date.parse(e.at) < timeline).map((e) => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const x = 1000 * (1 - (now() - Date.parse(e.at)) / timeline);
    for (const [k, v] of Object.entries({ x1: x, x2: x, y1: 4, y2: 26, class: e.bad ? "bad" : "" })) line.setAttribute(k, v);
    return line;
  }));
}

// choose shows a group; the address of the page names it.
function choose(key) {
  chosen = key;
  $("#h-group").textContent = key ? `Group ${key}` : "Group";
  $("#group .note").textContent = key ? "asking…" : "Choose one in the list.";
  for (const e of document.querySelectorAll("#group .drawing, #group tbody")) e.replaceChildren();
  born("#group", null);
  for (const r of rows.children) r.setAttribute("aria-current", r.dataset.id === key);
  group();
}

rows.addEventListener("click", (e) => { const r = e.target.closest(".row"); if (r) location.hash = r.dataset.id; });
// named is the group that the page's address names; anyone may have written it.
function named() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return location.hash.slice(1); }
}
addEventListener("hashchange", () => choose(named()));
let drawn = 0;
list.addEventListener("scroll", () => { cancelAnimationFrame(drawn); drawn = requestAnimationFrame(groups); });
for (const id of ["#find", "#bad"]) $(id).addEventListener("input", () => { list.scrollTop = 0; groups(); });
$("form").addEventListener("submit", (e) => e.preventDefault());

// A notice has each part fetched that it says has changed, and once a second what is measured.
let last = {}, measured = 0, live = null;
const heed = (m) => {
  notice = JSON.parse(m.data);
  received = performance.now();
  refusal = "";
  const v = notice.versions;
  if (v.status !== last.status) { fabric(); agents(); }
  if (v.events !== last.events) happened();
  if (v.groups !== last.groups || v.status !== last.status) { groups(); suspicions(); if (chosen) group(); }
  last = v;
  for (const a of notice.agents) { // their ages are in the notice
    const row = $(`#agents tr[data-switch="${CSS.escape(a.switch)}"]`);
    if (row) { $(".age", row).dataset.at = a.at ?? ""; row.dataset.gray = a.gray; }
  }
  const newest = notice.agents.map((a) => a.at ?? "").sort().at(-1); // those that are silent are gray in it
  for (const tile of ["#fabric", "#agents", "#suspicions", "#groups"]) born(tile, newest);
  born("#events", notice.now);
  if (performance.now() - measured > fetching) {
    measured = performance.now();
    groups(); traffic(); suspicions();
    if (chosen) group();
  }
  drawTimeline();
  tick();
};

// refused says why there are no notices, and will be none: the browser does not ask again.
async function refused() {
  const r = await fetch("api/live");
  if (r.ok) location.reload(); else refusal = await r.text();
  tick();
}

// follow listens for notices while the page is in sight: a browser has six connections to one
// address, and pages that nobody sees would take them from the others.
function follow() {
  live?.close();
  live = document.hidden ? null : new EventSource("api/live");
  if (!live) return;
  live.onmessage = heed;
  live.onerror = ({ target }) => { if (target.readyState === EventSource.CLOSED) refused(); };
}
document.addEventListener("visibilitychange", follow);
follow();
setInterval(tick, 250);
if (location.hash) choose(named());
