// Moves by windows: a turn may have many thousands, and a page needs the few dozen that are in sight.
import { get, turnPath } from "./api.js";

export const PAGE = 100;
const KEPT = 60;

export class Moves {
  constructor(turn, changed) {
    this.turn = turn;
    this.changed = changed;
    this.pages = new Map();
    this.loading = new Set();
    this.loaded = 0;
  }

  /** Move number `seq`, or undefined while it is being fetched. */
  at(seq) {
    const number = Math.floor((seq - 1) / PAGE);
    const page = this.pages.get(number);
    const move = page?.[(seq - 1) % PAGE];
    if (move === undefined) this.fetch(number);
    return move;
  }

  /** A move that was just made. */
  add(move) {
    const number = Math.floor((move.seq - 1) / PAGE);
    const place = (move.seq - 1) % PAGE;
    if (!this.pages.has(number)) {
      if (place !== 0) return; // its page is fetched whole when it comes into sight
      this.keep(number, []);
    }
    const page = this.pages.get(number);
    if (page.length === place) page.push(move);
  }

  async fetch(number) {
    if (this.loading.has(number) || number < 0) return;
    this.loading.add(number);
    const first = number * PAGE + 1;
    try {
      const { moves } = await get(turnPath(this.turn, `/moves?first=${first}&last=${first + PAGE - 1}`));
      const known = this.pages.get(number);
      if (!known || known.length <= moves.length) this.keep(number, moves);
      this.loaded += moves.length;
      this.changed();
    } catch {
      // the page says elsewhere that the debugger is gone; the rows are asked for again when they are drawn again
    } finally {
      this.loading.delete(number);
    }
  }

  keep(number, moves) {
    this.pages.delete(number);
    this.pages.set(number, moves);
    if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
  }
}
