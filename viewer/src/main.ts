// The page: the graph in the middle, lists on the left, what is selected on the right.
import { GraphCanvas } from "./canvas.js";
import type { Box, Laid } from "./layout.js";
import { Scene } from "./scene.js";
import { computing, counted, groups, lifted, paths, search, secondsOf, size, time, tree, type Child, type Model } from "./model.js";

declare const WORKER_TEXT: string;

const by = <T extends HTMLElement>(id: string): T => document.getElementById(id) as T;
const model: Model = JSON.parse(by("model").textContent!);
const root = tree(model);
const around = paths(root);
const work = computing(model);
const total = model.steps.reduce((sum, step) => sum + (step.seconds ?? 0), 0);
const timed = model.steps.some((step) => step.seconds !== null);

// ---- layout, in a worker

const worker = new Worker(URL.createObjectURL(new Blob([WORKER_TEXT], { type: "text/javascript" })));
const pending = new Map<number, (laid: Laid) => void>();
worker.onmessage = ({ data }: MessageEvent<{ ticket: number; laid: Laid }>) => {
  pending.get(data.ticket)!(data.laid);
  pending.delete(data.ticket);
};
let tickets = 0;
const layout = (boxes: Box[], edges: [string, string][]): Promise<Laid> =>
  new Promise((done) => {
    pending.set(++tickets, done);
    worker.postMessage({ ticket: tickets, boxes, edges });
  });
const scene = new Scene(root, lifted(model, around), layout);

// ---- what is selected: a child of the graph or a kernel

type Selected = { child: Child } | { kernel: number } | null;
let selected: Selected = null;
const operatorsOf = (child: Child): Set<number> => (typeof child === "number" ? new Set([child]) : child.operators);
const spent = secondsOf(model);
const known = new Map<Child, number>(); // asked for in every frame
const takes = (child: Child): number => {
  if (!known.has(child)) known.set(child, spent(operatorsOf(child)));
  return known.get(child)!;
};

function marked(child: Child): boolean {
  if (!selected) return false;
  if ("child" in selected) return selected.child === child;
  const own = model.kernels[selected.kernel].operators;
  const inside = operatorsOf(child);
  if (typeof child !== "number" && scene.isOpen(child)) return false;
  return own.some((number) => inside.has(number));
}

const canvas = by<HTMLCanvasElement>("graph");
const graph = new GraphCanvas(canvas, {
  title: (child) => (typeof child === "number" ? model.operators[child].type : child.title),
  detail: (child) => {
    const seconds = takes(child);
    const taken = timed && seconds ? `, ${time(seconds)}` : "";
    if (typeof child !== "number") return counted(child.operators.size, "operator") + taken;
    return model.operators[child].name.split("'")[1] + taken;
  },
  heat: (child) => (total ? Math.min(1, takes(child) / total) : 0),
  marked,
});

const state = by("state");
async function draw(): Promise<void> {
  let shown = performance.now();
  const drawing = await scene.draw((done, count) => {
    if (performance.now() - shown < 100) return;
    shown = performance.now();
    state.textContent = `laying out: ${done} of ${count} groups`;
  });
  state.textContent = "";
  graph.show(drawing);
}

// ---- small pieces of the page

type Piece = Node | string;
function element(tag: string, attributes: Record<string, string>, ...pieces: Piece[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...pieces);
  return made;
}

function link(text: string, act: () => void, detail = ""): HTMLElement {
  const made = element("button", { class: "link", type: "button" }, text);
  if (detail) made.append(element("span", { class: "faint" }, ` ${detail}`));
  made.addEventListener("click", act);
  return made;
}

const list = (items: HTMLElement[]): HTMLElement => element("ul", {}, ...items.map((item) => element("li", {}, item)));

