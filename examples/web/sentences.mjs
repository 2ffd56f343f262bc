// The page: reads sentences, runs the model on each, shows which are near each other.
import { load } from "./minilm/minilm.mjs";
import { Words } from "./words.mjs";

const element = (name) => document.getElementById(name);

/** What a sentence means, as a vector of length 1. */
function meaning(model, words, sentence) {
  const ids = words.encode(sentence);
  const numbers = (values) => ({ data: BigInt64Array.from(values, BigInt), shape: [1, ids.length] });
  const [ones, zeros] = [1, 0].map((value) => numbers(ids.map(() => value)));
  const found = model.run({ input_ids: numbers(ids), attention_mask: ones, token_type_ids: zeros });
  const [, embedding] = Object.values(found);
  return Array.from(embedding.data);
}

const [model, vocabulary] = await Promise.all([load(), fetch("./minilm/vocab.txt").then((answer) => answer.text())]);
const words = new Words(vocabulary);

function compare() {
  const sentences = element("sentences").value.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  const began = performance.now();
  const vectors = sentences.map((sentence) => meaning(model, words, sentence));
  element("state").textContent = `${sentences.length} sentences in ${(performance.now() - began).toFixed(0)} ms`;
  const pairs = [];
  vectors.forEach((a, i) => {
    vectors.slice(0, i).forEach((b, j) => {
      pairs.push([a.reduce((sum, value, k) => sum + value * b[k], 0), sentences[j], sentences[i]]);
    });
  });
  pairs.sort((a, b) => b[0] - a[0]);
  element("pairs").replaceChildren(
    ...pairs.map(([near, one, other]) => {
      const row = document.createElement("tr");
      [near.toFixed(3), one, other].forEach((text) => (row.insertCell().textContent = text));
      return row;
    }),
  );
}

element("compare").disabled = false;
element("compare").addEventListener("click", compare);
compare();
document.body.dataset.ready = "yes";
