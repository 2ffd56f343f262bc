// The graph on a canvas: drawing, zoom and pan, and what lies under the pointer.
import { TITLE, type Drawing, type Shape } from "./scene.js";
import type { Child } from "./model.js";

export interface Labels {
  title(child: Child): string;
  detail(child: Child): string;
  heat(child: Child): number; // 0 to 1: its share of the time
  marked(child: Child): boolean;
}

const SMALLEST = 0.02, LARGEST = 3;

export class GraphCanvas {
  private drawing: Drawing = { shapes: [], lines: [], width: 1, height: 1 };
  private x = 0;
  private y = 0;
  private scale = 1;
  private waiting = false;
  private readonly context: CanvasRenderingContext2D;

  constructor(private readonly canvas: HTMLCanvasElement, private readonly labels: Labels) {
    this.context = canvas.getContext("2d")!;
    new ResizeObserver(() => this.redraw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * 0.002), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons & 1) this.pan(event.movementX, event.movementY);
    });
  }

  show(drawing: Drawing): void {
    this.drawing = drawing;
    this.redraw();
  }

  fit(): void {
    const { width, height } = this.canvas.getBoundingClientRect();
    this.scale = Math.min(1.2, Math.max(SMALLEST, Math.min(width / this.drawing.width, height / this.drawing.height)));
    // What is far taller than the window begins at its top, large enough to read.
    const readable = Math.min(1, width / this.drawing.width);
    if (this.scale < 0.4 && readable > 2 * this.scale) this.scale = Math.max(this.scale, Math.min(readable, 0.8));
    this.x = (width - this.drawing.width * this.scale) / 2;
    this.y = Math.max(8, (height - this.drawing.height * this.scale) / 2);
    this.redraw();
  }

  pan(dx: number, dy: number): void {
    this.x += dx;
    this.y += dy;
    this.redraw();
  }

  zoom(factor: number, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2): void {
    const scale = Math.min(LARGEST, Math.max(SMALLEST, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.redraw();
  }

  /** Moves a shape to the middle of the window, at a scale at which it can be read. */
  center(child: Child): void {
    const shape = this.drawing.shapes.find((one) => one.child === child);
    if (!shape) return;
    this.scale = Math.max(this.scale, 0.9);
    this.x = this.canvas.clientWidth / 2 - (shape.x + shape.width / 2) * this.scale;
    this.y = this.canvas.clientHeight / 2 - (shape.y + Math.min(shape.height, 80) / 2) * this.scale;
    this.redraw();
  }

  /** The innermost shape under a point of the canvas. */
  at(left: number, top: number): Shape | undefined {
    const x = (left - this.x) / this.scale, y = (top - this.y) / this.scale;
    const inside = (s: Shape): boolean => x >= s.x && x <= s.x + s.width && y >= s.y && y <= s.y + s.height;
    return this.drawing.shapes.filter(inside).at(-1);
  }

  redraw(): void {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  private paint(): void {
    const { context, canvas, scale } = this;
    const { width, height } = canvas.getBoundingClientRect();
    const ratio = devicePixelRatio;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const style = getComputedStyle(canvas);
    const color = (name: string): string => style.getPropertyValue(name);
    const [text, faint, line, box, inner, heat, mark] =
      ["--text", "--faint", "--line", "--box", "--inner", "--heat", "--mark"].map(color);
    context.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * this.x, ratio * this.y);
    const seen = (x: number, y: number, w: number, h: number): boolean =>
      (x + w) * scale + this.x >= 0 && x * scale + this.x <= width &&
      (y + h) * scale + this.y >= 0 && y * scale + this.y <= height;
    context.lineWidth = Math.max(1, 0.7 / scale);
    for (const shape of this.drawing.shapes) {
      if (!seen(shape.x, shape.y, shape.width, shape.height)) continue;
      const marked = this.labels.marked(shape.child);
      context.beginPath();
      context.roundRect(shape.x, shape.y, shape.width, shape.height, 6);
      context.fillStyle = shape.open ? inner : box;
      context.fill();
      const share = shape.open ? 0 : this.labels.heat(shape.child);
      if (share > 0) {
        context.save();
        context.clip();
        context.fillStyle = heat;
        context.fillRect(shape.x, shape.y + shape.height - 4, shape.width * share, 4);
        context.restore();
      }
      context.strokeStyle = marked ? mark : line;
      context.lineWidth = marked ? Math.max(2.5, 1.5 / scale) : Math.max(1, 0.7 / scale);
      context.stroke();
      if (scale * 12 < 5) continue; // too small to read
      const titled = shape.open ? TITLE : shape.height;
      const detail = shape.open ? "" : this.labels.detail(shape.child);
      context.save();
      context.beginPath();
      context.rect(shape.x + 4, shape.y, shape.width - 8, titled);
      context.clip();
      context.fillStyle = text;
      context.font = typeof shape.child === "number" ? "12px system-ui, sans-serif" : "600 12px system-ui, sans-serif";
      const sign = typeof shape.child === "number" ? "" : shape.open ? "▾ " : "▸ ";
      context.fillText(sign + this.labels.title(shape.child), shape.x + 8, shape.y + 15);
      context.fillStyle = faint;
      context.font = "10px system-ui, sans-serif";
      if (detail) context.fillText(detail, shape.x + 8, shape.y + 28);
      context.restore();
    }
    context.strokeStyle = context.fillStyle = faint;
    context.lineWidth = Math.max(1, 0.6 / scale);
    for (const points of this.drawing.lines) {
      const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
      const left = Math.min(...xs), top = Math.min(...ys);
      if (!seen(left, top, Math.max(...xs) - left, Math.max(...ys) - top)) continue;
      context.beginPath();
      points.forEach(([x, y], number) => (number ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.stroke();
      const [x, y] = points.at(-1)!;
      const [fromX, fromY] = points.at(-2) ?? [x, y - 1];
      const angle = Math.atan2(y - fromY, x - fromX);
      context.beginPath();
      context.moveTo(x, y);
      for (const turn of [2.7, -2.7]) context.lineTo(x + 6 * Math.cos(angle + turn), y + 6 * Math.sin(angle + turn));
      context.fill();
    }
  }
}