const MANY = 300; // rows of a list that are shown at once
function section(title: string, items: HTMLElement[]): Piece[] {
  if (!items.length) return [];
  const more = items.length > MANY ? [element("p", { class: "faint" }, `and ${items.length - MANY} more`)] : [];
  return [element("h3", {}, title), list(items.slice(0, MANY)), ...more];
}

const operatorLink = (number: number): HTMLElement =>
  link(model.operators[number].name, () => void select({ child: number }, true),
       timed && work[number].seconds ? time(work[number].seconds) : "");
const kernelLink = (number: number): HTMLElement => {
  const { name, seconds, launches } = model.kernels[number];
  const taken = seconds === null ? "" : `, ${time(seconds)}`;
  return link(name, () => void select({ kernel: number }, false), counted(launches, "launch", "launches") + taken);
};

// ---- the right side

function shown(child: Child): Piece[] {
  if (typeof child !== "number") {
    const kernels = new Set([...child.operators].flatMap((number) => [...work[number].kernels]));
    const turn = link(scene.isOpen(child) ? "Fold" : "Unfold", () => void toggle(child));
    return [element("h2", {}, child.title), turn,
            element("p", {}, `${counted(child.operators.size, "operator")}${timed ? `, in kernels that take ${time(takes(child))}` : ""}`),
            ...section("Kernels", [...kernels].map(kernelLink)),
            ...section("Operators", [...child.operators].map(operatorLink))];
  }
  const operator = model.operators[child];
  const own = work[child];
  const alone = own.shared ? ", in part of kernels that compute others too" : "";
  return [
    element("h2", {}, operator.type),
    element("p", {}, operator.name),
    ...(operator.module.length ? [element("p", { class: "faint" }, `in ${operator.module.join(" / ")}`)] : []),
    ...(timed ? [element("p", {}, `${time(own.seconds)}${alone}`)] : []),
    ...(own.kernels.size ? [] : [element("p", {}, "No kernel is named after it: it was computed at compile time, or is part of how others read and write.")]),
    ...section("Kernels", [...own.kernels].map(kernelLink)),
    ...section("Reads from", model.edges.filter(([, to]) => to === child).map(([from]) => operatorLink(from))),
    ...section("Read by", model.edges.filter(([from]) => from === child).map(([, to]) => operatorLink(to))),
    ...section("Derivations", derivations(new Set([child]))),
    element("h3", {}, "Primitives"),
    element("pre", {}, operator.primitives.join("\n") || "none"),
  ];
}

function derivations(operators: Set<number> | null): HTMLElement[] {
  const found = model.derivations.filter((made) => !operators || made.operators.some((number) => operators.has(number)));
  return found.map((made) => {
    const row = element("div", {}, `${made.option}: ${made.what}`);
    if (made.form) row.append(element("pre", {}, made.form));
    if (!operators) row.append(list(made.operators.map(operatorLink)));
    return row;
  });
}

function aboutKernel(number: number): Piece[] {
  const kernel = model.kernels[number];
  const share = kernel.seconds === null || !total ? "" : `, ${time(kernel.seconds)}, ${((100 * kernel.seconds) / total).toFixed(1)} % of the time`;
  return [
    element("h2", {}, kernel.name),
    element("p", {}, counted(kernel.launches, "launch", "launches") + share),
    ...section("Operators", kernel.operators.map(operatorLink)),
    element("h3", {}, "Schedule"), element("pre", {}, kernel.schedule.join("\n") || "none"),
    element("h3", {}, "Code"), element("pre", { class: "code" }, kernel.code || "not at hand"),
  ];
}

async function toggle(group: Exclude<Child, number>): Promise<void> {
  scene.toggle(group);
  await draw();
  graph.center(group);
  if (selected) show();
}

function show(): void {
  const detail = by("detail");
  const pieces = !selected ? overview() : "child" in selected ? shown(selected.child) : aboutKernel(selected.kernel);
  detail.replaceChildren(...pieces);
  detail.scrollTop = 0;
}

