// The entries of a namespace, read a page at a time as the table needs them, and kept.

import { countEntries, scan, search } from "./api.js";

const PAGE = 200;
const LARGE_PAGE = 1000; // when the reader has jumped far ahead
const PREVIEW = 160; // characters

/** Rows by their index. `order` is "key" or "newest"; a filter needs "newest". */
export class Rows {
  constructor(namespace, { order, filter }, onLoad) {
    this.namespace = namespace;
    this.order = filter ? "newest" : order;
    this.filter = filter;
    this.onLoad = onLoad;
    this.items = [];
    this.total = 0;
    this.next = null;
    this.isComplete = false;
    this.wanted = 0;
    this.loading = null;
    this.abort = new AbortController();
  }

  /** Read the number of entries and the first page. */
  async start() {
    const [total] = await Promise.all([countEntries(this.namespace, this.filter), this.load(1)]);
    this.total = this.isComplete ? this.items.length : Math.max(total, this.items.length);
  }

  /** Load until the row at an index is there. Calls while it loads extend it. */
  load(wanted) {
    this.wanted = Math.max(this.wanted, wanted);
    this.loading ??= this.#loadPages().finally(() => {
      this.loading = null;
    });
    return this.loading;
  }

  async #loadPages() {
    while (this.items.length < this.wanted && !this.isComplete) {
      const limit = this.wanted - this.items.length > PAGE * 2 ? LARGE_PAGE : PAGE;
      const page = await this.#page(limit);
      this.items.push(...page.items);
      this.next = page.next;
      this.isComplete = page.next === null;
      if (this.isComplete) this.total = this.items.length;
      this.onLoad();
    }
  }

  #page(limit) {
    const signal = this.abort.signal;
    if (this.order === "key") return scan(this.namespace, { after: this.next, limit, preview: PREVIEW, signal });
    const body = { namespace: this.namespace, limit, preview: PREVIEW, cursor: this.next };
    return search(this.filter ? { ...body, filter: this.filter } : body, signal);
  }

  /** Stop loading: the table shows something else now. */
  close() {
    this.abort.abort();
  }
}
