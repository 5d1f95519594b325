// A list of very many rows of one height: only those in sight, and some around them, are in the document.

const AROUND = 8; // rows above and below those in sight
const TALLEST = 15_000_000; // pixels: browsers draw nothing below about twice that

/** `build()` makes an empty row, `show(row, index)` fills it. Rows are used again for other indexes. */
export class VirtualList {
  constructor({ viewport, canvas, height, build, show, onRange }) {
    Object.assign(this, { viewport, canvas, height, build, show, onRange });
    this.total = 0;
    this.rows = new Map(); // by index
    this.spare = [];
    this.isQueued = false;
    viewport.addEventListener("scroll", () => this.#queue(), { passive: true });
    new ResizeObserver(() => this.#queue()).observe(viewport);
  }

  get mostRows() {
    return Math.floor(TALLEST / this.height);
  }

  /** Set the number of rows, and draw those in sight again. */
  reset(total) {
    this.total = Math.min(total, this.mostRows);
    this.canvas.style.height = `${this.total * this.height}px`;
    this.refresh();
  }

  /** Draw the rows in sight again. */
  refresh() {
    for (const [index, row] of this.rows) if (index < this.total) this.show(row, index);
    this.draw();
  }

  #queue() {
    if (this.isQueued) return;
    this.isQueued = true;
    requestAnimationFrame(() => {
      this.isQueued = false;
      this.draw();
    });
  }

  draw() {
    const top = Math.floor(this.viewport.scrollTop / this.height);
    const first = Math.max(0, top - AROUND);
    const end = Math.min(this.total, top + Math.ceil(this.viewport.clientHeight / this.height) + AROUND);
    for (const [index, row] of this.rows) {
      if (index < first || index >= end) {
        this.rows.delete(index);
        this.spare.push(row);
      }
    }
    for (let index = first; index < end; index++) {
      if (!this.rows.has(index)) this.#place(index);
    }
    for (const row of this.spare) row.hidden = true;
    this.onRange?.(first, end);
  }

  #place(index) {
    let row = this.spare.pop();
    if (!row) {
      row = this.build();
      this.canvas.append(row);
    }
    row.hidden = false;
    row.style.transform = `translateY(${index * this.height}px)`;
    row.setAttribute("aria-rowindex", index + 2); // the first row of the grid is its head
    this.rows.set(index, row);
    this.show(row, index);
  }

  /** Scroll so that a row is in sight. */
  reveal(index) {
    const top = index * this.height;
    const bottom = top + this.height;
    if (top < this.viewport.scrollTop) this.viewport.scrollTop = top;
    else if (bottom > this.viewport.scrollTop + this.viewport.clientHeight) {
      this.viewport.scrollTop = bottom - this.viewport.clientHeight;
    }
    this.draw();
  }
}