const overview = (): Piece[] => [
  element("h2", {}, model.name),
  ...model.about.map((line) => element("p", {}, line)),
  ...model.notes.map((line) => element("p", { class: "faint" }, line)),
  ...section("Derivations", derivations(null)),
];

/** Shows what is selected on the right; `reveal` unfolds what is around it and moves it into view. */
async function select(what: Selected, reveal: boolean): Promise<void> {
  selected = what;
  show();
  if (what && "child" in what && reveal) {
    const own = typeof what.child === "number" ? around.get(what.child) ?? [] : [];
    own.forEach((group) => scene.toggle(group, true));
    await draw();
    graph.center(what.child);
  }
  graph.redraw();
  document.querySelectorAll("#lists .chosen").forEach((row) => row.classList.remove("chosen"));
  if (what && "kernel" in what) by(`kernel${what.kernel}`)?.classList.add("chosen");
}

// ---- the left side

const tabs: Record<string, () => Piece[]> = {
  Kernels: () => {
    const order = model.kernels.map((_, number) => number);
    if (timed) order.sort((a, b) => (model.kernels[b].seconds ?? 0) - (model.kernels[a].seconds ?? 0));
    return order.map((number) => {
      const row = element("div", { class: "row", id: `kernel${number}` }, kernelLink(number));
      const part = total ? (100 * (model.kernels[number].seconds ?? 0)) / total : 0;
      row.append(element("span", { class: "bar", style: `width:${part.toFixed(1)}%` }));
      return row;
    });
  },
  Steps: () => model.steps.map((step, number) => {
    const names = step.kernels.map((kernel) => model.kernels[kernel].name).join(" + ") || "host";
    const act = (): void => void (step.kernels.length && select({ kernel: step.kernels[0] }, false));
    return element("div", { class: "row" }, link(`${number}: ${names}`, act, step.seconds === null ? "" : time(step.seconds)));
  }),
  Lines: () => {
    const places = new Map<string, number[]>();
    model.operators.forEach((operator, number) => {
      if (operator.location) places.set(operator.location, [...(places.get(operator.location) ?? []), number]);
    });
    if (!places.size) return [element("p", { class: "faint" }, "The model says no lines of its source.")];
    return [...places].map(([place, numbers]) => {
      const kernels = new Set(numbers.flatMap((number) => [...work[number].kernels]));
      const row = element("details", {}, element("summary", {}, `${place} `, element("span", { class: "faint" }, counted(kernels.size, "kernel"))));
      row.append(...section("Kernels", [...kernels].map(kernelLink)), ...section("Operators", numbers.map(operatorLink)));
      return row;
    });
  },
  Memory: () => {
    const { bytes, buffers } = model.memory;
    if (!buffers.length) return [element("p", { class: "faint" }, "No value is kept in the arena.")];
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const steps = model.steps.length, height = 320;
    picture.setAttribute("viewBox", `0 0 ${steps} ${height}`);
    picture.setAttribute("preserveAspectRatio", "none");
    picture.setAttribute("class", "memory");
    for (const buffer of buffers) {
      const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const across = (height * buffer.bytes) / bytes;
      const place = { x: buffer.first, width: buffer.last + 1 - buffer.first, height: across,
                      y: height - (height * buffer.offset) / bytes - across };
      for (const [name, value] of Object.entries(place)) box.setAttribute(name, String(value));
      const about = document.createElementNS("http://www.w3.org/2000/svg", "title");
      about.textContent = `${buffer.text}: ${size(buffer.bytes)} at ${buffer.offset}, steps ${buffer.first} to ${buffer.last}`;
      box.append(about);
      picture.append(box);
    }
    const rows = [...buffers].sort((a, b) => b.bytes - a.bytes).map((buffer) =>
      element("div", {}, `${buffer.text} `, element("span", { class: "faint" }, `${size(buffer.bytes)}, steps ${buffer.first} to ${buffer.last}`)));
    return [element("p", {}, `${size(bytes)} of memory, upwards, over ${steps} steps, to the right:`), picture, ...section("Largest values", rows)];
  },
};

