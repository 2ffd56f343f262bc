// Words to numbers, as BERT's uncased models have them: words and signs apart, then the longest pieces that are known.

const MOST_CHARACTERS = 100; // of a word; a longer one is unknown
const SIGN = /[\p{P}$+<=>^`|~\p{Script=Han}]/gu;

export class Words {
  /** `vocabulary` is the text of vocab.txt: a piece a line, its number the line's. */
  constructor(vocabulary) {
    this.numbers = new Map(vocabulary.split("\n").map((piece, number) => [piece.trimEnd(), number]));
  }

  /** The numbers of a text, with those that begin and end one. */
  encode(text) {
    const plain = text.toLowerCase().normalize("NFD").replace(/\p{Mn}/gu, "").replace(SIGN, " $& ");
    const words = plain.split(/\s+/u).filter((word) => word !== "");
    return [this.numbers.get("[CLS]"), ...words.flatMap((word) => this.#pieces(word)), this.numbers.get("[SEP]")];
  }

  #pieces(word) {
    const unknown = [this.numbers.get("[UNK]")];
    if (word.length > MOST_CHARACTERS) return unknown;
    const found = [];
    for (let begin = 0; begin < word.length; ) {
      let end = word.length;
      const piece = () => (begin > 0 ? "##" : "") + word.slice(begin, end);
      while (end > begin && !this.numbers.has(piece())) --end;
      if (end === begin) return unknown;
      found.push(this.numbers.get(piece()));
      begin = end;
    }
    return found;
  }
}
