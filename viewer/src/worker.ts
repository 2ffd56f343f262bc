// Lays out groups in the background, one for each message.
import { layout, type Box } from "./layout.js";

self.onmessage = ({ data }: MessageEvent<{ ticket: number; boxes: Box[]; edges: [string, string][] }>) => {
  self.postMessage({ ticket: data.ticket, laid: layout(data.boxes, data.edges) });
};