let tab = "Kernels";
function lists(): void {
  const words = by<HTMLInputElement>("search").value;
  const chosen = by("tabs");
  chosen.replaceChildren(...Object.keys(tabs).map((name) => {
    const button = element("button", { type: "button", "aria-pressed": String(name === tab) }, name);
    button.addEventListener("click", () => {
      tab = name;
      by<HTMLInputElement>("search").value = "";
      lists();
    });
    return button;
  }));
  if (!words.trim()) {
    by("lists").replaceChildren(...tabs[tab]());
    return;
  }
  const found = search(model, words);
  const nothing = found.operators.length + found.kernels.length ? [] : [element("p", { class: "faint" }, "Nothing has all these words.")];
  by("lists").replaceChildren(...nothing, ...section(`Kernels: ${found.kernels.length}`, found.kernels.map(kernelLink)),
                              ...section(`Operators: ${found.operators.length}`, found.operators.map(operatorLink)));
}

// ---- keyboard and pointer

async function foldAll(open: boolean): Promise<void> {
  groups(root).forEach((group) => scene.toggle(group, open));
  await draw();
  graph.fit();
}

const acts: Record<string, () => void> = {
  "/": () => by("search").focus(),
  f: () => graph.fit(),
  "+": () => graph.zoom(1.25),
  "-": () => graph.zoom(0.8),
  u: () => void foldAll(true),
  c: () => void foldAll(false),
  Escape: () => void select(null, false),
  ArrowLeft: () => graph.pan(60, 0),
  ArrowRight: () => graph.pan(-60, 0),
  ArrowUp: () => graph.pan(0, 60),
  ArrowDown: () => graph.pan(0, -60),
};

document.addEventListener("keydown", (event) => {
  const typing = document.activeElement === by("search");
  if (typing && event.key === "Enter") {
    document.querySelector<HTMLButtonElement>("#lists button")?.click();
  } else if (typing && event.key === "Escape") {
    by<HTMLInputElement>("search").value = "";
    by("search").blur();
    lists();
  } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && event.key in acts) {
    event.preventDefault();
    acts[event.key]();
  }
});
document.querySelectorAll<HTMLElement>("[data-key]").forEach((button) =>
  button.addEventListener("click", () => acts[button.dataset.key!]()));
by("search").addEventListener("input", lists);

let pressed: [number, number] = [0, 0];
canvas.addEventListener("pointerdown", (event) => (pressed = [event.clientX, event.clientY]));
canvas.addEventListener("click", (event) => {
  if (Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) > 4) return; // it was moved
  const shape = graph.at(event.offsetX, event.offsetY);
  void select(shape ? { child: shape.child } : null, false);
});
canvas.addEventListener("dblclick", (event) => {
  const shape = graph.at(event.offsetX, event.offsetY);
  if (shape && typeof shape.child !== "number") void toggle(shape.child);
});

// ---- the beginning: everything folded; an address such as page.html#unfold or #/words starts there

show();
lists();
await_(draw().then(async () => {
  graph.fit();
  const start = decodeURIComponent(location.hash.slice(1));
  if (start === "unfold") await foldAll(true);
  if (start.startsWith("kernel=")) await select({ kernel: model.kernels.findIndex((one) => one.name === start.slice(7)) }, false);
  if (start.startsWith("operator=")) await select({ child: search(model, start.slice(9)).operators[0] }, true);
  if (start in tabs) {
    tab = start;
    lists();
  }
  requestAnimationFrame(() => {
    document.body.dataset.ready = String(Math.round(performance.now())); // milliseconds to the first frame
  });
}));

function await_(work: Promise<void>): void {
  work.catch((error: Error) => (state.textContent = `the graph cannot be drawn: ${error.message}`));
}

