// Tables that sort by each column.
"use strict";

/** Adds a plain table. */
function table(parent, head, rows) {
  const made = element("table", undefined, parent);
  const line = (cells, kind) => {
    const row = element("tr", undefined, made);
    for (const cell of cells) element(kind, cell, row);
  };
  line(head, "th");
  for (const row of rows) line(row, "td");
}

/** Lets the arrow keys move the focus among the buttons of rows. */
function moveByArrows(rows) {
  rows.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr, li");
    const next = { ArrowUp: row?.previousElementSibling, ArrowDown: row?.nextElementSibling }[event.key];
    const buttons = next?.querySelectorAll("button");
    if (!buttons?.length) return;
    event.preventDefault();
    const at = [...row.querySelectorAll("button")].indexOf(event.target);
    (buttons[at] ?? buttons[0]).focus();
  });
}

/** Replaces the rows of a table. If the focus was in them, it goes to the current row, or stays in place. */
function replaceRows(body, rows) {
  const buttons = () => [...body.querySelectorAll("button")];
  const at = buttons().indexOf(document.activeElement);
  body.replaceChildren(...rows);
  if (at < 0) return;
  const now = buttons();
  (body.querySelector("[aria-current] button") ?? now[Math.min(at, now.length - 1)])?.focus();
}

/** The rows that a table shows at first. */
const FIRST_ROWS = 15;

/** What follows the name of the column in the text of an order. */
const RISING = ", rising";

/**
 * A table that sorts by each column. A column has a name, a title that explains it, the value of a row to
 * sort by, and the text of the value. The first column is a button that acts on its row.
 */
class SortedTable {
  constructor(parent, { caption, columns, by, act, actTitle }) {
    Object.assign(this, { columns, act, actTitle, by, first: by });
    this.falls = true;
    this.rows = [];
    this.table = element("table", undefined, parent);
    element("caption", caption, this.table).className = "unseen";
    const head = element("tr", undefined, element("thead", undefined, this.table));
    this.heads = columns.map((column, at) => {
      const cell = element("th", undefined, head);
      cell.scope = "col";
      const sort = button(column.name, cell, () => this.sortBy(at));
      sort.className = "sort";
      sort.title = `${column.title ?? column.name}. Click to sort.`;
      return cell;
    });
    this.body = element("tbody", undefined, this.table);
    moveByArrows(this.body);
    this.more = button("", parent, () => {
      this.showsAll = !this.showsAll;
      this.draw();
    });
  }

  /** Sorts by a column; the second time, in the other direction. */
  sortBy(at) {
    this.falls = this.by === at ? !this.falls : at > 0;
    this.by = at;
    this.draw();
    this.table.dispatchEvent(new Event("change", { bubbles: true }));
  }

  /** The order of the rows as text; undefined at first. */
  get order() {
    if (this.by === this.first && this.falls) return undefined;
    return `${this.columns[this.by].name}${this.falls ? "" : RISING}`;
  }

  set order(text = "") {
    this.falls = !text.endsWith(RISING);
    const name = this.falls ? text : text.slice(0, -RISING.length);
    const found = this.columns.findIndex((column) => column.name === name);
    this.by = found < 0 ? this.first : found;
    this.draw();
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const { value } = this.columns[this.by];
    const sign = this.falls ? -1 : 1;
    const order = (a, b) => (a < b ? -sign : a > b ? sign : 0);
    // A row without a value is last in both directions.
    const sorted = this.rows.map((row) => [value(row), row]).sort(([a], [b]) => {
      return (a === undefined) - (b === undefined) || order(a, b);
    });
    const shown = this.showsAll ? sorted : sorted.slice(0, FIRST_ROWS);
    replaceRows(this.body, shown.map(([, row]) => this.line(row)));
    this.heads.forEach((head, at) => {
      const direction = this.falls ? "descending" : "ascending";
      head.setAttribute("aria-sort", at === this.by ? direction : "none");
    });
    this.more.hidden = this.rows.length <= FIRST_ROWS;
    const count = this.showsAll ? FIRST_ROWS : `all ${inDigits(this.rows.length)}`;
    this.more.textContent = `Show ${count} rows`;
  }

  line(row) {
    const line = document.createElement("tr");
    this.columns.forEach((column, at) => {
      const cell = element(at ? "td" : "th", undefined, line);
      const value = column.value(row);
      const text = value === undefined ? "–" : (column.text ?? String)(value);
      if (at === 0) {
        cell.scope = "row";
        button(text, cell, () => this.act(row)).title = this.actTitle(row);
      } else {
        cell.textContent = text;
      }
    });
    return line;
  }
}
